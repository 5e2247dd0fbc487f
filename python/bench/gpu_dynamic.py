"""Dynamic sizes on a GPU: time of `torch.compile(dynamic=True)` by that of `dynamic=False`, for kernels and public models.

usage: gpu_dynamic.py [--zoo FOLDER] [--default] [NAME ...]

Both functions are compiled in one process and timed in turns. Each line has the medians in us, static and dynamic, and their
quotient: kernels by events with cold caches, models by the wall clock of a call until its work is done. `--default` adds the same
quotient of PyTorch's default backend. FOLDER has a `zoo.py` with public models. Exit code 1 where the dynamic result is off from the
static one.
"""

import argparse
import statistics
import sys
import time

import torch
from torch.nn import functional as F

import inrush  # noqa: F401


def drawn(*sizes, dtype=torch.bfloat16):
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def nhwc():
    return drawn(16, 512, 64, 64).to(memory_format=torch.channels_last)


# Name: a function and what makes its inputs.
KERNELS = {
    "pointwise": (lambda x, y: F.gelu(x) * torch.sigmoid(y) + x, lambda: (drawn(8192, 4096), drawn(8192, 4096))),
    "bias, relu": (lambda x, b: torch.relu(x + b), lambda: (drawn(8192, 4096), drawn(4096))),
    "transposition": (lambda x: x.t().contiguous() * 2, lambda: (drawn(16384, 4096),)),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (drawn(8192, 5000),)),
    "layer norm of few long rows": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (drawn(400, 50257),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (drawn(8192, 4096),)),
    "softmax of few long rows": (lambda x: torch.softmax(x, -1), lambda: (drawn(70, 50257),)),
    "sum of all": (lambda x: x.sum(), lambda: (drawn(10_000_019, dtype=torch.float32),)),
    "sums of rows": (lambda x: x.sum(-1), lambda: (drawn(8192, 8192),)),
    "sums of columns": (lambda x: x.sum(0), lambda: (drawn(16383, 4095, dtype=torch.float32),)),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), lambda: (drawn(8192, 32000), torch.randint(0, 32000, (8192,), device="cuda"))),
    "group norm, silu": (lambda x: F.silu(F.group_norm(x, 32)), lambda: (nhwc(),)),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (drawn(4096, 4096, dtype=torch.float32),)),
    "cumsum of one row": (lambda x: x.cumsum(-1), lambda: (drawn(8_000_000, dtype=torch.float32),)),
    "sort of rows": (lambda x: x.sort(-1).values, lambda: (drawn(4096, 256, dtype=torch.float32),)),
    "mm, bias, relu": (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), lambda: (drawn(4096, 4096), drawn(4096, 4096), drawn(4096))),
    "mm of one row": (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), lambda: (drawn(1, 4096), drawn(4096, 4096), drawn(4096))),
    "mm of 16 rows": (lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())), lambda: (drawn(16, 4096), drawn(4096, 4096), drawn(4096))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: tuple(drawn(4, 16, 2048, 128) for _ in range(3)),
    ),
}


def compiled(f, backend, dynamic):
    torch._dynamo.reset()
    options = {"backend": "inrush", "options": {"strict": True}} if backend == "inrush" else {}
    return torch.compile(f, dynamic=dynamic, **options)


def events(f, args):
    """Median of the device's time of a call, us, with cold caches."""
    import triton

    return 1e3 * triton.testing.do_bench(lambda: f(*args), warmup=10, rep=60, return_mode="median")


def clock(f, args, rounds=100):
    """Median of the time of a call until its work is done, us."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f(*args)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(f, args, backend, timer):
    """Times of the static and of the dynamic function, and how far apart their results are."""
    static = compiled(f, backend, False)
    static(*args)
    first = static(*args)
    # Not reset in between: both stay compiled.
    options = {"backend": "inrush", "options": {"strict": True}} if backend == "inrush" else {}
    dynamic = torch.compile(lambda *a: f(*a), dynamic=True, **options)
    dynamic(*args)
    second = dynamic(*args)
    flat = torch.utils._pytree.tree_leaves
    off = max((a.double() - b.double()).norm().item() / max(b.double().norm().item(), 1e-30) for a, b in zip(flat(first), flat(second)))
    turns = [(timer(static, args), timer(dynamic, args)) for _ in range(3)]
    return *(statistics.median(t) for t in zip(*turns)), off


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zoo", help="folder of `zoo.py`")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    work = [(name, f, make, events) for name, (f, make) in KERNELS.items()]
    if options.zoo:
        sys.path.insert(0, options.zoo)
        import zoo

        for name, build in zoo.ZOO.items():
            for dtype in (torch.float32, torch.bfloat16):

                def make(build=build, dtype=dtype):
                    model, args = build()
                    return model.cuda().to(dtype), tuple(a.cuda().to(dtype) if a.is_floating_point() else a.cuda() for a in args)

                work.append((f"{name} {str(dtype).removeprefix('torch.')}", None, make, clock))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, us: static, dynamic, quotient", flush=True)
    failed, quotients = 0, []
    for name, f, make, timer in work:
        if options.names and not any(n in name for n in options.names):
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            made = make()
            function, args = (f, made) if f is not None else made
            static, dynamic, off = measure(function, args, "inrush", timer)
            text = f"{static:9.1f} {dynamic:9.1f} {dynamic / static:6.2f}"
            if options.default:
                one, other, _ = measure(function, args, "default", timer)
                text += f"   default {one:9.1f} {other:9.1f} {other / one:6.2f}"
        quotients.append(dynamic / static)
        wrong = off > 2e-2
        failed += wrong
        print(f"{name:32} {text}{'  WRONG' if wrong else ''}", flush=True)
        del made, function, args
    print(f"{sum(q <= 1.1 for q in quotients)} of {len(quotients)} within 1.1; {failed} wrong")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
