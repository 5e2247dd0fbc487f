"""Runs printed graphs in a process that has no inrush, and compares them with what `printed.py` noted. Run by `test_source.py`.

usage: run_printed.py FOLDER [SHIMS | build NAME ...]

SHIMS are additions to Triton's interpreter. With `build` the kernels of these graphs are built for the GPU that they were written
for, which need not be there. Prints a line of JSON for each graph: `{"name", "failed", "kernels"}`.
"""

import importlib.util
import json
import os
import sys

# An import of it fails from here on.
sys.modules["inrush"] = None

import torch


def load(path):
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shares(outputs, inputs):
    """Which inputs each output shares memory with."""
    address = lambda v: v.untyped_storage().data_ptr() if isinstance(v, torch.Tensor) and v.numel() else None  # noqa: E731
    return [[k for k, v in enumerate(inputs) if address(o) is not None and address(v) == address(o)] for o in outputs]


def compare(module, case):
    inputs, wanted, after, state = case
    torch.set_rng_state(state)
    got = list(module.call(*inputs))
    assert len(got) == len(wanted), f"{len(got)} outputs, {len(wanted)} wanted"
    torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-4, equal_nan=True)
    torch.testing.assert_close(inputs, after, rtol=2e-3, atol=2e-4, equal_nan=True)
    for k, (a, b) in enumerate(zip(got, wanted)):
        if isinstance(a, torch.Tensor) and a.numel():
            pairs = zip(a.shape, a.stride(), b.stride())
            assert all(n == 1 or s == t for n, s, t in pairs), f"output {k}: strides {a.stride()}, wanted {b.stride()}"
    ours, theirs = shares(got, inputs), shares(wanted, after)
    assert ours == theirs, f"outputs share memory with the inputs {ours}, wanted {theirs}"


def build(module):
    """Builds the kernels of a file; gives their number."""
    kernels = [v for v in vars(module).values() if isinstance(v, module.Kernel)]
    for kernel in kernels:
        assert kernel.build().asm["cubin"]
    return len(kernels)


def main():
    folder, *rest = sys.argv[1:]
    builds = rest[0] == "build" if rest else False
    shims = None
    if rest and not builds:
        shims = load(rest[0])
        shims.patch()
    for name in rest[1:] if builds else sorted(os.listdir(folder)):
        row = {"name": name, "failed": None, "kernels": 0}
        if not os.path.exists(os.path.join(folder, name, "case.pt")):
            continue
        try:
            module = load(os.path.join(folder, name, "source.py"))
            if builds:
                row["kernels"] = build(module)
            else:
                if shims is not None:
                    shims.supply(module)
                compare(module, torch.load(os.path.join(folder, name, "case.pt"), weights_only=False))
                module.inputs()
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row), flush=True)


main()
