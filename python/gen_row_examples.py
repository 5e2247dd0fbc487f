"""Runs the example of every operator row through PyTorch.

usage: gen_row_examples.py DIR

DIR/rows.json is a list of {"name", "inputs": [{dtype, sizes, range}], "args": [[name, keyword_only, value]]}, where a value is
{"tensor": N}, {"tensors": [N or null]}, {"dtype": "float32"}, {"memory_format": "..."}, {"float": text} or a plain JSON value.
Writes DIR/K.safetensors for row number K, with its inputs `inN` and outputs `outN`, and DIR/errors.json, what PyTorch refused.
"""

import json
import os
import sys
import zlib

import torch
from safetensors.torch import save_file


def fill(spec, generator):
    """Random data in the range that the example gives; small numbers of both signs where it gives none."""
    dtype, sizes, bounds = getattr(torch, spec["dtype"]), spec["sizes"], spec["range"]
    if dtype == torch.bool:
        return torch.rand(sizes, generator=generator) < 0.5
    if dtype.is_floating_point:
        low, high = bounds or (-2.0, 2.0)
        return (torch.rand(sizes, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
    low, high = bounds or ((0, 9) if dtype == torch.uint8 else (-5, 5))
    return torch.randint(int(low), int(high) + 1, sizes, generator=generator).to(dtype)


def decode(value, inputs):
    if isinstance(value, dict):
        (kind, content), = value.items()
        if kind == "tensor":
            return inputs[content]
        if kind == "tensors":
            return [None if k is None else inputs[k] for k in content]
        if kind in ("dtype", "memory_format"):
            return getattr(torch, content)
        return float(content)
    if isinstance(value, list):
        return [decode(v, inputs) for v in value]
    return value


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "rows.json"), encoding="utf-8") as handle:
        rows = json.load(handle)
    errors = {}
    for k, row in enumerate(rows):
        generator = torch.Generator().manual_seed(zlib.crc32(row["name"].encode()))
        inputs = [fill(spec, generator) for spec in row["inputs"]]
        if "bucketize" in row["name"] or "searchsorted" in row["name"]:
            inputs = [t.sort()[0] if t.dim() else t for t in inputs]
        stored = {f"in{n}": t.clone() for n, t in enumerate(inputs)}
        namespace, base, overload = row["name"].split(".")
        try:
            operator = getattr(getattr(getattr(torch.ops, namespace), base), overload)
        except AttributeError:
            # A row that only other rows call.
            continue
        try:
            positional = [decode(v, inputs) for _, keyword, v in row["args"] if not keyword]
            keywords = {n: decode(v, inputs) for n, keyword, v in row["args"] if keyword and v is not None}
            result = operator(*positional, **keywords)
        except Exception as error:
            errors[row["name"]] = str(error).splitlines()[0]
            continue
        results = result if isinstance(result, (tuple, list)) else [result]
        for n, out in enumerate(results):
            stored[f"out{n}"] = out.detach().clone(memory_format=torch.contiguous_format)
        save_file(stored, os.path.join(folder, f"{k}.safetensors"))
    with open(os.path.join(folder, "errors.json"), "w", encoding="utf-8") as handle:
        json.dump(errors, handle, indent=1)


main()
