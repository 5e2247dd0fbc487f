"""Sorts on a GPU: checks against eager, and times compared with the library and PyTorch's default backend.

usage: gpu_sorts.py [--check] [--time] [--tune] [--device cpu] [--only NAME ...]

Without options it checks and times. Checks draw shapes, dtypes, dimensions, NaN, both zeros and ties, and compare values bit for
bit and positions with eager's stable sorts. A sort of a short row that is left to PyTorch fails, and so does a
long one, or one of eight bytes, that is compiled. Times are medians in ms with cold caches; the first call is in seconds, the kernel's build included.
`--tune` times tiles by measurement too. `--device cpu` checks only, with INRUSH_INTERPRET=cuda:h100 and TRITON_INTERPRET=1.
"""

import argparse
import sys
import time

import torch

import inrush

INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32]
FLOATS = [torch.float16, torch.bfloat16, torch.float32]
WIDE = [torch.int64, torch.float64]
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -1.5, 2.0, 6e-8, -6e-8]


def drawn(dtype, sizes, device, generator):
    """Values of which most have equals, with the ends of the dtype."""
    if dtype.is_floating_point:
        few = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), sizes, generator=generator)]
        many = torch.randn(sizes, generator=generator, dtype=torch.float64)
        x = torch.where(torch.rand(sizes, generator=generator) < 0.5, few, many)
    elif dtype == torch.bool:
        x = torch.rand(sizes, generator=generator) < 0.5
    else:
        info = torch.iinfo(dtype)
        low = max(info.min, -5)
        x = torch.randint(low, low + 12, sizes, generator=generator)
        x = torch.where(torch.rand(sizes, generator=generator) < 0.1, info.max, x)
        x = torch.where(torch.rand(sizes, generator=generator) < 0.1, info.min, x)
    return x.to(dtype).to(device)


def exact(got, want, stable):
    """Equal values, any NaN for any other; of stable sorts with the signs of zeros, which are equal elements."""
    if got.shape != want.shape or got.dtype != want.dtype or got.stride() != want.stride():
        return False
    if not got.dtype.is_floating_point:
        return torch.equal(got, want)
    nan = got.isnan()
    number = got.masked_fill(nan, 0), want.masked_fill(want.isnan(), 0)
    signs = not stable or torch.equal(*(v.signbit() for v in number))
    return torch.equal(nan, want.isnan()) and torch.equal(*number) and signs


def functions(dim, n):
    k = max(n // 3, 1)

    def stable(x):
        return *x.sort(dim=dim, stable=True), *x.sort(dim=dim, descending=True, stable=True), torch.argsort(x, dim=dim, stable=True)

    def values(x):
        return x.sort(dim)[0], x.topk(k, dim)[0], x.topk(k, dim, largest=False)[0], torch.msort(x), x.kthvalue(k, dim)[0]

    def fused(x):
        # Not a negation: eager's turns the sign of NaN, by which its radix sort of long rows puts NaN first.
        y, places = x.abs().sort(dim=dim, stable=True)
        return y + y, places * 2 + 1

    return [stable, values, fused]


def check(device, only, lengths):
    """Compares with eager; gives how many fail."""
    generator, failed, tried = torch.Generator().manual_seed(0), 0, 0
    for dtype in INTEGERS + FLOATS + WIDE:
        for n in lengths:
            name = f"{str(dtype).removeprefix('torch.')} {n}"
            if only and not any(o in name for o in only):
                continue
            rows = 3 if device == "cpu" else 7
            shapes = [((rows, n), 1), ((n, 5), 0), ((2, n, 3), 1), ((n,), 0)]
            for sizes, dim in shapes if n < 1000 else shapes[:2]:
                x = drawn(dtype, sizes, device, generator)
                for f in functions(dim, n):
                    if dtype == torch.bool and f.__name__ != "stable":
                        continue
                    tried += 1
                    # Few rows here.
                    if problem := difference(f, x, n, n <= (1024 if x.stride(dim) == 1 else 512)):
                        failed += 1
                        print(f"FAILED {f.__name__} of {dtype} {sizes} along {dim}: {problem}", flush=True)
    print(f"{tried} functions compared, {failed} fail", flush=True)
    return failed + (tried == 0)


def difference(f, x, n, short):
    """Tells what is wrong; rows are ``short`` if kernels sort them, but for those of eight bytes."""
    torch._dynamo.reset()
    try:
        got = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})(x)
    except Exception as problem:  # All are tried.
        return f"{type(problem).__name__}: {str(problem)[:600]}"
    graphs = inrush.last_compile().graphs
    left = [c.op for g in graphs for c in g.calls] + [op for g in graphs for op in g.libraries]
    if bool(left) != (n > 16 and x.element_size() == 8 or not short):
        return f"left to PyTorch: {left}"
    # On CUDA eager puts NaN of bfloat16 first or last by its sign, unlike on CPUs and in other dtypes.
    want = [w.to(x.device) for w in f(x.cpu())] if x.dtype == torch.bfloat16 and short else f(x)
    wrong = [k for k, (g, w) in enumerate(zip(got, want, strict=True)) if not exact(g, w, f.__name__ != "values")]
    return f"results {wrong} differ" if wrong else None


