"""Host time of functions with Triton kernels of the user's, on a GPU: what a call takes until it returns.

    python gpu_user_kernels.py [--ways inrush inductor]

Tensors are so small that the device is always ahead. One kernel alone, an autotuned one, and one that takes a descriptor made by the
host, each between two pointwise operators. Results are compared with eager first.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


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
    x = torch.randn(64, 64, device="cuda")
    for f in (plain, tuned, described):
        row = {"function": f.__name__}
        with torch.no_grad():
            wanted = f(x)
            for way in a.ways:
                torch._dynamo.reset()
                try:
                    start = time.perf_counter()
                    compiled = torch.compile(f, backend=way)
                    torch.testing.assert_close(compiled(x), wanted)
                    row[f"{way}_first_s"] = round(time.perf_counter() - start, 2)
                    for _ in range(3):
                        torch.testing.assert_close(compiled(x), wanted)
                    row[f"{way}_us"] = round(host_us(compiled, x), 1)
                except Exception as error:
                    row[f"{way}_failed"] = f"{type(error).__name__}: {error}"[:300]
            row["eager_us"] = round(host_us(f, x), 1)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
