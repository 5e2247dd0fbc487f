"""What a call of a compiled function costs beside its kernels, above Dynamo's own guards.

usage: overhead.py [--rounds N] [--backend NAME]

Two functions, each compiled with a backend that returns a tensor made beforehand (what is left is Dynamo's: guards, its
bytecode, its wrapper) and with the backend in question. All four take turns; what is printed are differences of the least
times of many rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import time

import torch


def chain(x: torch.Tensor) -> torch.Tensor:
    """Fifty operators of which every second keeps its neighbours from being fused into one kernel."""
    for i in range(50):
        x = torch.sin(x) if i % 2 else x.flip(0).cumsum(0)
    return x


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=60)
    p.add_argument("--backend", default="inrush")
    args = p.parse_args()
    x = torch.randn(16)

    def ready(gm, inputs):
        return lambda *a: (x,)

    def tiny(backend):
        return torch.compile(lambda a: torch.relu(a) + 1, backend=backend)

    def long(backend):
        return torch.compile(lambda a: chain(a), backend=backend)

    def once(f, calls=2000):
        start = time.perf_counter()
        for _ in range(calls):
            f(x)
        return (time.perf_counter() - start) / calls * 1e6

    with torch.no_grad():
        functions = [tiny(ready), tiny(args.backend), long(ready), long(args.backend)]
        for f in functions:
            for _ in range(200):
                f(x)
        kernels = 25
        if args.backend == "inrush":
            import inrush

            kernels = inrush.last_compile().kernels
        least = [min(times) for times in zip(*([once(f) for f in functions] for _ in range(args.rounds)))]
    print(f"one tiny kernel: {least[1] - least[0]:.2f} us above guards ({least[0]:.2f} us)")
    print(f"50 operators: {(least[3] - least[2]) / kernels:.3f} us a kernel above guards, {kernels} kernels")


if __name__ == "__main__":
    main()
