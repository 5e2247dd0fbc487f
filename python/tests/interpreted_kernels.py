"""Triton kernels of users in compiled graphs, without a GPU: see `interpreted.py`. Run by `test_gpu_kernels.py`.

The functions that are compiled never run eagerly here: each case brings along what it must give.
"""

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["INRUSH_INTERPRET"] = "cuda:h100"

import torch
import torch.utils._triton
import triton
from triton.backends.compiler import GPUTarget

import inrush

# Kernels as Dynamo knows them, with a device to find out for what they write. What Triton itself is made of is interpreted.
import triton.compiler.code_generator  # noqa: E402, F401

triton.knobs.runtime.interpret = False
torch.utils._triton.has_triton = lambda: True


class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0


triton.runtime.driver.set_active(NoDriver())

from user_kernels import CASES, between_others, by_lambda, in_order, rows, tuned  # noqa: E402

from inrush.triton import tuned_kernels  # noqa: E402


def run(f, wanted, row, dynamic=None, cache=False):
    compiled = torch.compile(f, backend="inrush", options={"strict": True, "cache": cache}, dynamic=dynamic, fullgraph=True)
    record = tuned_kernels.record
    tuned_kernels.record = lambda *given: (row.setdefault("first", inrush.compilations()[-1].fallbacks), record(*given))
    for shape in ((7, 18), (5, 16)) if dynamic else ((7, 18), (7, 18)):
        x, y = torch.randn(shape), torch.randn(shape)
        theirs, ours = (x.clone(), y.clone()), (x.clone(), y.clone())
        want, got = wanted(*theirs), compiled(*ours)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)
    tuned_kernels.record = record


def main():
    only = sys.argv[1:]
    cases = [(f.__name__, f, want, {}) for f, want in CASES.items()]
    cases += [(f"{f.__name__}, dynamic", f, CASES[f], {"dynamic": True}) for f in (by_lambda, in_order, rows, between_others, tuned)]
    cases += [(f"{by_lambda.__name__}, {n} from the cache", by_lambda, CASES[by_lambda], {"cache": True}) for n in ("not", "then")]
    cases += [("tuned, then known", tuned, CASES[tuned], {})]
    cases += [(f"tuned, {n} from the cache", tuned, CASES[tuned], {"cache": True}) for n in ("not", "then")]
    for name, f, want, options in cases:
        if only and name not in only:
            continue
        torch._dynamo.reset()
        torch.manual_seed(0)
        row = {"name": name, "failed": None}
        try:
            run(f, want, row, **options)
            done = inrush.last_compile()
            kernels = [k for g in done.all_graphs() for k in g.kernels]
            row |= {"kernels": kernels, "called": done.fallbacks, "cache": done.cache}
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"[:3000]
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
