"""Compiled models on a GPU: right results, latency, first calls, the host's share. Needs no Rust and no network.

usage: gpu_models.py [--models MODELS.py] [--names a,b] [--sections smoke,float8,kernels,errors,graphs,chain,zoo,train,first] [--seconds S] [--json FILE]

Beside this file lie `gpu_errors.py` and, here or in `tests`, `user_kernels.py`. MODELS.py defines ``ZOO``: a dict from a name to a function that returns a module and a tuple of inputs. Times of compilers are
taken in turns in one process; first calls are made in processes of their own, with empty caches and again with full ones.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional as F

from installed import HERE

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(64, 128), nn.Linear(128, 64), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x + self.b(F.gelu(self.a(x))))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(self.stem(x), 2), 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


def models(path: str | None) -> dict[str, Callable[[], Any]]:
    if path is None:
        return {
            "tiny": lambda: (Tiny(), (torch.randn(32, 64),)),
            "pictures": lambda: (Pictures(), (torch.randn(2, 3, 32, 32),)),
            "attention": lambda: (Attention(), (torch.randn(2, 16, 64),)),
        }
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("models", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    spec.loader.exec_module(module)
    return module.ZOO


def prepare(make: Callable[[], Any], dtype: torch.dtype, train: bool = False) -> Any:
    torch.manual_seed(0)
    model, inputs = make()
    if train:
        # One example alone leaves batch normalisation nothing to normalise.
        several = lambda x: torch.randn(8, *x.shape[1:]) if x.is_floating_point() else torch.cat([x.roll(k, -1) for k in range(8)])  # noqa: E731
        inputs = tuple(several(x) if x.shape[0] == 1 else x for x in inputs)
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    inputs = tuple(x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in inputs)
    return model.cuda().to(dtype).train(train), inputs


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def error(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest relative error in norm."""
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        g, w = g.double(), w.double()
        if not torch.equal(g.isnan(), w.isnan()):
            return math.inf
        worst = max(worst, float((g - w).nan_to_num().norm() / w.nan_to_num().norm().clamp_min(1e-12)))
    return worst


def total_error(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The relative error in norm of all tensors as one: some gradients are nothing but rounding."""
    apart = sum(float((g.double() - w.double()).square().sum()) for g, w in zip(got, want, strict=True))
    whole = sum(float(w.double().square().sum()) for w in want)
    return math.sqrt(apart / max(whole, 1e-300)) if math.isfinite(apart) else math.inf


def compiled(f: Any, backend: str, graphs: bool = False, **options: Any) -> Any:
    if backend == "eager":
        return f
    # A function of its own: what Dynamo compiled for another backend belongs to other code.
    names: dict[str, Any] = {"f": f}
    exec("def own(*args):\n    return f(*args)", names)
    f = names["own"]
    if backend == "inductor":
        return torch.compile(f, mode="reduce-overhead" if graphs else None)
    return torch.compile(f, backend=backend, options={"strict": True, **({"cudagraphs": True} if graphs else {}), **options})


def times(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median milliseconds of each call, in turns, each waited for."""
    for f in calls.values():
        for _ in range(5):
            f()
    torch.cuda.synchronize()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, f in calls.items():
            for _ in range(5):
                start = time.perf_counter()
                f()
                torch.cuda.synchronize()
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) * 1e3 for name, t in taken.items()}


def host_time(calls: dict[str, Callable[..., Any]], inputs: tuple[Any, ...], launches: int) -> dict[str, float]:
    """Median microseconds of the host for a launch, and until all is done."""
    values = {}
    for name, c in calls.items():
        taken, whole = [], []
        for _ in range(60):
            torch.cuda.synchronize()
            start = time.perf_counter()
            c(*inputs)
            taken.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - start)
        values[f"{name} us a launch"] = statistics.median(taken[10:]) * 1e6 / launches
        values[f"{name} us waited for"] = statistics.median(whole[10:]) * 1e6 / launches
    return values


