"""Graphs in builds of PyTorch for other vendors, as far as they go without their devices. Run by `test_other_builds.py`.

usage: other_builds.py hip|cuda|xpu|mps FOLDER       a stand-in for what such a build tells of itself, and graphs of fake tensors
       other_builds.py interpret TARGET              models compiled for a GPU, with kernels in Triton's interpreter

Prints a line of JSON for each case.
"""

import json
import os
import pathlib
import sys
import types
import warnings

if sys.argv[1] == "interpret":
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["INRUSH_INTERPRET"] = sys.argv[2]

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def tell(name, **row):
    print(json.dumps({"name": name, **row}), flush=True)


def stand_in(build):
    """Has PyTorch tell of itself what a build of this name tells."""
    torch.version.cuda = "12.8" if build == "cuda" else None
    torch.version.hip = "6.3.42134-a9a80e791" if build == "hip" else None
    torch.version.xpu = "20250300" if build == "xpu" else None
    kind = {"hip": "cuda"}.get(build, build)
    torch.accelerator.current_accelerator = lambda *_, **__: torch.device(kind)
    # AMD's have neither registers nor shared memory here.
    properties = {"major": 9, "minor": 4, "multi_processor_count": 38, "max_threads_per_multi_processor": 2048, "L2_cache_size": 4 << 20}
    names = {"hip": "gfx942:sramecc+:xnack-", "cuda": "NVIDIA H100"}
    properties["gcnArchName"] = names.get(build, "")
    if build == "cuda":
        properties |= {"minor": 0, "multi_processor_count": 132, "regs_per_multiprocessor": 65536, "shared_memory_per_block_optin": 227 << 10}
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(**properties)
    torch.cuda.get_device_capability = lambda *_: (properties["major"], properties["minor"])
    torch.cuda.get_device_name = lambda *_: f"a device of {build}"
    torch.cuda.is_initialized = lambda: build in ("hip", "cuda")
    torch.cuda.device_count = lambda: 2
    torch.cuda.current_device = lambda: 0
    if build == "xpu":
        torch.xpu.get_device_name = torch.cuda.get_device_name
        torch.xpu.get_device_capability = lambda *_: {"architecture": 13136561920}
        torch.xpu.is_initialized = lambda: True
        torch.xpu.is_available = lambda: False
        torch.xpu.device_count = lambda: 1
        torch.xpu.current_device = lambda: 0


def traced(f, device, *sizes):
    """The graph of `f` on tensors of a device that is not there, and on float64 scalars of the host: `sizes` of no dimensions."""
    with FakeTensorMode():
        inputs = [torch.empty(s, device=device) if s else torch.empty(s, dtype=torch.float64) for s in sizes]
        return make_fx(f)(*inputs)


def compiled(name, gm, **settings):
    from inrush import _native

    row = {"failed": None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = _native.compile_fx(gm, {"strict": True, **settings}).report()
            row |= {"kernels": len(report["kernels"]), "called": [c["op"] for c in report["calls"]]}
        except _native.Error as e:
            row["failed"] = f"{type(e).__name__}: {e}"
    tell(name, warned=[str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)], **row)


def build(name, folder):
    stand_in(name)
    import inrush
    from inrush import gpu

    device = {"hip": "cuda"}.get(name, name)
    f = lambda x, y: (torch.softmax(x * 2, -1) + y, (x @ y.t()).relu())  # noqa: E731
    if name in ("hip", "cuda", "xpu"):
        target = gpu.triton_target() if name != "xpu" else None
        tell("told", kind=gpu.kind_of(gpu.torch_name()), target=target, identity=gpu.identity())
    compiled("graph", traced(f, device, (40, 64), (40, 64)))
    compiled("again", traced(f, device, (40, 32), (40, 32)))
    if name == "xpu":
        compiled("preset", traced(f, device, (40, 64), (40, 64)), gpu="xpu:max1550")
        compiled("another preset", traced(f, device, (40, 64), (40, 64)), gpu="cuda:h100")
    binaries = pathlib.Path(os.environ["INRUSH_CACHE_DIR"]).rglob("*")
    tell("binaries", kinds=sorted({p.suffix for p in binaries if p.suffix in (".cubin", ".hsaco", ".spv")}))
    if name in ("hip", "cuda", "xpu"):
        package = os.path.join(folder, "m.inrush")
        with torch.no_grad():
            program = torch.export.export(nn.Linear(8, 4).eval(), (torch.randn(2, 8),))
        # Triton's back end for Intel GPUs is not here: a package of source needs none.
        intel = {"targets": ["max1550"], "kernels": "source"}
        inrush.aot_compile(program, package, **(intel if name == "xpu" else {"targets": ["mi300x"]}))
        for on in ("cuda:0", "xpu:0"):
            try:
                inrush.load(package, device=on)
            except inrush.Error as e:
                tell(f"load on {on}", failed=f"{type(e).__name__}: {e}")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(2, 8))
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3))).log_softmax(-1)


def interpreted():
    import inrush

    def rows(x, y):
        return x.var(0), (x * y).sum(), x.argmax(1), x.t().contiguous(), x.sort(-1)[0] + y.cumsum(1)

    cases = {
        "rows": (rows, (torch.randn(33, 70), torch.randn(33, 70))),
        "halves": (lambda x, y: torch.softmax(x * y, -1).to(torch.bfloat16), (torch.randn(5, 300).half(), torch.randn(5, 300).half())),
        "model": (Classifier().eval(), (torch.randn(3, 3, 12, 12),)),
    }
    for name, (f, inputs) in cases.items():
        with torch.no_grad():
            wanted, got = f(*inputs), torch.compile(f, backend=inrush.backend, options={"strict": True})(*inputs)
        failed = None
        try:
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        except AssertionError as e:
            failed = str(e)
        report = inrush.last_compile().graphs[-1]
        tell(name, failed=failed, kernels=len(report.kernels), called=[c.op for c in report.calls])


if __name__ == "__main__":
    torch.manual_seed(0)
    interpreted() if sys.argv[1] == "interpret" else build(*sys.argv[1:])
