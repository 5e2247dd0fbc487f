"""First call and latency of ``torch.compile`` with several backends, beside each other.

usage: torch_compile.py MODELS.py [NAME ...] [--backends inductor,inrush] [--train] [--dtype bf16] [--dynamic] [--no-warm-start]
                        [--seconds S] [--rounds N] [--threads N] [--json FILE]

MODELS.py defines ``ZOO``: a dict from a name to a function that returns a module and a tuple of inputs. For each model and
backend, one fresh process with empty caches makes the cold first call, a second one with the same caches the warm first
call; then these second processes take turns in timing steady calls, so that whatever else the machine does meets all alike.
Ratios are those of the first backend over the last: above one, the last is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def child(args: argparse.Namespace) -> None:
    """One model in one backend; answers requests on standard input with lines of JSON."""
    import copy
    import importlib.util

    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    spec = importlib.util.spec_from_file_location("models", args.models)
    # Under its name, as an import would put it: what is kept of a capture names modules.
    sys.modules["models"] = models = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.models)))
    spec.loader.exec_module(models)
    torch.manual_seed(0)
    model, inputs = models.ZOO[args.names[0]]()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "f32": torch.float32}[args.dtype]
    model = model.to(dtype)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    model.train(args.train)
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    reference = copy.deepcopy(model)

    def first(out):
        return out if isinstance(out, torch.Tensor) else out[0]

    def step(f, m):
        if not args.train:
            with torch.no_grad():
                return [first(f(*inputs))]
        m.zero_grad()
        out = first(f(*inputs))
        out.float().square().mean().backward()
        return [out.detach()] + [p.grad for p in m.parameters() if p.grad is not None]

    want = step(reference, reference)
    f = model
    # With `torch.compile` itself: what a backend reads from its caches there is part of the wait.
    start = time.perf_counter()
    if args.backends != "eager":
        f = torch.compile(model, backend=args.backends, dynamic=args.dynamic or None)
    got = step(f, model)
    first_call = time.perf_counter() - start
    scale = max(float(w.double().norm()) for w in want)
    error = max(
        float((g.double() - w.double()).norm() / max(float(w.double().norm()), 1e-3 * scale)) for g, w in zip(got, want)
    )
    print(json.dumps({"first_call_s": first_call, "error": error}), flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + float(line)
        times = []
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            step(f, model)
            times.append(time.perf_counter() - start)
        print(json.dumps({"ms": statistics.median(times) * 1e3}), flush=True)


class Child:
    """A child process and its answers."""

    def __init__(self, args: argparse.Namespace, name: str, backend: str, cache: str) -> None:
        command = [sys.executable, __file__, args.models, name, "--child", "--backends", backend, "--dtype", args.dtype]
        command += ["--train"] * args.train + ["--dynamic"] * args.dynamic + ["--threads", str(args.threads)]
        env = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(cache, "inductor"), INRUSH_CACHE_DIR=os.path.join(cache, "inrush"))
        env["INRUSH_WARM_START"] = "0" if args.no_warm_start else "1"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return json.loads(line)

    def ask(self, seconds: float) -> float:
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self.answer()["ms"]

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(args: argparse.Namespace, name: str, backends: list[str]) -> dict:
    """All figures of one model."""
    row: dict = {"model": name}
    caches = {b: tempfile.mkdtemp(prefix="bench-") for b in backends}
    warm: dict[str, Child] = {}
    try:
        for b in backends:
            cold = Child(args, name, b, caches[b])
            row[b] = {"cold_s": cold.answer()["first_call_s"]}
            cold.end()
        for b in backends:
            warm[b] = Child(args, name, b, caches[b])
            answer = warm[b].answer()
            row[b] |= {"warm_s": answer["first_call_s"], "error": answer["error"], "ms": []}
        for _ in range(args.rounds):
            for b in backends:
                row[b]["ms"].append(warm[b].ask(args.seconds))
        for b in backends:
            row[b]["ms"] = statistics.median(row[b]["ms"])
    finally:
        for c in warm.values():
            c.end()
        for c in caches.values():
            shutil.rmtree(c, ignore_errors=True)
    return row


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models")
    p.add_argument("names", nargs="*")
    p.add_argument("--backends", default="inductor,inrush")
    p.add_argument("--train", action="store_true")
    p.add_argument("--dtype", default="f32", choices=["f32", "bf16", "fp16"])
    p.add_argument("--dynamic", action="store_true")
    p.add_argument("--no-warm-start", action="store_true", help="inrush does not keep what Dynamo captures")
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--json")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.child:
        return child(args)
    names = args.names
    if not names:
        code = f"import sys,os; sys.path.insert(0, os.path.dirname({os.path.abspath(args.models)!r})); import runpy; print(' '.join(runpy.run_path({args.models!r})['ZOO']))"
        names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    backends = args.backends.split(",")
    rows, ratios = [], {"cold_s": [], "warm_s": [], "ms": []}
    print(f"{'model':<20}" + "".join(f"{b + ' cold s':>16}{'warm s':>8}{'ms':>9}{'error':>9}" for b in backends) + "   ratios cold, warm, ms")
    for name in names:
        try:
            row = measure(args, name, backends)
        except RuntimeError as e:
            print(f"{name:<20} failed: {e}", flush=True)
            rows.append({"model": name, "failed": str(e)})
            continue
        rows.append(row)
        line = f"{name:<20}" + "".join(
            f"{row[b]['cold_s']:>16.2f}{row[b]['warm_s']:>8.2f}{row[b]['ms']:>9.2f}{row[b]['error']:>9.1e}" for b in backends
        )
        if len(backends) > 1:
            for key, all in ratios.items():
                all.append(row[backends[0]][key] / row[backends[-1]][key])
                line += f" {all[-1]:>6.2f}"
        print(line, flush=True)
    if ratios["ms"]:
        mean = {k: math.exp(statistics.mean(map(math.log, v))) for k, v in ratios.items()}
        worst = min(ratios["ms"])
        print(f"geometric means: cold {mean['cold_s']:.2f}, warm {mean['warm_s']:.2f}, latency {mean['ms']:.2f} (worst {worst:.2f})")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