def report() -> str:
    import inrush

    last = inrush.last_compile()
    if last is None:
        return ""
    libraries = sum(len(g.libraries) for g in last.all_graphs())
    text = f"{last.kernels} kernels, {libraries} library calls, {last.extern_calls} called"
    return text + "".join(f"; {f}" for f in last.fallbacks)


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rows, self.failures = args, [], []
        self.zoo = models(args.models)
        self.names = args.names.split(",") if args.names else list(self.zoo)

    def row(self, section: str, name: str, **values: Any) -> None:
        self.rows.append({"section": section, "name": name, **values})
        text = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print(f"{section:6} {name:28} {text}", flush=True)

    def attempt(self, section: str, name: str, f: Callable[[], None]) -> None:
        torch._dynamo.reset()
        try:
            f()
        except Exception as e:
            lines = str(e).strip().splitlines() or [repr(e)]
            self.failures.append(f"{section} {name}: {type(e).__name__}: " + " | ".join(lines[:12])[:1500])
            print("FAILED", self.failures[-1], flush=True)
            if self.args.verbose:
                traceback.print_exc()

    def smoke(self) -> None:
        """Small functions of every kind of step."""
        x, y = torch.randn(33, 65, device="cuda"), torch.randn(33, 65, device="cuda")
        image = torch.randn(2, 3, 16, 16, device="cuda")
        half = torch.tensor(0.5)
        functions: dict[str, tuple[Any, ...]] = {
            "pointwise": (lambda a, b: torch.sigmoid(a * b) + a, x, y),
            "softmax, product": (lambda a, b: (torch.softmax(a, -1) @ b.t()).relu() + 1, x, y),
            "sums": (lambda a, b: (a.sum(), a.var(0), (a * b).mean(1), a.argmax(1)), x, y),
            "transpose": (lambda a, b: a.t().contiguous() + b.t(), x, y),
            "views as results": (lambda a, b: (a.view(65, 33), a[2:] + 1, b.t()), x, y),
            "unaligned input": (lambda a, b: a * 2 + b, x.flatten()[1:1000], y.flatten()[:999]),
            "sort": (lambda a, b: (a.sort(-1)[0] + 1, b.topk(3)[1]), x, y),
            "data dependent": (lambda a, b: a[a[:, 0] > 0] * 2, x, y),
            "cumsum": (lambda a, b: a.cumsum(1) + b.cumsum(0), x, y),
            "index_put": (lambda a, b: a.index_put((torch.tensor([0, 0, 2], device=a.device),), b[:3], accumulate=True), x, y),
            "arange": (lambda a, b: a * torch.arange(65, device=a.device) + torch.ones(65, device=a.device), x, y),
            "cpu scalar": (lambda a, b: a * half + b, x, y),
            "to the host": (lambda a, b: ((a + 1).cpu() * 2, b + 1), x, y),
            "convolution": (lambda a, b: F.relu(F.conv2d(a, b, padding=1)) + 1, image, torch.randn(4, 3, 3, 3, device="cuda")),
            "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k) * 2, *torch.randn(2, 1, 2, 16, 32, device="cuda")),
            "in place": (lambda a, b: (a.add_(1), b.mul_(2).sum())[1], x.clone(), y.clone()),
        }
        for name, (f, *inputs) in functions.items():

            def one(f: Any = f, inputs: Any = inputs) -> None:
                g = compiled(f, "inrush")
                for _ in range(3):
                    theirs, ours = [i.clone() for i in inputs], [i.clone() for i in inputs]
                    if "unaligned" in name:
                        ours[0] = torch.cat([ours[0][:1], ours[0]])[1:]
                    want, got = f(*theirs), g(*ours)
                    worst = error(tensors(got) + ours, tensors(want) + theirs)
                    if not worst < 1e-4:
                        raise AssertionError(f"error {worst}")
                torch.cuda.synchronize()
                self.row("smoke", name, error=worst, steps=report())

            self.attempt("smoke", name, one)

    def float8(self) -> None:
        """Numbers of eight bits, bit for bit as eager has them."""
        kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
        bits = torch.randint(-(2**31), 2**31 - 1, (1 << 20,), device="cuda", dtype=torch.int64).to(torch.int32).view(torch.float32)
        edges = [0.0, -0.0, 464.0, 464.00003, -465.0, 448.0, 480.0, 61439.0, 61440.0, -65536.0, math.inf, -math.inf, math.nan, 2.0**-10, 2.0**-17]
        anything = torch.cat([bits, torch.tensor(edges, device="cuda"), torch.randn(1 << 18, device="cuda") * 30])
        every_half = torch.arange(1 << 16, device="cuda", dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
        scale = torch.tensor(3.7, device="cuda")
        x = torch.randn(130, 272, device="cuda", dtype=torch.bfloat16) * 200

        def quantised(x: Any, scale: Any) -> Any:
            return [(x.float() * scale).clamp(-torch.finfo(k).max, torch.finfo(k).max).to(k) for k in kinds]

        def product(a: Any, b: Any, scale: Any) -> Any:
            one = torch.ones((), device=a.device)
            left, right = quantised(a, scale)[0], quantised(b, scale)[0]
            return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

        cases: dict[str, tuple[Any, ...]] = {
            "scaled and clamped": (quantised, x, scale),
            "laid out anew": (lambda x, s: [q.t().contiguous() for q in quantised(x, s)], x, scale),
            "a product as a call": (product, x[:64, :256].contiguous(), x[64:128, :256].contiguous(), scale),
        }
        for kind in kinds:
            every = torch.arange(256, device="cuda", dtype=torch.int32).to(torch.uint8).view(kind)
            numbers = every[every.float().isfinite()].repeat(33)
            cases |= {
                f"{kind} of floats": (lambda x, kind=kind: x.to(kind), anything),
                f"{kind} of halves": (lambda x, kind=kind: x.to(kind), every_half),
                f"{kind} read": (lambda q: [q.to(d) for d in (torch.float32, torch.bfloat16, torch.float16)], every),
                f"{kind} computed with": (lambda q, s, kind=kind: ((q.float() * s).to(kind), q.float().abs().amax()), numbers, scale),
            }
        for name, (f, *inputs) in cases.items():

            def one(f: Any = f, inputs: Any = inputs) -> None:
                want, got = tensors(f(*inputs)), tensors(compiled(f, "inrush")(*inputs))
                for w, g in zip(want, got, strict=True):
                    same = (w.view(torch.uint8) == g.view(torch.uint8)).view(*w.shape, -1).all(-1) if w.dim() else w == g
                    # Which NaN wider types hold is nobody's business.
                    same |= (w.isnan() & g.isnan()) if w.dtype not in kinds else torch.zeros_like(same)
                    if not bool(same.all()):
                        at = (~same).flatten().nonzero()[0]
                        raise AssertionError(f"{int((~same).sum())} of {same.numel()}: {float(g.flatten()[at])}, not {float(w.flatten()[at])}")
                self.row("float8", name, steps=report())

            self.attempt("float8", name, one)

    def kernels(self) -> None:
        """Triton kernels of users."""
        sys.path.append(os.path.join(HERE, "tests"))
        import user_kernels

        for f, wanted in user_kernels.CASES.items():
            for dynamic in (False, True):

                def one(f: Any = f, wanted: Any = wanted, dynamic: bool = dynamic) -> None:
                    g = torch.compile(f, backend="inrush", options={"strict": True}, dynamic=dynamic, fullgraph=True)
                    worst = 0.0
                    for shape in ((7, 18), (50, 160)):
                        x, y = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
                        theirs, ours = (x.clone(), y.clone()), (x.clone(), y.clone())
                        want, got = wanted(*theirs), g(*ours)
                        worst = max(worst, error(tensors(got) + list(ours), tensors(want) + list(theirs)))
                    if not worst < 1e-4:
                        raise AssertionError(f"error {worst}")
                    torch.cuda.synchronize()
                    self.row("kernel", f"{f.__name__}{', dynamic' * dynamic}", error=worst, steps=report())

                self.attempt("kernel", f"{f.__name__}{', dynamic' * dynamic}", one)

        def chain(x: Any, y: Any) -> Any:
            for _ in range(50):
                x = user_kernels.by_tuple(x, y)
            return x

        def timed() -> None:
            x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
            with torch.no_grad():
                calls = {"eager": chain, "inrush": compiled(chain, "inrush")}
                if self.args.inductor:
                    calls["inductor"] = compiled(chain, "inductor")
                want = chain(x, y)
                worst = max(error([c(x, y)], [want]) for c in calls.values())
                self.row("kernel", "50 launches, host us each", error=worst, **host_time(calls, (x, y), 50))

        self.attempt("kernel", "50 launches", timed)

    def graphs(self) -> None:
        """What is kept from call to call: captured calls, lists of launches."""

        def same(got: Any, want: Any) -> float:
            worst = error(tensors(got), tensors(want))
            if not worst < 1e-3:
                raise AssertionError(f"error {worst}")
            return worst

        def static_inputs() -> float:
            """Parameters are read where they lie, also after they were written or moved; what callers hold stays."""
            model = Tiny().cuda()
            f = torch.compile(model, backend="inrush", mode="reduce-overhead")
            held, worst = [], 0.0
            with torch.no_grad():
                for k in range(12):
                    if k in (5, 8):
                        model.a.weight.mul_(1.5)
                    if k == 10:
                        model.b.weight.data = model.b.weight.data.clone() * 2
                    x = torch.randn(32, 64, device="cuda")
                    held.append((f(x), model(x)))
            for got, want in held:
                worst = max(worst, same(got, want))
            return worst

        def several_shapes() -> float:
            f = compiled(lambda x, y: torch.softmax(x @ y.t(), -1) + x.sum(), "inrush", graphs=True)
            worst = 0.0
            for k in range(24):
                n = (3, 17, 64)[k % 3]
                x, y = torch.randn(n, 32, device="cuda"), torch.randn(n, 32, device="cuda")
                worst = max(worst, same(f(x, y), torch.softmax(x @ y.t(), -1) + x.sum()))
            return worst

        def written_inputs() -> float:
            f = compiled(lambda x: x.add_(1).sum() * 2, "inrush", graphs=True)
            x, y, worst = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda"), 0.0
            for k in range(10):
                worst = max(worst, same(f(x), (y.add_(1).sum() * 2)), same(x, y))
                if k == 6:
                    x = x.clone()
            return worst

        def no_memory_left() -> float:
            def used() -> int:
                gc.collect()
                torch.cuda.synchronize()
                return torch.cuda.memory_allocated()

            def inside() -> list[int]:
                model, x = Tiny().cuda(), torch.randn(4096, 64, device="cuda")
                f = compiled(model, "inrush", graphs=True)
                now = []
                with torch.no_grad():
                    for _ in range(40):
                        f(x)
                        now.append(used())
                return now

            before = used()
            now = inside()
            if max(now[10:]) > now[10]:
                raise AssertionError(f"memory grows from call to call: {now}")
            torch._dynamo.reset()
            after = used()
            if after - before > 1 << 20:
                raise AssertionError(f"{after - before} bytes are still held, {now[-1] - before} were")
            return 0.0

        def captured(g: Any, f: Any, rows: int) -> float:
            """Somebody's capture of a call, replayed over another argument."""
            x = torch.randn(rows, 64, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                got = g(x)
            x.copy_(torch.randn(rows, 64, device="cuda"))
            graph.replay()
            return same(got, f(x))

        def lists() -> float:
            """Launches in a row with other addresses at each call, on two streams and in somebody's capture."""

            def f(x: Any) -> Any:
                for k in range(6):
                    x = torch.softmax(x, k % 2)
                return x, x.t().contiguous()

            g = compiled(f, "inrush")
            other, held = torch.cuda.Stream(), []
            for k in range(16):
                x = torch.randn(64, 64, device="cuda")
                if k % 4 == 3:
                    other.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(other):
                        held.append((g(x), f(x), x))
                    torch.cuda.current_stream().wait_stream(other)
                else:
                    held.append((g(x), f(x), x))
            worst = max(same(got, want) for got, want, _ in held)
            return max(worst, captured(g, f, 64))

        def runs() -> float:
            """Products and launches in a row: addresses that settle and that do not, results held, two streams, a capture."""
            weights = [torch.randn(64, 64, device="cuda") / 8 for _ in range(6)]

            def f(x: Any) -> Any:
                for w in weights:
                    x = torch.softmax(x @ w, -1) + (x * 0.5) @ w.t()
                return x, x.sum(0)

            g = compiled(f, "inrush")
            same_x, other, held = torch.randn(32, 64, device="cuda"), torch.cuda.Stream(), []
            for k in range(60):
                if k >= 40:
                    weights[k % 6].mul_(1.01)
                # First one argument for all, then always new ones, then two that take turns, one of them on a stream of its own.
                x = same_x if k < 12 or k % 2 else torch.randn(32, 64, device="cuda")
                if k % 6 == 5:
                    other.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(other):
                        held.append((g(x), [t.clone() for t in f(x)]))
                    torch.cuda.current_stream().wait_stream(other)
                else:
                    held.append((g(x), [t.clone() for t in f(x)]))
                # Results that are held have memory of their own; those that are dropped lie where the next ones will.
                if k % 3 and k < 30:
                    same(*held.pop())
            worst = max(same(got, want) for got, want in held)
            return max(worst, captured(g, f, 32))

        def maps() -> float:
            """Tensor maps that come with launches: other addresses at each call, lists, a stretch of sizes, a capture."""

            def f(x: Any) -> Any:
                for _ in range(3):
                    x = (x.t().contiguous() * 2).t().contiguous() + 1
                return x, (x * 0.5).sum(0)

            g = torch.compile(f, backend="inrush", options={"strict": True, "pointers": "map"}, dynamic=True)
            held = []
            for k in range(20):
                x = torch.randn(64 + 64 * (k % 3), 64, device="cuda")
                held.append((g(x), f(x), x))
            return max(max(same(got, want) for got, want, _ in held), captured(g, f, 64))

        def dropped() -> float:
            """A capture that outlives the function that it was captured from."""
            f = compiled(lambda x: torch.softmax(x * 1.25, -1), "inrush")
            x = torch.randn(33, 77, device="cuda")
            f(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                got = f(x)
            del f
            torch._dynamo.reset()
            gc.collect()
            x.copy_(torch.randn(33, 77, device="cuda"))
            graph.replay()
            return same(got, torch.softmax(x * 1.25, -1))

        for case in (static_inputs, several_shapes, written_inputs, no_memory_left, lists, runs, maps, dropped):
            self.attempt("graphs", case.__name__, lambda case=case: self.row("graphs", case.__name__, error=case()))

    def errors(self) -> None:
        """What goes wrong."""

        def one() -> None:
            script = os.path.join(HERE, "gpu_errors.py")
            done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
            print(done.stdout, flush=True)
            if done.returncode:
                raise AssertionError("some cases are wrong, see above")

        self.attempt("errors", "all", one)

    def chain(self) -> None:
        """The host's time for a launch, over a chain of kernels that cannot be fused."""

        def f(x):
            for k in range(200):
                x = torch.softmax(x, k % 2)
            return x

        def one() -> None:
            import inrush

            x = torch.randn(64, 64, device="cuda")
            calls = {"inrush": compiled(f, "inrush")}
            with torch.no_grad():
                got, want = calls["inrush"](x), f(x)
                kernels = max(1, inrush.last_compile().kernels)
                values: dict[str, Any] = {"error": error([got], [want]), "kernels": kernels}
                if self.args.inductor:
                    calls["inductor"] = compiled(f, "inductor")
                    calls["inductor"](x)
                values |= host_time(calls, (x,), kernels)
            self.row("chain", "200 softmaxes", **values)

        def sizes() -> None:
            """Each call has sizes that no other had."""
            import inrush

            g = torch.compile(f, backend="inrush", options={"strict": True}, dynamic=True)
            taken = []
            with torch.no_grad():
                for n in range(64, 124):
                    x = torch.randn(n, 64, device="cuda")
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    got = g(x)
                    taken.append(time.perf_counter() - start)
                    torch.cuda.synchronize()
                kernels = max(1, inrush.last_compile().kernels)
                us = statistics.median(taken[10:]) * 1e6 / kernels
                self.row("chain", "sizes always new", **{"error": error([got], [f(x)]), "kernels": kernels, "inrush us a launch": us})

        self.attempt("chain", "200 softmaxes", one)
        self.attempt("chain", "sizes always new", sizes)

    def model(self, name: str, dtype: str) -> None:
        """Inference: error against eager in float32, latency in turns."""
        model, inputs = prepare(self.zoo[name], DTYPES[dtype])
        exact, wide = prepare(self.zoo[name], torch.float32)
        with torch.no_grad():
            want = tensors(exact(*wide))
            eager = error(tensors(model(*inputs)), want)
            del exact
            calls = {"eager": model, "inrush": compiled(model, "inrush")}
            worst = error(tensors(calls["inrush"](*inputs)), want)
            steps = report()
            worst = max(worst, error(tensors(calls["inrush"](*inputs)), want))
            if not worst <= 2 * eager + 1e-4:
                raise AssertionError(f"error {worst}, eager's is {eager}; {steps}")
            if self.args.graphs:
                calls["inrush graphs"] = compiled(copy.copy(model), "inrush", graphs=True)
                for _ in range(3):
                    worst = max(worst, error(tensors(calls["inrush graphs"](*inputs)), want))
                if not worst <= 2 * eager + 1e-4:
                    raise AssertionError(f"error {worst} with graphs, eager's is {eager}")
            if self.args.inductor:
                calls["inductor"] = compiled(copy.copy(model), "inductor")
                calls["inductor"](*inputs)
                if self.args.graphs:
                    calls["inductor graphs"] = compiled(copy.copy(model), "inductor", graphs=True)
            # Host work only: what the caller waits for before it goes on.
            run = {n: (lambda c=c: c(*inputs)) for n, c in calls.items()}
            ms = times(run, self.args.each)
            host = []
            for _ in range(30):
                torch.cuda.synchronize()
                start = time.perf_counter()
                run["inrush"]()
                host.append(time.perf_counter() - start)
        ratios = {}
        if "inductor" in ms:
            ratios["inductor/inrush"] = ms["inductor"] / ms["inrush"]
        if "inductor graphs" in ms and "inrush graphs" in ms:
            ratios["inductor/inrush with graphs"] = ms["inductor graphs"] / ms["inrush graphs"]
        self.row("zoo", f"{name} {dtype}", error=worst, eager_error=eager, **ms, host=statistics.median(host) * 1e3, **ratios, steps=steps)

    def training(self, name: str, dtype: str) -> None:
        """Loss and gradients against eager in float64."""

        def step(f: Any, m: Any, x: Any) -> list[torch.Tensor]:
            m.zero_grad()
            out = tensors(f(*x))[0]
            loss = (out if out.dtype == torch.float64 else out.float()).square().mean()
            loss.backward()
            return [loss.detach()] + [p.grad for p in m.parameters() if p.grad is not None]

        exact, wide = prepare(self.zoo[name], torch.float64, True)
        want = step(exact, exact, wide)
        # One value that rounds to the other side of a rectifier moves the gradients of float32 by some thousandths.
        slack = 1e-2 if any(isinstance(m, (nn.ReLU, nn.MaxPool2d)) for m in exact.modules()) else 1e-3
        twin, inputs = prepare(self.zoo[name], DTYPES[dtype], True)
        eager = total_error(step(twin, twin, inputs), want)
        model, inputs = prepare(self.zoo[name], DTYPES[dtype], True)
        ours = compiled(model, "inrush")
        worst = total_error(step(ours, model, inputs), want)
        steps = report()
        if not worst <= 2 * eager + slack:
            raise AssertionError(f"error {worst}, eager's is {eager}; {steps}")
        calls = {"eager": lambda: step(twin, twin, inputs), "inrush": lambda: step(ours, model, inputs)}
        if self.args.inductor:
            third, _ = prepare(self.zoo[name], DTYPES[dtype], True)
            theirs = compiled(third, "inductor")
            step(theirs, third, inputs)
            calls["inductor"] = lambda: step(theirs, third, inputs)
        ms = times(calls, self.args.each)
        ratios = {"inductor/inrush": ms["inductor"] / ms["inrush"]} if "inductor" in ms else {}
        self.row("train", f"{name} {dtype}", error=worst, eager_error=eager, **ms, **ratios, steps=steps)

    def first(self, name: str) -> None:
        """First calls, in fresh processes: empty caches, then full ones."""
        values: dict[str, Any] = {}
        for backend in ["inrush"] + (["inductor"] if self.args.inductor else []):
            with tempfile.TemporaryDirectory() as folder:
                env = dict(os.environ, INRUSH_CACHE_DIR=f"{folder}/a", TORCHINDUCTOR_CACHE_DIR=f"{folder}/b", TRITON_CACHE_DIR=f"{folder}/c")
                for state in ("cold", "warm"):
                    command = [sys.executable, __file__, "--child", backend, "--names", name]
                    command += ["--models", self.args.models] if self.args.models else []
                    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
                    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                    if done.returncode or not lines:
                        raise RuntimeError(f"{backend} {state}: {done.stderr[-1500:]}")
                    told = json.loads(lines[-1])
                    print(f"first  {name:28} {backend} {state}: {told}", flush=True)
                    values[f"{backend} {state}"] = told["seconds"]
                    if backend == "inrush":
                        values[f"{state} stages"] = told["stages"]
        for state in ("cold", "warm"):
            if f"inductor {state}" in values:
                values[f"{state} ratio"] = values[f"inductor {state}"] / values[f"inrush {state}"]
        self.row("first", f"{name} bf16", **values)

    def all(self) -> None:
        start = time.monotonic()
        late = lambda: time.monotonic() - start > self.args.seconds  # noqa: E731
        for section in self.args.sections.split(","):
            if section in ("smoke", "float8", "kernels", "errors", "graphs", "chain"):
                getattr(self, section)()
            elif section in ("zoo", "train"):
                method = self.model if section == "zoo" else self.training
                for dtype in self.args.dtypes.split(","):
                    for name in self.names:
                        if not late():
                            self.attempt(section, f"{name} {dtype}", lambda m=method, n=name, d=dtype: m(n, d))
            elif section == "first":
                for name in self.names:
                    if not late():
                        self.attempt(section, name, lambda n=name: self.first(n))
            else:
                raise SystemExit(f"there is no section `{section}`")
        if late():
            print("out of time: what is missing was not run")
        self.means()

    def means(self) -> None:
        for section, key in [
            ("zoo", "inductor/inrush"),
            ("zoo", "inductor/inrush with graphs"),
            ("train", "inductor/inrush"),
            ("first", "cold ratio"),
            ("first", "warm ratio"),
        ]:
            found = [r[key] for r in self.rows if r["section"] == section and key in r]
            if found:
                mean = math.exp(statistics.fmean(map(math.log, found)))
                print(f"{section} {key}: geometric mean {mean:.3f} of {len(found)}")


def child(args: argparse.Namespace) -> None:
    """One first call."""
    model, inputs = prepare(models(args.models)[args.names], torch.bfloat16)
    with torch.no_grad():
        model(*inputs)
        torch.cuda.synchronize()
        start = time.perf_counter()
        # As users write it: what stands in no file cannot be kept for another process.
        options = {"strict": True} if args.child == "inrush" else None
        torch.compile(model, backend=args.child, options=options)(*inputs)
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
    stages = {}
    if args.child == "inrush":
        import inrush

        stages = {k: round(v, 3) for k, v in inrush.last_compile().stages.items()} | {"backend": round(inrush.last_compile().seconds, 3)}
        stages |= {f"captures {k}": sum(v.values()) for k, v in inrush.captures().items()}
    print(json.dumps({"seconds": taken, "stages": stages}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models")
    parser.add_argument("--names", default="")
    parser.add_argument("--sections", default="smoke,float8,kernels,errors,graphs,chain,zoo,train,first")
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--inductor", action="store_true", help="measure torch.compile's own beside")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs too")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after these")
    parser.add_argument("--each", type=float, default=1.0, help="seconds of timing for each model")
    parser.add_argument("--json")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
        return 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    # Both sides round alike: what is compared is the compiler.
    torch.backends.cudnn.allow_tf32 = False
    run = Run(args)
    try:
        run.all()
    finally:
        if args.json:
            with open(args.json, "w", encoding="utf-8") as out:
                json.dump({"rows": run.rows, "failures": run.failures}, out, indent=1)
    for f in run.failures:
        print("FAILED", f)
    print(f"{len(run.rows)} rows, {len(run.failures)} failures")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