TIMED = {
    "sort 4096 x 256 float32": ((4096, 256), torch.float32, lambda x: x.sort(-1)),
    "stable, descending 4096 x 256": ((4096, 256), torch.float32, lambda x: x.sort(dim=-1, descending=True, stable=True)),
    "argsort 4096 x 256": ((4096, 256), torch.float32, lambda x: x.argsort(-1)),
    "values of exp 4096 x 256": ((4096, 256), torch.float32, lambda x: x.exp().sort(-1)[0] * 2),
    "sort 4096 x 256 bfloat16": ((4096, 256), torch.bfloat16, lambda x: x.sort(-1)),
    "sort 4096 x 256 int32": ((4096, 256), torch.int32, lambda x: x.sort(-1)),
    "columns 256 x 4096": ((256, 4096), torch.float32, lambda x: x.sort(0)),
    "msort 64 x 16384": ((64, 16384), torch.float32, torch.msort),
    "sort 65536 x 16": ((65536, 16), torch.float32, lambda x: x.sort(-1)),
    "sort 65536 x 32": ((65536, 32), torch.float32, lambda x: x.sort(-1)),
    "sort 16384 x 64": ((16384, 64), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 100": ((4096, 100), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 512": ((4096, 512), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 1000": ((4096, 1000), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 1000 bfloat16": ((4096, 1000), torch.bfloat16, lambda x: x.sort(-1)),
    "sort 8 x 1000": ((8, 1000), torch.float32, lambda x: x.sort(-1)),
    "sort 500 x 1000": ((500, 1000), torch.float32, lambda x: x.sort(-1)),
    "sort 1000 x 1000": ((1000, 1000), torch.float32, lambda x: x.sort(-1)),
    "sort 500 x 1000 bfloat16": ((500, 1000), torch.bfloat16, lambda x: x.sort(-1)),
    "sort 4096 x 2048": ((4096, 2048), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 4096": ((4096, 4096), torch.float32, lambda x: x.sort(-1)),
    "sort 4096 x 4096 bfloat16": ((4096, 4096), torch.bfloat16, lambda x: x.sort(-1)),
    "sort 1 x 4096": ((1, 4096), torch.float32, lambda x: x.sort(-1)),
    "sort 8 x 4096": ((8, 4096), torch.float32, lambda x: x.sort(-1)),
    "topk 32 of 4096 x 256": ((4096, 256), torch.float32, lambda x: x.topk(32)),
    "topk 50 of 64 x 4096": ((64, 4096), torch.float32, lambda x: x.topk(50)),
    "topk 50 of 4096 x 4096": ((4096, 4096), torch.float32, lambda x: x.topk(50)),
    "median 4096 x 256": ((4096, 256), torch.float32, lambda x: x.median(-1)),
}


def times(only, tune):
    """Times each function in eager, with inrush, and with the default backend."""
    import triton

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, ms (first call in s)")
    median = lambda f: triton.testing.do_bench(f, warmup=15, rep=80, return_mode="median")  # noqa: E731
    ways = {"inrush": {"backend": "inrush"}, "default": {}}
    if tune:
        ways["tuned"] = {"backend": "inrush", "mode": "max-autotune"}
    for name, (sizes, dtype, f) in TIMED.items():
        if only and not any(o in name for o in only):
            continue
        torch.manual_seed(0)
        x = torch.randint(-(1 << 30), 1 << 30, sizes, device="cuda", dtype=dtype) if not dtype.is_floating_point else torch.randn(sizes, device="cuda", dtype=dtype)
        row = {"library": median(lambda: f(x))}
        text = ""
        for way, options in ways.items():
            try:
                torch._dynamo.reset()
                compiled = torch.compile(f, **options)
                start = time.perf_counter()
                compiled(x)
                torch.cuda.synchronize()
                first = time.perf_counter() - start
                row[way] = median(lambda: compiled(x))
                text += f", {way} {row[way]:.4f} ({first:.1f})"
            except Exception as problem:  # The other backend is timed all the same.
                text += f", {way}: {type(problem).__name__}: {str(problem)[:300]}"
        against = "".join(f", {row[k] / row['inrush']:.2f} x {k}" for k in ("library", "default") if k in row and "inrush" in row)
        print(f"{name:30} library {row['library']:.4f}{text}{against}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--tune", action="store_true", help="tiles by measurement as well")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    both = not (args.check or args.time)
    cpu = args.device == "cpu"
    failed = check(args.device, args.only, (7, 33, 100) if cpu else (2, 7, 16, 17, 64, 100, 256, 512, 1000, 1024)) if args.check or both else 0
    if (args.time or both) and not cpu:
        times(args.only, args.tune)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
