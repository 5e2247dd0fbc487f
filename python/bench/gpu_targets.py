"""Work of models on a GPU in one run: inrush, PyTorch's default backend, and a library or a copy as the limit.

usage: gpu_targets.py [--zoo FOLDER] [--no-default] [--tuned] [NAME ...]

Times are medians in us with cold caches; "device" is the sum of the kernels of a call. The limit is cuBLAS's product alone, PyTorch's
attention, eager's sort, or a copy of the input. `--tuned` has inrush measure tiles and the default backend compile with `mode="max-autotune"`. FOLDER has a `zoo.py` with public
models: their latency is the wall clock of a call at batch 1 in bfloat16 until its work is done, with warm caches. Exit code 1 where a
result is off from eager's in float64 by more than twice eager's error and a rounding.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import torch
from gpu_dynamic import clock, events
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

import inrush  # noqa: F401

ROUNDING = 1e-2


def drawn(*sizes, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(*sizes, device="cuda") * scale).to(dtype)


def product(m, n, k):
    f = lambda x, w, b: torch.relu(torch.addmm(b, x, w.t()))
    args = drawn(m, k), drawn(n, k, scale=0.02), drawn(n)
    return f, args, lambda: torch.mm(args[0], args[1].t())


def gated():
    f = lambda x, a, b, c: torch.mm(F.silu(torch.mm(x, a)) * torch.mm(x, b), c)
    x, a, b, c = drawn(4096, 4096), drawn(4096, 11008, scale=0.02), drawn(4096, 11008, scale=0.02), drawn(11008, 4096, scale=0.02)
    return f, (x, a, b, c), lambda: (torch.mm(x, a), torch.mm(x, b), torch.mm(x.expand(4096, 4096), a))


def eight_bits():
    f = lambda x, w, s: torch.mm(x, w.to(torch.bfloat16).t()) * s
    args = drawn(1, 4096), torch.randint(-127, 127, (4096, 4096), device="cuda", dtype=torch.int8), drawn(4096, scale=0.01)
    return f, args, lambda: args[1].clone()


def causal(b, h, i, j):
    return i >= j


def attention(score=None):
    mask = create_block_mask(causal, None, None, 4096, 4096, device="cuda")
    args = tuple(drawn(4, 16, 4096, 128) for _ in range(3))
    return lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask), args, lambda: F.scaled_dot_product_attention(*args, is_causal=True)


def sort():
    x = drawn(4096, 256, dtype=torch.float32)
    return lambda x: x.sort(-1), (x,), lambda: x.sort(-1)


def group_norm():
    x = drawn(16, 512, 64, 64).to(memory_format=torch.channels_last)
    return lambda x: F.silu(F.group_norm(x, 32)), (x,), lambda: x.clone()


def cross_entropy():
    x, t = drawn(8192, 32000), torch.randint(0, 32000, (8192,), device="cuda")
    return lambda x, t: F.cross_entropy(x, t), (x, t), lambda: x.clone()


WORK = {
    "mm, bias, relu: 4096 x 4096 x 4096": lambda: product(4096, 4096, 4096),
    "mm, bias, relu: 16384 x 1024 x 4096": lambda: product(16384, 1024, 4096),
    "mm, bias, relu: 4096 x 11008 x 4096": lambda: product(4096, 11008, 4096),
    "mm, bias, relu: 8192 x 8192 x 8192": lambda: product(8192, 8192, 8192),
    "gated pair, output: 4096 x 4096 x 11008": gated,
    "mm, bias, relu: 1 x 4096 x 4096": lambda: product(1, 4096, 4096),
    "mm, bias, relu: 16 x 4096 x 4096": lambda: product(16, 4096, 4096),
    "int8 weights: 1 x 4096 x 4096": eight_bits,
    "flex_attention, causal": attention,
    "flex_attention, causal, distance": lambda: attention(lambda s, b, h, i, j: s + 0.01 * (j - i)),
    "sort of 4096 rows of 256": sort,
    "group norm, silu": group_norm,
    "cross entropy": cross_entropy,
}


def device(call, rounds=10):
    """The sum of kernels of a call, us; memory is written in between, so that caches are cold."""
    junk = torch.empty(128 << 20, device="cuda", dtype=torch.int8)
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(rounds):
            junk.zero_()
            call()
        torch.cuda.synchronize()
    kernels = [e for e in p.key_averages() if e.device_type.name == "CUDA" and "FillFunctor" not in e.key and "Memset" not in e.key]
    return sum(e.self_device_time_total for e in kernels) / rounds


def off(got, wanted, eager):
    """True if results are further from those in float64 than twice eager's, and a rounding."""
    flat = torch.utils._pytree.tree_leaves
    error = lambda a, w: ((a.double() - w.double()).norm() / w.double().norm().clamp(min=1e-30)).item()
    return any(error(g, w) > 2 * error(e, w) + ROUNDING for g, w, e in zip(flat(got), flat(wanted), flat(eager)))


def measure(name, make, options):
    f, args, limit = make()
    mode = {"mode": "max-autotune"} if options.tuned else {}
    torch._dynamo.reset()
    ours = torch.compile(f, backend="inrush", options={"strict": True, "tune": options.tuned})
    wide = tuple(a.double() if a.is_floating_point() else a for a in args)
    wrong = False
    # Scores of whole attentions do not fit in memory in float64: `gpu_attention.py` compares short ones.
    if "attention" not in name and "int8" not in name:
        wrong = off(ours(*args), f(*wide), f(*args))
    ours(*args)
    tuned = [line for g in inrush.last_compile().graphs for line in g.tuned]
    calls = {"limit": limit, "inrush": lambda: ours(*args)}
    if not options.no_default:
        theirs = torch.compile(lambda *a: f(*a), **mode)
        theirs(*args)
        calls["default"] = lambda: theirs(*args)
    times = {k: statistics.median(t) for k, t in zip(calls, zip(*([events(c, ()) for c in calls.values()] for _ in range(3))))}
    told = "  ".join(f"{k} {t:8.1f}" for k, t in times.items())
    print(f"{name:42} {told}  device {device(calls['inrush']):8.1f}{'  WRONG' if wrong else ''}", *(f"  {line}" for line in tuned), sep="\n", flush=True)
    return wrong


def model(name, build, options):
    made, args = build()
    made = made.cuda().bfloat16()
    args = tuple(a.cuda().bfloat16() if a.is_floating_point() else a.cuda() for a in args)
    torch._dynamo.reset()
    compiled = torch.compile(made, backend="inrush", options={"strict": True})
    call = lambda: compiled(*args)
    for _ in range(10):
        call()
    latency = clock(call, (), rounds=200)
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
    total = sum(e.self_device_time_total for e in p.key_averages() if e.device_type.name == "CUDA") / 10
    print(f"{name:42} latency {latency:8.1f}  device {total:8.1f}  1.15 of it and 40: {1.15 * total + 40:8.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", help="folder of `zoo.py`")
    parser.add_argument("--no-default", action="store_true", help="leave PyTorch's default backend out")
    parser.add_argument("--tuned", action="store_true", help='tune kernels by measurement')
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    wanted = lambda name: not options.names or any(n in name for n in options.names)
    failed = 0
    with torch.no_grad():
        for name, make in WORK.items():
            if wanted(name):
                torch.manual_seed(0)
                failed += measure(name, make, options)
                torch.cuda.empty_cache()
        if options.zoo:
            sys.path.insert(0, options.zoo)
            import zoo

            for name, build in zoo.ZOO.items():
                if wanted(name):
                    model(name, build, options)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
