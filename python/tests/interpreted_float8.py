"""Floats of eight bits in kernels for a GPU, without one: see `interpreted.py`. Run by `test_float8.py` for each GPU in `INRUSH_INTERPRET`."""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from test_float8 import KINDS, codes, compiled, patterns, same

import torch


def main():
    x = patterns(1_000)
    for kind in KINDS:
        got, want, report = compiled(lambda x, kind=kind: (x.to(kind), x.to(kind).float() * 2, x.to(torch.bfloat16).to(kind)), x)
        assert report.kernels and not report.calls, report.calls
        given = codes(kind)
        functions = lambda c, kind=kind: (c.float(), c.to(torch.float16), c[3:].clone(), c.view(torch.uint8).view(kind).float() + 1)  # noqa: E731
        more, wanted, report = compiled(functions, given)
        assert report.kernels and not report.calls, report.calls
        for a, b in zip([*got, *more], [*want, *wanted], strict=True):
            same(a, b)
        bits, known, report = compiled(lambda x, kind=kind: (x.to(kind).view(torch.uint8) + 1, x.to(kind).view(torch.int8) // 2), x[x.isfinite()])
        assert report.kernels and not report.calls, report.calls
        for a, b in zip(bits, known, strict=True):
            assert a.equal(b)
        print(kind, "in", report.kernels, "kernels")


if __name__ == "__main__":
    sys.exit(main())
