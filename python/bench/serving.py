"""What servers ask of packages: swaps of weights under load, time to load, the first answer, size.

usage: serving.py [--swaps N] [--callers N] [--loads N]

Weights are swapped by one thread while others call, each call on one thread, and each answer is compared with those of the sets of
weights. Then a package of 265 MB with random weights is loaded from a file that the system has in memory, with checksums compared once and
each time. What a call of
tiny kernels costs is measured by ``cargo xtask bench --overhead``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time

import torch
from torch import nn

import inrush

# Width and layers of the large model, and rows of its input.
WIDTH, LAYERS, ROWS = 1820, 20, 16
# Sets of weights that take turns.
SETS = 3


def chain(layers: int, width: int) -> nn.Module:
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width, bias=False), nn.Tanh())]).eval()


def package(model: nn.Module, x: torch.Tensor, folder: str) -> str:
    path = os.path.join(folder, "model.inrush")
    return inrush.aot_compile(torch.export.export(model, (x,)), path)


def line(what: str, figure: str, target: str = "") -> None:
    print(f"{what:<60}{figure:>34}{target:>10}", flush=True)


def swaps(folder: str, count: int, callers: int) -> None:
    x = torch.randn(8, 64)
    session = inrush.load(package(chain(4, 64), x, folder), threads=1)
    sets = [{name: torch.randn(w.shape) / 8 for name, w in session.weights().items()} for _ in range(SETS)]

    def swap(k: int) -> None:
        session.update_weights(sets[k % SETS], all=True)
        session.swap_weights()

    answers = []
    for k in range(SETS):
        swap(k)
        answers.append(session(x).numpy().tobytes())
    if len(set(answers)) != SETS:
        raise RuntimeError("sets of weights give equal answers")
    over = threading.Event()
    calls, wrong, failed = [0] * callers, [0] * callers, []

    def call(me: int) -> None:
        try:
            while not over.is_set():
                got = session(x).numpy().tobytes()
                calls[me] += 1
                wrong[me] += got not in answers
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(callers)]
    for t in threads:
        t.start()
    start = time.perf_counter()
    for k in range(count):
        swap(k)
    each = (time.perf_counter() - start) / count
    over.set()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
    line(f"answers of no set, {count} swaps, {callers} callers", f"{sum(wrong)} of {sum(calls)}", "0")
    line("an update of all weights and a swap, under load", f"{each * 1e6:.0f} us")


def large(folder: str, loads: int) -> None:
    x = torch.randn(ROWS, WIDTH)
    path = package(chain(LAYERS, WIDTH), x, folder)
    weights = 4 * LAYERS * WIDTH * WIDTH
    # A file that changed within two seconds is compared at each load.
    time.sleep(3)
    for what, check in (("", ""), ("checksums compared each time", "always")):
        os.environ["INRUSH_CHECK"] = check
        if not check:
            # Its checksums are compared once.
            inrush.load(path)
        took, ratios = [], []
        for _ in range(loads):
            start = time.perf_counter()
            session = inrush.load(path)
            loaded = time.perf_counter()
            session(x)
            first = time.perf_counter() - loaded
            took.append((loaded - start) * 1e3)
            steady = []
            for _ in range(50):
                start = time.perf_counter()
                session(x)
                steady.append(time.perf_counter() - start)
            ratios.append(first / statistics.median(steady))
            del session
        line(f"load of {weights / 1e6:.0f} MB of weights" + (what and f", {what}"), f"{statistics.median(took):.1f} ms (best {min(took):.1f})", "20 ms")
        line("its first answer by a steady one", f"{statistics.median(ratios):.2f}", "1.3")
    line("its size beyond its weights", f"{(os.path.getsize(path) - weights) / 1e6:.3f} MB", "2 MB")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--swaps", type=int, default=10_000)
    p.add_argument("--callers", type=int, default=8)
    p.add_argument("--loads", type=int, default=9)
    args = p.parse_args()
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; load average {os.getloadavg()[0]:.1f} before this run")
    line("", "figure", "target")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        swaps(folder, args.swaps, args.callers)
        large(folder, args.loads)


if __name__ == "__main__":
    main()
