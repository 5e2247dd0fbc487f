"""Runs the example of every operator row through PyTorch.

usage: gen_row_examples.py DIR [N]

DIR/rows.json is a list of {"name", "inputs": [{dtype, sizes, range}], "args": [[name, keyword_only, value]]}, where a value is
{"tensor": N}, {"tensors": [N or null]}, {"dtype": "float32"}, {"memory_format": "..."}, {"float": text} or a plain JSON value.
Writes DIR/K.safetensors for row number K, with its inputs `inN` and outputs `outN`, and DIR/errors.json, what PyTorch refused.

With N, also exported programs of N rows each: a program takes the inputs of its rows one after the other and gives their
outputs. DIR/archives.json is {"archives": [{"file", "rows": [K]}], "refused": {name: why}}.
"""

import json
import os
import sys
import zlib

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
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


class Calls(torch.nn.Module):
    """Examples as one model: a list of (operator, row, count of inputs)."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, *inputs):
        outs, at = [], 0
        for operator, row, count in self.calls:
            outs += leaves(call(operator, row, inputs[at : at + count]))
            at += count
        # A result that is another's or an input's memory is a value all the same.
        return tuple(outs)


def call(operator, row, inputs):
    positional = [decode(v, inputs) for _, keyword, v in row["args"] if not keyword]
    keywords = {n: decode(v, inputs) for n, keyword, v in row["args"] if keyword and v is not None}
    return operator(*positional, **keywords)


def leaves(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def export(folder, ran, archives):
    """Writes rows as one archive; of rows that are not exported together, each half. Appends to `archives`."""
    model = Calls([(operator, row, len(inputs)) for _, operator, row, inputs in ran])
    try:
        with torch.no_grad():
            program = torch.export.export(model, tuple(t.clone() for *_, inputs in ran for t in inputs), strict=False)
        file = f"rows{ran[0][0]}.pt2"
        torch.export.save(program, os.path.join(folder, file))
    except Exception as error:
        if len(ran) == 1:
            archives["refused"][ran[0][2]["name"]] = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        half = len(ran) // 2
        export(folder, ran[:half], archives)
        export(folder, ran[half:], archives)
        return
    archives["archives"].append({"file": file, "rows": [k for k, *_ in ran]})


def main():
    folder = sys.argv[1]
    ran = []
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
            results = leaves(call(operator, row, inputs))
        except Exception as error:
            errors[row["name"]] = str(error).splitlines()[0]
            continue
        for n, out in enumerate(results):
            stored[f"out{n}"] = out.detach().clone(memory_format=torch.contiguous_format)
        save_file(stored, os.path.join(folder, f"{k}.safetensors"))
        ran.append((k, operator, row, [stored[f"in{n}"] for n in range(len(inputs))]))
    with open(os.path.join(folder, "errors.json"), "w", encoding="utf-8") as handle:
        json.dump(errors, handle, indent=1)
    if len(sys.argv) > 2:
        import logging
        import warnings

        warnings.filterwarnings("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        together, archives = int(sys.argv[2]), {"archives": [], "refused": {}}
        for at in range(0, len(ran), together):
            export(folder, ran[at : at + together], archives)
        with open(os.path.join(folder, "archives.json"), "w", encoding="utf-8") as handle:
            json.dump(archives, handle, indent=1)


if __name__ == "__main__":
    main()
