"""Triton kernels of users in compiled graphs, without a GPU: see `interpreted.py`. Run by `test_gpu_kernels.py`.

The functions that are compiled never run eagerly here: each case brings along what it must give. With `PRINTED` in the environment
their graphs are written to that folder as source.
"""

import copy
import json
import os
import sys
from typing import ClassVar

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
torch.utils._triton.has_triton_tensor_descriptor_host_tma = lambda: True


class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0


triton.runtime.driver.set_active(NoDriver())

from user_kernels import (  # noqa: E402
    CASES,
    between_others,
    broken_descriptor,
    by_lambda,
    deep_descriptors,
    host_descriptor,
    in_order,
    mixed_descriptors,
    rows,
    tuned,
)

from inrush import dynamo_backend, source  # noqa: E402
from inrush.triton import tuned_kernels  # noqa: E402


DYNAMIC = (by_lambda, in_order, rows, between_others, tuned, host_descriptor, mixed_descriptors, deep_descriptors)


class Recorder:
    """Calls a compiled graph and keeps copies of the inputs and outputs of the last call."""

    _boxed_call = True
    all: ClassVar[list] = []
    # Graphs of the cache are those of the compiler's own class.
    is_on: ClassVar[bool] = False

    def __init__(self, compiled):
        self.compiled = compiled
        Recorder.all.append(self)

    def __getattr__(self, name):
        return getattr(self.compiled, name)

    def __call__(self, *inputs):
        if len(inputs) == 1 and isinstance(inputs[0], list):
            inputs = tuple(inputs[0])
        self.inputs = copy.deepcopy(list(inputs))
        outputs = self.compiled(*inputs)
        self.outputs, self.after = copy.deepcopy((list(outputs), list(inputs)))
        return outputs


def write_sources(name):
    """Writes the graphs that were compiled for `run_printed.py`; gives how many."""
    for k, recorder in enumerate(Recorder.all):
        if any(call.op.startswith("triton.") for call in inrush.last_compile().graphs[0].calls):
            continue  # A kernel that Triton launches is an object.
        folder = os.path.join(os.environ["PRINTED"], f"{name} {k}")
        os.makedirs(folder)
        with open(os.path.join(folder, "source.py"), "w", encoding="utf-8") as file:
            file.write(source.print_graph(recorder, "graph"))
        torch.save((recorder.inputs, recorder.outputs, recorder.after, torch.get_rng_state()), os.path.join(folder, "case.pt"))
    return len(Recorder.all)


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


def broken(row, shapes):
    """Calls a function whose descriptor is of no use at the last of these shapes; gives what that call raises."""
    compiled = torch.compile(broken_descriptor, backend="inrush", options={"strict": True, "cache": False}, dynamic=len(shapes) > 1)
    for shape in shapes[:-1]:
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(compiled(x, y), x * 4 + y)
        row.setdefault("first", inrush.last_compile().fallbacks)
    try:
        compiled(torch.randn(shapes[-1]), torch.randn(shapes[-1]))
    except Exception as error:
        row["raised"] = f"{type(error).__name__}: {error}"


def main():
    native = dynamo_backend.compile_native

    def recorded(*args, **options):
        compiled = native(*args, **options)
        return Recorder(compiled) if Recorder.is_on and isinstance(compiled, inrush._native.Compiled) else compiled

    dynamo_backend.compile_native = recorded
    only = sys.argv[1:]
    cases = [(f.__name__, f, want, {}) for f, want in CASES.items()]
    cases += [(f"{f.__name__}, dynamic", f, CASES[f], {"dynamic": True}) for f in DYNAMIC]
    cases += [(f"{by_lambda.__name__}, {n} from the cache", by_lambda, CASES[by_lambda], {"cache": True}) for n in ("not", "then")]
    cases += [("tuned, then known", tuned, CASES[tuned], {})]
    cases += [(f"tuned, {n} from the cache", tuned, CASES[tuned], {"cache": True}) for n in ("not", "then")]
    described = {"cache": True, "dynamic": True}
    cases += [(f"descriptors, {n} from the cache", host_descriptor, CASES[host_descriptor], described) for n in ("not", "then")]
    cases += [("broken", broken, None, {"shapes": [(7, 18)]}), ("broken later", broken, None, {"shapes": [(4, 16), (8, 20), (6, 18)]})]
    for name, f, want, options in cases:
        if only and name not in only:
            continue
        torch._dynamo.reset()
        torch.manual_seed(0)
        row = {"name": name, "failed": None}
        Recorder.all, Recorder.is_on = [], "PRINTED" in os.environ and not options.get("cache")
        try:
            if f is broken:
                broken(row, **options)
            else:
                run(f, want, row, **options)
            done = inrush.last_compile()
            kernels = [k for g in done.all_graphs() for k in g.kernels]
            row |= {"kernels": kernels, "called": done.fallbacks, "cache": done.cache}
            if f is not broken and Recorder.is_on:
                row["printed"] = write_sources(name)
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"[:3000]
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
