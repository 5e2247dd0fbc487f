"""Host time of functions with Triton kernels of the user's, on a GPU: what a call takes until it returns.

    python gpu_user_kernels.py [--ways inrush inductor]

Tensors are so small that the device is always ahead. One kernel alone, an autotuned one, and ones that take descriptors made by the
host, each between two pointwise operators. Then layers in bfloat16 whose weights have 128 MiB, a call of which is one recording.
Results are compared with eager first, and "called" lists what is launched through Python.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import inrush


@triton.jit
def plain_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 256) for w in (1, 4)], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@triton.jit
def described_kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    value = x.load([tl.program_id(0) * ROWS, 0])
    out.store([tl.program_id(0) * ROWS, 0], value * 3)


@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (1, 4)], key=[])
@triton.jit
def tuned_described_kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    value = x.load([tl.program_id(0) * ROWS, 0])
    out.store([tl.program_id(0) * ROWS, 0], value * 3)


@triton.jit
def mixed_kernel(bias, x, by, out, n, DEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Three dimensions, between arguments of other kinds."""
    at = [tl.program_id(0) * DEEP, tl.program_id(1) * ROWS, tl.program_id(2) * COLUMNS]
    out.store(at, (x.load(at).to(tl.float32) * by + tl.load(bias) + n).to(tl.bfloat16))


def plain(x):
    y, out = x + 1, torch.empty_like(x)
    plain_kernel[(triton.cdiv(x.numel(), 256),)](y, out, x.numel(), BLOCK=256)
    return out.relu()


def tuned(x):
    y, out = x + 1, torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](y, out, x.numel())
    return out.relu()


def described(x):
    y, out = x + 1, torch.empty_like(x)
    rows, columns = 16, 64
    a, b = (TensorDescriptor.from_tensor(t, [rows, columns]) for t in (y, out))
    described_kernel[(x.shape[0] // rows,)](a, b, ROWS=rows, COLUMNS=columns)
    return out.relu()


def described_dynamic(x):
    """Sizes are symbols."""
    return described(x)


def described_tuned(x):
    y, out = x + 1, torch.empty_like(x)
    a, b = (TensorDescriptor.from_tensor(t, [16, 64]) for t in (y, out))
    tuned_described_kernel[(x.shape[0] // 16,)](a, b, ROWS=16, COLUMNS=64)
    return out.relu()


def described_twice(x):
    """A strided tensor that two launches read through equal descriptors."""
    y = torch.stack([x, x * 2]).bfloat16().transpose(0, 1)
    outs = torch.empty_like(y), torch.empty_like(y)
    for k, out in enumerate(outs):
        a, b = (TensorDescriptor.from_tensor(t, [4, 2, 64]) for t in (y, out))
        mixed_kernel[(triton.cdiv(y.shape[0], 4), 1, triton.cdiv(y.shape[2], 64))](x, a, 0.5 + k, b, k + 2, DEEP=4, ROWS=2, COLUMNS=64)
    return outs[0].relu(), outs[1].float() + 1


class Layers(torch.nn.Module):
    """Eight layers as in a transformer, without attention."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.ModuleList(torch.nn.Linear(1024, 4096) for _ in range(8))
        self.down = torch.nn.ModuleList(torch.nn.Linear(4096, 1024) for _ in range(8))
        self.norm = torch.nn.ModuleList(torch.nn.LayerNorm(1024) for _ in range(8))

    def forward(self, x):
        for up, down, norm in zip(self.up, self.down, self.norm):
            x = norm(down(torch.nn.functional.gelu(up(x))) + x)
        return x


def host_us(call, x, seconds=1.0):
    """The lower quartile of what a call takes, in microseconds; the device is done before the next series begins."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            call(x)
        times.append((time.perf_counter() - start) / 20)
    return sorted(times)[len(times) // 4] * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="*", default=["inrush", "inductor"])
    a = parser.parse_args()
    small = torch.randn(64, 64, device="cuda")
    layers = Layers().cuda().bfloat16()
    cases = [(f.__name__, f, small) for f in (plain, tuned, described, described_dynamic, described_tuned, described_twice)]
    cases.append(("layers", layers, torch.randn(128, 1024, device="cuda", dtype=torch.bfloat16)))
    for name, f, x in cases:
        row = {"function": name}
        near = {"rtol": 5e-2, "atol": 5e-2} if f is layers else {}
        with torch.no_grad():
            wanted = f(x)
            for way in a.ways:
                torch._dynamo.reset()
                try:
                    start = time.perf_counter()
                    compiled = torch.compile(f, backend=way, dynamic=f is described_dynamic or None)
                    torch.testing.assert_close(compiled(x), wanted, **near)
                    row[f"{way}_first_s"] = round(time.perf_counter() - start, 2)
                    for _ in range(3):
                        torch.testing.assert_close(compiled(x), wanted, **near)
                    if f is described_dynamic:
                        for rows in (32, 128):
                            more = torch.randn(rows, 64, device="cuda")
                            torch.testing.assert_close(compiled(more), f(more))
                    if way == "inrush":
                        row["called"] = inrush.last_compile().fallbacks
                    row[f"{way}_us"] = round(host_us(compiled, x), 1)
                except Exception as error:
                    row[f"{way}_failed"] = f"{type(error).__name__}: {error}"[:300]
            row["eager_us"] = round(host_us(f, x), 1)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
