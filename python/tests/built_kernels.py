"""Triton kernels of users, built for a GPU that is not there. Run by `test_gpu_kernels.py`.

usage: built_kernels.py ["without triton"]
"""

import json
import os
import sys

os.environ["INRUSH_GPU"] = "cuda:h100"

import torch
import triton
import triton.language as tl
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inrush import _native
from inrush.triton import user_kernels


@triton.jit
def good_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sqrt(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def bad_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.no_such_function(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def described_kernel(x, out, n, BLOCK: tl.constexpr):
    at = [tl.program_id(0) * BLOCK]
    out.store(at, tl.sqrt(x.load(at)) * n)


def graph(kernel, described=None):
    """The graph of one launch as AOTAutograd gives it."""
    g = torch.fx.Graph()
    with FakeTensorMode():
        x = g.placeholder("x")
        x.meta["val"] = torch.empty(100, device="cuda")
        out = g.call_function(torch.ops.aten.empty_like.default, (x,))
        out.meta["val"] = torch.empty(100, device="cuda")
        wrapped = g.call_function(
            triton_kernel_wrapper_functional,
            kwargs={
                "kernel_idx": kernel_side_table.add_kernel(kernel),
                "constant_args_idx": kernel_side_table.add_constant_args({"BLOCK": 32, "n": 100}),
                "grid": [(4, 1, 1)],
                "tma_descriptor_metadata": described or {},
                "kwargs": {"x": x, "out": out},
                "tensors_to_clone": ["out"],
            },
        )
        wrapped.meta["val"] = {"out": torch.empty(100, device="cuda")}
        item = g.call_function(__import__("operator").getitem, (wrapped, "out"))
        item.meta["val"] = torch.empty(100, device="cuda")
    g.output((item,))
    return torch.fx.GraphModule(torch.nn.Module(), g)


def few():
    """The greatest of one row: its values and its places are put together by the same code in one launch."""
    g = torch.fx.Graph()
    with FakeTensorMode():
        x = g.placeholder("x")
        x.meta["val"] = torch.empty(1, 300, device="cuda")
        both = g.call_function(torch.ops.aten.topk.default, (x, 4))
        both.meta["val"] = torch.ops.aten.topk.default(x.meta["val"], 4)
        parts = [g.call_function(__import__("operator").getitem, (both, k)) for k in (0, 1)]
        for k, part in enumerate(parts):
            part.meta["val"] = both.meta["val"][k]
    g.output(tuple(parts))
    return torch.fx.GraphModule(torch.nn.Module(), g)


def traced(f, *inputs):
    """The graph of ``f`` on tensors of a GPU of these sizes and dtypes."""
    with FakeTensorMode():
        return make_fx(f)(*[torch.empty(size, dtype=dtype, device="cuda") for size, dtype in inputs])


def eight_bits(x, codes):
    """Loads, casts and stores of both kinds, laid out anew too."""
    kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
    return *[(x * 3).clamp(-448, 448).to(k).t().contiguous() for k in kinds], *[x.to(k) for k in kinds], codes.float().sum(1)


def without_triton():
    """As on a machine that does not have it."""
    import importlib.metadata

    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    importlib.metadata.version = version
    importlib.metadata.entry_points = lambda **_: []


def main():
    codes = traced(eight_bits, ((33, 48), torch.bfloat16), ((33, 48), torch.float8_e4m3fn))
    later = traced(lambda x: torch.softmax(x * 2, -1), ((40, 1000), torch.bfloat16))
    turned = traced(lambda x: x.t().contiguous(), ((256, 512), torch.bfloat16))
    cases = (("good", graph(good_kernel)), ("bad", graph(bad_kernel)), ("few", few()), ("eight bits", codes), ("map", turned))
    blocks = {name: ("stable", ([32],)) for name in ("x", "out")}
    cases += tuple((name, graph(described_kernel, blocks)) for name in ("descriptors", "descriptors on a100"))
    cases += (("later", later), ("bad later", graph(bad_kernel)))
    if sys.argv[1:] == ["without triton"]:
        without_triton()
        cases = (("without triton", graph(good_kernel)),)
    for name, gm in cases:
        gm = user_kernels.rewrite(gm)
        row = {"name": name, "failed": None}
        try:
            settings = {"gpu": "cuda:a100" if "a100" in name else "cuda:h100", "strict": True, "pointers": "map" if name == "map" else "plain", "later": "later" in name}
            compiled = _native.compile_fx(gm, settings)
            row["waits"] = True
            row |= {"kernels": compiled.report()["kernels"]}
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
