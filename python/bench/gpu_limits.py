"""What Triton reaches on this GPU for products, attention, sorting, losses and norms: limits for generated kernels.

usage: gpu_limits.py [--only NAME ...] [--seconds S]

Each part prints the library's time and the fastest configurations of a kernel written by hand, in ms (medians, caches flushed, warm
device). Kernels are the forms that a generator can print: persistent products over tensor descriptors with a fused epilogue, matrix-vector
products, online softmax over descriptors, packed keys for sorting, one pass over logits, partial sums for group norms.
A configuration that does not build on the installed Triton is counted, not shown. Results are compared with PyTorch's.
"""

import argparse
import itertools
import time

import torch
import triton
import triton.language as tl
from torch.nn import functional as F
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634


class Clock:
    """Takes medians until the time is over."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def over(self):
        return time.monotonic() > self.end

    def fastest(self, what, launch, configurations, most=4):
        """Prints the fastest of the configurations that ``launch`` takes as arguments."""
        rows, refused = [], 0
        for configuration in configurations:
            if self.over():
                break
            try:
                launch(*configuration)
                torch.cuda.synchronize()
                rows.append((median(lambda c=configuration: launch(*c)), configuration))
            except Exception:  # Triton's compiler raises exceptions of many kinds.
                refused += 1
        for ms, configuration in sorted(rows)[:most]:
            print(f"  {what} {ms:.4f} {configuration}", flush=True)
        if refused:
            print(f"  {what}: {refused} configurations do not build", flush=True)


def median(f):
    return triton.testing.do_bench(f, warmup=10, rep=60, return_mode="median")


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


@triton.jit
def swizzle(tile, num_m, num_n, GROUP: tl.constexpr):
    per = GROUP * num_n
    g = tile // per
    first = g * GROUP
    rows = tl.minimum(num_m - first, GROUP)
    return first + (tile % per) % rows, (tile % per) // rows


@triton.jit
def product(a, b, c, bias, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, TRANSPOSED: tl.constexpr, SPECIALIZE: tl.constexpr, FLATTEN: tl.constexpr):  # fmt: skip
    """A persistent product with bias and relu. PARTS of 2 stores the tile in halves, which needs less shared memory."""
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE):
        pm, pn = swizzle(tile, num_m, num_n, GROUP)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            x = a.load([pm * BM, k * BK])
            if TRANSPOSED:
                acc = tl.dot(x, b.load([pn * BN, k * BK]).T, acc)
            else:
                acc = tl.dot(x, b.load([k * BK, pn * BN]), acc)
        if PARTS == 1:
            v = tl.load(bias + pn * BN + tl.arange(0, BN)).to(tl.float32)
            c.store([pm * BM, pn * BN], tl.maximum(acc + v[None, :], 0).to(tl.bfloat16))
        else:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
            cols = pn * BN + tl.arange(0, BN // 2)
            left = tl.maximum(left + tl.load(bias + cols).to(tl.float32)[None, :], 0)
            right = tl.maximum(right + tl.load(bias + cols + BN // 2).to(tl.float32)[None, :], 0)
            c.store([pm * BM, pn * BN], left.to(tl.bfloat16))
            c.store([pm * BM, pn * BN + BN // 2], right.to(tl.bfloat16))


def products(clock):
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = [(128, 256, 64, 3, 1), (128, 256, 64, 3, 2), (128, 256, 64, 4, 2)]
    for M, K, N in ((4096, 4096, 4096), (16384, 1024, 4096), (4096, 11008, 4096), (8192, 8192, 8192)):
        x, w, bias, out = bf16(M, K), bf16(K, N) / 64, bf16(N), bf16(M, N)
        stored = {False: w, True: w.t().contiguous()}
        print(f"mm {M} x {K} x {N}: library {median(lambda: x @ w):.4f}, transposed weights {median(lambda: x @ stored[True].t()):.4f}")

        def launch(transposed, BM, BN, BK, stages, parts, specialize, flatten):
            a = TensorDescriptor.from_tensor(x, [BM, BK])
            b = TensorDescriptor.from_tensor(stored[transposed], [BN, BK] if transposed else [BK, BN])
            c = TensorDescriptor.from_tensor(out, [BM, BN // parts])
            grid = (min(programs, triton.cdiv(M, BM) * triton.cdiv(N, BN)),)
            product[grid](a, b, c, bias, M, N, K, BM, BN, BK, 8, parts, transposed, specialize, flatten, num_warps=8, num_stages=stages)

        ways = [(False, False), (False, True), (True, False)]
        clock.fastest("product", launch, [(t, *tile, *way) for t in (False, True) for tile in tiles for way in ways])
        launch(False, *tiles[0], False, False)
        torch.testing.assert_close(out, torch.relu(x @ w + bias), atol=0.3, rtol=0.05)


@triton.jit
def rows_of_k(x, w, out, N, K, BN: tl.constexpr, BK: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN, BK), tl.float32)
    for k in range(0, K, BK):
        kk = k + tl.arange(0, BK)
        acc += tl.load(w + n[:, None] * K + kk[None, :]).to(tl.float32) * tl.load(x + kk).to(tl.float32)[None, :]
    tl.store(out + n, tl.sum(acc, 1).to(tl.bfloat16))


@triton.jit
def columns_of_n(x, w, out, N, K, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    each = K // SPLIT
    acc = tl.zeros((BK, BN), tl.float32)
    for k in range(0, each, BK):
        kk = tl.program_id(1) * each + k + tl.arange(0, BK)
        acc += tl.load(w + kk[:, None] * N + n[None, :]).to(tl.float32) * tl.load(x + kk).to(tl.float32)[:, None]
    s = tl.sum(acc, 0)
    tl.atomic_add(out + n, s, sem="relaxed")


def vectors(clock):
    """One row times 4096 x 4096 weights."""
    N = K = 4096
    x, w, out, total = bf16(1, K), bf16(K, N), bf16(1, N), torch.zeros(1, N, device="cuda")
    by_rows = w.t().contiguous()
    small = torch.randint(-127, 127, (N, K), device="cuda", dtype=torch.int8)
    print(f"mv: library {median(lambda: x @ w):.4f}, transposed weights {median(lambda: x @ by_rows.t()):.4f}, reading {median(lambda: w.view(torch.int32).sum()):.4f}")
    tiles = [(n, k, warps) for n, k, warps in itertools.product((1, 2, 4, 8, 16), (512, 1024, 2048, 4096), (2, 4, 8)) if 2048 <= n * k <= 16384]
    for name, weights in (("bf16", by_rows), ("int8", small)):
        clock.fastest(name, lambda n, k, warps, w=weights: rows_of_k[(N // n,)](x, w, out, N, K, n, k, num_warps=warps), tiles)
    tiles = [t for t in itertools.product((64, 128, 256), (16, 32, 64), (4, 8, 16, 32), (4, 8)) if t[0] * t[1] <= 8192]
    clock.fastest("split-K", lambda n, k, split, warps: columns_of_n[(N // n, split)](x, w, total, N, K, n, k, split, num_warps=warps), tiles)


@triton.jit
def attend(q, k, v, o, scale, S, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BIAS: tl.constexpr):
    # The longest rows first.
    m = tl.num_programs(0) - 1 - tl.program_id(0)
    base = tl.program_id(1) * S
    qt = q.load([base + m * BM, 0])
    rows = m * BM + tl.arange(0, BM)
    mx = tl.full((BM,), float("-inf"), tl.float32)
    den = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for stage in tl.static_range(2):
        if stage == 0:
            lo, hi = 0, m * BM
        else:
            lo, hi = m * BM, (m + 1) * BM
        for n in tl.range(lo, hi, BN):
            s = tl.dot(qt, k.load([base + n, 0]).T)
            cols = n + tl.arange(0, BN)
            if BIAS:
                s = s * scale + (cols[None, :] - rows[:, None]).to(tl.float32) * 0.01
            else:
                s = s * scale
            if stage == 1:
                s = tl.where(rows[:, None] >= cols[None, :], s, -1.0e6)
            new = tl.maximum(mx, tl.max(s, 1))
            p = tl.exp2(s - new[:, None])
            f = tl.exp2(mx - new)
            den = den * f + tl.sum(p, 1)
            acc = acc * f[:, None]
            acc = tl.dot(p.to(tl.bfloat16), v.load([base + n, 0]), acc)
            mx = new
    o.store([base + m * BM, 0], (acc / den[:, None]).to(tl.bfloat16))


def attention(clock):
    """Causal attention of 4 x 16 x 4096 x 128, without and with a bias by distance."""
    B, H, S, D = 4, 16, 4096, 128
    q, k, v = (bf16(B, H, S, D) for _ in range(3))
    out = torch.empty_like(q)
    print(f"attention: library {median(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)):.4f}")
    for bias in (True, False):

        def launch(BM, BN, warps, stages):
            maps = [TensorDescriptor.from_tensor(t.view(-1, D), [b, D]) for t, b in ((q, BM), (k, BN), (v, BN), (out, BM))]
            attend[(S // BM, B * H)](*maps, D**-0.5 * LOG2_E, S, D, BM, BN, bias, num_warps=warps, num_stages=stages)

        tiles = [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 8, 4), (128, 64, 4, 3), (64, 64, 4, 3)]
        clock.fastest("with a bias" if bias else "causal", launch, tiles)
    launch(128, 128, 8, 3)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=0.02, rtol=0.02)


@triton.jit
def cross_entropy(x, t, out, V, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = tl.full((B,), float("-inf"), tl.float32)
    s = tl.zeros((B,), tl.float32)
    for i in range(0, V, B):
        k = i + tl.arange(0, B)
        v = tl.load(x + row * V + k, mask=k < V, other=float("-inf")).to(tl.float32)
        n = tl.maximum(m, v)
        s = s * tl.exp(m - n) + tl.exp(v - n)
        m = n
    top = tl.max(m, 0)
    total = tl.sum(s * tl.exp(m - top), 0)
    tl.store(out + row, tl.log(total) + top - tl.load(x + row * V + tl.load(t + row)).to(tl.float32))


def losses(clock):
    """Cross entropy of 8192 rows of 32000 logits, one pass."""
    for dtype in (torch.bfloat16, torch.float32):
        x, t = torch.randn(8192, 32000, device="cuda", dtype=dtype), torch.randint(0, 32000, (8192,), device="cuda")
        out = torch.empty(8192, device="cuda")
        print(f"cross entropy of {dtype}: reading {median(lambda: x.view(torch.int32).sum()):.4f}")
        launch = lambda b, warps: cross_entropy[(8192,)](x, t, out, 32000, b, num_warps=warps, num_stages=3)  # noqa: E731, B023
        clock.fastest("one pass", launch, itertools.product((1024, 2048, 4096), (4, 8, 16)))
        launch(1024, 4)
        torch.testing.assert_close(out, F.cross_entropy(x.float(), t, reduction="none"))


@triton.jit
def sort_rows(x, v, i, N: tl.constexpr, R: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, N)
    at = r[:, None] * N + c[None, :]
    b = tl.load(x + at).to(tl.int32, bitcast=True)
    key = tl.where(b < 0, b ^ 0x7FFFFFFF, b)
    packed = (key.to(tl.int64) << 32) | c[None, :].to(tl.int64)
    packed = tl.sort(packed, dim=1)
    key = (packed >> 32).to(tl.int32)
    tl.store(v + at, tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True))
    tl.store(i + at, packed & 0xFFFFFFFF)


def sorts(clock):
    """4096 rows of 256 floats, with positions: key and position in one integer."""
    x, positions = torch.randn(4096, 256, device="cuda"), torch.empty(4096, 256, device="cuda", dtype=torch.int64)
    values = torch.empty_like(x)
    print(f"sort: library {median(lambda: x.sort(-1)):.4f}")
    launch = lambda rows, warps: sort_rows[(4096 // rows,)](x, values, positions, 256, rows, num_warps=warps)  # noqa: E731
    clock.fastest("packed keys", launch, itertools.product((1, 2, 4, 8), (1, 2, 4, 8)))
    launch(1, 1)
    wanted = x.sort(dim=-1, stable=True)
    assert torch.equal(values, wanted[0]) and torch.equal(positions, wanted[1])


@triton.jit
def group_sums(x, part, C: tl.constexpr, HW, PIX: tl.constexpr, CHUNKS: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr):
    img, ch = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, C)
    s = tl.zeros((STEP, C), tl.float32)
    q = tl.zeros((STEP, C), tl.float32)
    for p in range(0, PIX, STEP):
        at = (img.to(tl.int64) * HW + ch * PIX + p + tl.arange(0, STEP))[:, None] * C + c[None, :]
        v = tl.load(x + at).to(tl.float32)
        s += v
        q += v * v
    s = tl.sum(tl.reshape(tl.sum(s, 0), (G, C // G)), 1)
    q = tl.sum(tl.reshape(tl.sum(q, 0), (G, C // G)), 1)
    o = (img * CHUNKS + ch) * 2 * G + tl.arange(0, G)
    tl.store(part + o, s)
    tl.store(part + o + G, q)


@triton.jit
def normalize_groups(x, part, w, b, y, C: tl.constexpr, HW, PIX: tl.constexpr, CHUNKS: tl.constexpr, G: tl.constexpr, STEP: tl.constexpr, ALL: tl.constexpr):
    img, ch = ALL - 1 - tl.program_id(0), tl.program_id(1)
    o = (img * CHUNKS + tl.arange(0, CHUNKS))[:, None] * 2 * G + tl.arange(0, G)[None, :]
    n = HW * (C // G)
    mean = tl.sum(tl.load(part + o), 0) / n
    r = tl.rsqrt(tl.sum(tl.load(part + o + G), 0) / n - mean * mean + 1e-5)
    mean = tl.reshape(tl.broadcast_to(mean[:, None], (G, C // G)), (C,))
    r = tl.reshape(tl.broadcast_to(r[:, None], (G, C // G)), (C,))
    c = tl.arange(0, C)
    r = r * tl.load(w + c).to(tl.float32)
    add = tl.load(b + c).to(tl.float32) - mean * r
    for p in range(0, PIX, STEP):
        at = (img.to(tl.int64) * HW + ch * PIX + p + tl.arange(0, STEP))[:, None] * C + c[None, :]
        v = tl.load(x + at).to(tl.float32) * r[None, :] + add[None, :]
        tl.store(y + at, (v * tl.sigmoid(v)).to(y.dtype.element_ty))


def groups(clock):
    """Group norm and silu, channels last, 16 x 512 x 64 x 64: two launches, the second over the images in reverse."""
    x = bf16(16, 512, 64, 64).to(memory_format=torch.channels_last)
    w, b, y = bf16(512), bf16(512), torch.empty_like(x)
    print(f"group norm: copy {median(lambda: y.copy_(x)):.4f}")

    def launch(pixels, fewer, step, warps):
        chunks = 4096 // pixels
        sums = torch.empty(16 * chunks * 64, device="cuda")
        group_sums[(16, chunks)](x, sums, 512, 4096, pixels, chunks, 32, step, num_warps=warps)
        normalize_groups[(16, 4096 // fewer)](x, sums, w, b, y, 512, 4096, fewer, chunks, 32, step, 16, num_warps=warps)

    clock.fastest("two launches", launch, itertools.product((64, 128, 256), (32, 64), (4, 8), (4, 8)))
    launch(128, 32, 4, 4)
    torch.testing.assert_close(y, F.silu(F.group_norm(x.float(), 32, w.float(), b.float())).to(y.dtype), atol=0.05, rtol=0.05)


PARTS = {"products": products, "vectors": vectors, "attention": attention, "losses": losses, "sorts": sorts, "groups": groups}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(PARTS), help="parts to run; all by default")
    parser.add_argument("--seconds", type=float, default=300, help="try no more configurations after so many")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "Triton", triton.__version__)
    clock = Clock(options.seconds)
    for name in options.only or PARTS:
        PARTS[name](clock)


if __name__ == "__main__":
    main()
