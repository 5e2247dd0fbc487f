"""Dynamic sizes on a GPU: time of `torch.compile(dynamic=True)` by that of `dynamic=False`, for kernels and public models.

usage: gpu_dynamic.py [--zoo FOLDER] [--default] [NAME ...]

All are compiled in one process and timed in turns. Each line has medians in us: static; dynamic, compiled at these sizes; dynamic,
compiled at smaller sizes; and the quotients of the last two by the first. Kernels are timed by events with cold caches, models by the
wall clock of a call until its work is done. `--default` adds the same of PyTorch's default backend. FOLDER has a `zoo.py` with public
models. Exit code 1 where a dynamic result is off from the static one.
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
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), lambda: (drawn(8192, 32000), torch.randint(0, 31000, (8192,), device="cuda"))),
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


def smaller(f, args):
    """Arguments of smaller sizes that the function takes: of all long dimensions, else of the first one; None if there are none."""

    def cut(t, dims):
        channels_last = t.dim() == 4 and not t.is_contiguous()
        for d in range(min(dims, t.dim())):
            t = t.narrow(d, 0, t.shape[d] - (32 if t.shape[d] > 64 else t.shape[d] // 2 if t.shape[d] > 8 and d == 0 else 0))
        return t.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    for dims in (9, 1):
        few = [cut(a, dims) for a in args]
        try:
            f(*few)
        except (RuntimeError, AssertionError, ValueError):
            continue
        if any(a.shape != b.shape for a, b in zip(args, few)):
            return few
    return None


def measure(f, args, backend, timer):
    """Times of the static and of both dynamic functions (nan where sizes cannot change), and how far apart their results are."""
    static = compiled(f, backend, False)
    # Not reset in between: all stay compiled. A graph that is kept would bring the sizes of its first call along.
    options = {"backend": "inrush", "options": {"strict": True, "cache": False}} if backend == "inrush" else {}
    dynamic = torch.compile(lambda *a: f(*a), dynamic=True, **options)
    functions = [static, dynamic]
    dynamic(*args)
    few = smaller(f, args)
    if few is not None:
        other = torch.compile(lambda *a: f(*a), dynamic=True, **options)
        other(*few)
        functions.append(other)
    flat = torch.utils._pytree.tree_leaves
    wanted, *results = [flat(g(*args)) for g in functions]
    off = 0.0
    for result in results:
        for a, b in zip(wanted, result):
            off = max(off, (a.double() - b.double()).norm().item() / max(a.double().norm().item(), 1e-30))
    turns = [[timer(g, args) for g in functions] for _ in range(3)]
    medians = [statistics.median(t) for t in zip(*turns)]
    return [*medians, *[float("nan")] * (3 - len(medians))], off


def shown(times):
    static, dynamic, other = times
    return f"{static:9.1f} {dynamic:9.1f} {other:9.1f} {dynamic / static:6.2f} {other / static:6.2f}"


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
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, us: static, dynamic, dynamic after smaller sizes, quotients", flush=True)
    failed, quotients = 0, []
    for name, f, make, timer in work:
        if options.names and not any(n in name for n in options.names):
            continue
        torch.manual_seed(0)
        with torch.no_grad():
            made = make()
            function, args = (f, made) if f is not None else made
            times, off = measure(function, args, "inrush", timer)
            text = shown(times)
            if options.default:
                text += f"   default {shown(measure(function, args, 'default', timer)[0])}"
        quotients.append([t / times[0] for t in times[1:] if t == t])
        wrong = off > 2e-2
        failed += wrong
        print(f"{name:32} {text}{'  WRONG' if wrong else ''}", flush=True)
        del made, function, args
    same, others = [q[0] for q in quotients], [q[1] for q in quotients if len(q) > 1]
    print(f"within 1.1: {sum(q <= 1.1 for q in same)} of {len(same)}, after smaller sizes {sum(q <= 1.1 for q in others)} of {len(others)}; {failed} wrong")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
