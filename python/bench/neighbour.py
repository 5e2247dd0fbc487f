"""Latency inside PyTorch on a quiet machine, and while another process keeps one core busy.

usage: neighbour.py [NAME ...] [--models MODELS.py] [--rounds N] [--seconds S] [--threads N] [--options JSON]

Eager, ``torch.compile(backend="inrush")`` and ``inrush.load`` of the same model take turns in one process. In every second
round a process that does nothing but count runs on the last core. Printed are medians over rounds of each round's median, in
milliseconds, and medians over rounds of the ratios to eager. Other work on the machine meets all alike, but is a neighbour
too: the line before the table has the load.

Models: ``encoder`` (12 layers of attention over 197 tokens of 192), ``convolutions``, ``tiny`` (10 kernels of a few
microseconds), ``called`` (an operator that PyTorch runs after each layer, so that threads of PyTorch are awake in between). MODELS.py
may define ``ZOO``, a dict from a name to a function that returns a module and a tuple of inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

LINES = ("eager", "torch.compile", "inrush.load")


@torch.library.custom_op("inrush_bench::called", mutates_args=())
def called(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


@called.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Called(nn.Module):
    """Layers with an operator between that no compiler knows."""

    def __init__(self, layers: int = 8, width: int = 512) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.ops.inrush_bench.called(self.norm(nn.functional.gelu(layer(x))) + x)
        return x


def encoder() -> tuple[nn.Module, tuple]:
    layer = nn.TransformerEncoderLayer(192, 3, 768, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), (torch.randn(1, 197, 192),)


def convolutions() -> tuple[nn.Module, tuple]:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3)]
    for _ in range(8):
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1)]
    return nn.Sequential(*layers), (torch.randn(1, 3, 112, 112),)


def tiny() -> tuple[nn.Module, tuple]:
    layers = [m for _ in range(5) for m in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(64, 128),)


MODELS = {"encoder": encoder, "convolutions": convolutions, "tiny": tiny, "called": lambda: (Called(), (torch.randn(256, 512),))}


class Neighbour:
    """A process that keeps one core busy while it is not stopped."""

    def __init__(self) -> None:
        core = max(os.sched_getaffinity(0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"]
        )
        self.stop()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def prepare(model: nn.Module, inputs: tuple, options: dict | None) -> dict:
    """What each line calls; a model that has no package has two lines."""
    import inrush

    calls = {"eager": model, "torch.compile": torch.compile(model, backend="inrush", options=options)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.inrush")
        try:
            inrush.aot_compile(torch.export.export(model, inputs), path)
        except inrush.UnsupportedError:
            return calls  # it calls an operator of PyTorch
        calls["inrush.load"] = inrush.load(path, threads=(options or {}).get("threads"))
    return calls


def turn(call, inputs: tuple, seconds: float) -> float:
    """The median of the calls of a turn, in milliseconds."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call(*inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(name: str, made: tuple[nn.Module, tuple], args: argparse.Namespace) -> dict:
    model, inputs = made
    model.eval()
    with torch.no_grad():
        calls = prepare(model, inputs, json.loads(args.options) if args.options else None)
        want = model(*inputs)
        for call in calls.values():
            got = call(*inputs)
            torch.testing.assert_close(first(got), first(want), rtol=1e-3, atol=1e-3)
            turn(call, inputs, args.seconds / 4)
        times: dict = {noisy: {line: [] for line in calls} for noisy in (False, True)}
        neighbour = Neighbour()
        try:
            for _ in range(args.rounds):
                for noisy, lines in times.items():
                    neighbour.go() if noisy else neighbour.stop()
                    for line, call in calls.items():
                        # Let spinning threads of earlier calls go to sleep.
                        time.sleep(0.02)
                        lines[line].append(turn(call, inputs, args.seconds))
        finally:
            neighbour.end()
    for noisy, lines in times.items():
        cells = f"{name:<16}{'busy' if noisy else 'quiet':<7}"
        for line in LINES:
            cells += f"{statistics.median(lines[line]):>15.3f}" if line in lines else f"{'-':>15}"
        for line in LINES[1:]:
            ratio = [ours / eager for ours, eager in zip(lines.get(line, []), lines["eager"])]
            cells += f"{statistics.median(ratio):>8.2f}" if ratio else f"{'-':>8}"
        print(cells, flush=True)
    return times


def first(out):
    return out if isinstance(out, torch.Tensor) else out[0]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="models; all by default")
    p.add_argument("--models", metavar="MODELS.py")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    p.add_argument("--threads", type=int)
    p.add_argument("--options", metavar="JSON", help="""of the backend, such as '{"threads": 2}' for threads of inrush's own""")
    args = p.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    models = dict(MODELS)
    if args.models:
        sys.path.insert(0, os.path.dirname(os.path.abspath(args.models)))
        models |= runpy.run_path(args.models)["ZOO"]
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; load average {os.getloadavg()[0]:.1f} before this run")
    print(f"{'ms':<16}{'':<7}" + "".join(f"{line:>15}" for line in LINES) + "   by eager's")
    for name in args.names or MODELS:
        torch.manual_seed(0)
        measure(name, models[name](), args)


if __name__ == "__main__":
    main()
