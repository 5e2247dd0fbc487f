"""Finds the dtypes that PyTorch has no kernel of an operator for, by running the example of every operator row in each dtype.

usage: gen_no_kernels.py DIR DEVICE [K/N]

DIR/rows.json is what `gen_row_examples.py` reads. Prints a line `DEVICE OPERATOR DTYPES` for each operator that PyTorch has
not or refuses for some dtype, as `crates/inrush-compile/src/no_kernels.txt` has them. The dtype takes the place of
the first tensor's and of those that are like it; numbers among the arguments are tried as bool, int and float, since PyTorch's
choice of a kernel depends on them, and a dtype counts only where it is refused with all. K/N: share K of N of the rows.
"""

import json
import os
import re
import sys
import warnings
import zlib

import torch

from gen_row_examples import call, fill

NAMES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "bool": "bool",
}

# How it says so.
WORDS = re.compile(r"not implemented for '|n't be cast to the desired output|not support|only support|floating.point|boolean tensor")


def numbers(operator):
    """Names of the parameters that take a number of any kind."""
    return {a.name for a in operator._schema.arguments if str(a.type) in ("number", "Optional[number]")}


def has_modes(operator):
    """Whether a word among the arguments says what is computed: each has kernels of its own."""
    return any(str(a.type) in ("str", "Optional[str]") and a.name != "approximate" for a in operator._schema.arguments)


def refused(operator, row, dtype, device):
    """Whether PyTorch has no kernel for the example with that dtype."""
    main, scalars = row["inputs"][0]["dtype"], numbers(operator)
    given = [n for n, _, v in row["args"] if n in scalars and v is not None and not (isinstance(v, dict) and "tensor" in v)]
    specs = [{**spec, "dtype": dtype} if spec["dtype"] == main else spec for spec in row["inputs"]]
    for number in (None, True, 1, 0.5) if given else (None,):
        args = row["args"] if number is None else [[n, k, number if n in given else v] for n, k, v in row["args"]]
        generator = torch.Generator().manual_seed(zlib.crc32(row["name"].encode()))
        try:
            call(operator, {**row, "args": args}, [fill(spec, generator).to(device) for spec in specs])
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as error:
            if WORDS.search(str(error)):
                continue
            if "CUDA error" in str(error):
                os._exit(1)
        return False
    return True


def dtypes(row, device):
    """The dtypes that the row's operator is refused for."""
    namespace, base, overload = row["name"].split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
    if operator is None or not row["inputs"] or has_modes(operator):
        return []
    return [NAMES[d] for d in NAMES if refused(operator, row, d, device)]


def answered(rows, device):
    """What `dtypes` says of the first rows, as many as a process of its own gets through: division of integers by zero ends it,
    and after an assertion on a GPU nothing runs there any more."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for row in rows:
            os.write(write, (json.dumps(dtypes(row, device)) + "\n").encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = [json.loads(line) for line in pipe]
    os.waitpid(child, 0)
    return said


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    folder, device = sys.argv[1:3]
    share, shares = (int(n) for n in sys.argv[3].split("/")) if len(sys.argv) > 3 else (1, 1)
    with open(os.path.join(folder, "rows.json"), encoding="utf-8") as handle:
        rows = json.load(handle)
    rows, lines = rows[share - 1 :: shares], []
    kind = "cpu" if device == "cpu" else "gpu"
    while rows:
        said = answered(rows, device)
        lines += [f"{kind} {row['name']} {' '.join(found)}" for row, found in zip(rows, said) if found]
        # The next row is the one that ended the process.
        rows = rows[len(said) + 1 :]
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
