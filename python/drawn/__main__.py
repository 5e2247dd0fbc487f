"""Programs drawn by chance, compiled and compared with eager.

usage: drawn [--seeds FIRST..LAST] [--fresh] [--workers W] [--device D] [--seconds S] [--require N] [--features] [--unknown]
             [--show SEED]

A program is a function of a few tensors: views, writes into views, reductions, products, indexing, joins, conversions, modules,
numbers, random draws, in any order, over small and odd shapes, layouts and aliases. Eager tells which steps are valid while a
program is drawn, and what it computes. Compared are results, arguments that were written, gradients, buffers, strides, which
results share memory with what, and where the random generator is left; where rounding matters, with the same program in float64.
Later calls change sizes and aliases; --pairs runs programs in a second process that finds what a first one has kept.

Verdicts: `right`; `unstable`, where eager's own rounding turned a comparison; `refused`, what no backend compiles; `theirs`, where
PyTorch's tracing stores results otherwise than eager, and inrush as the tracing; `invalid`, what eager refuses on this device.
`known`: a fault that `known.py` names and that is not mended yet.
What fails is made shorter, as long as it fails, and printed as Python. Exit code 1 when something failed, or when fewer than
--require programs with one of the features could be compared.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import os
import sys
import tempfile
import time
from typing import Any, Iterator

# The folder of this package last: there lies the source of `inrush`, without its native half.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..199", help="`FIRST..LAST`")
    parser.add_argument("--fresh", action="store_true", help="seeds that no run had before; the first one is printed")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cpu", help="`cuda` for programs on a GPU")
    parser.add_argument("--seconds", type=float, help="draw no more programs after so many")
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="of every N seeds, run one group of ten in two processes; 0: none")
    parser.add_argument("--require", type=int, default=0, metavar="N", help="fail where fewer than N programs had a feature")
    parser.add_argument("--features", action="store_true", help="print how often each feature was drawn")
    parser.add_argument("--unknown", action="store_true", help="count faults that `known.py` names as wrong, too")
    parser.add_argument("--session", help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--show", type=int, help="print the program of this seed and check it")
    return parser.parse_args()


def seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.fresh:
        first = int(time.time()) % 1_000_000 * 1000
        print(f"seeds from {first}: --seeds {first}..{first + 999_999} repeats them", flush=True)
        return iter(range(first, first + 1_000_000))
    first, last = (int(n) for n in options.seeds.split(".."))
    return iter(range(first, last + 1))


def tasks(options: argparse.Namespace, numbers: Iterator[int]) -> Iterator[tuple[Any, ...]]:
    """What the processes do: a seed, or a group of seeds in two processes."""
    from drawn.attempt import attempt
    from drawn.pairs import GROUP, attempt_pair

    for n, seed in enumerate(numbers):
        if options.pairs and n % options.pairs == options.pairs - 1:
            yield attempt_pair, [seed, *(s for _, s in zip(range(GROUP - 1), numbers))], options.device, not options.unknown
        else:
            yield attempt, seed, options.device, not options.unknown


def main() -> int:
    options = arguments()
    from drawn.attempt import Outcome, attempt, shown
    from drawn.check import check
    from drawn.draw import draw
    from drawn.summary import Summary

    if options.session:
        from drawn.pairs import session

        session(options.session, options.part, options.device)
        return 0
    if options.show is not None:
        program = draw(options.show)
        print(shown(program, options.device), check(program, options.device), sep="\n")
        return 0
    end = time.monotonic() + options.seconds if options.seconds else None
    summary, work = Summary(), tasks(options, seeds(options))
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, context, max_tasks_per_child=200) as pool:
        running: set[concurrent.futures.Future] = set()
        while True:
            while len(running) < 2 * options.workers and (end is None or time.monotonic() < end):
                task = next(work, None)
                if task is None:
                    break
                running.add(pool.submit(*task))
            if not running:
                break
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                found = future.result()
                for outcome in [found] if isinstance(found, Outcome) else found:
                    summary.add(outcome)
                    if outcome.kind == "wrong":
                        print(f"seed {outcome.seed}: {outcome.verdict}\n{outcome.text}", flush=True)
    if options.features:
        print("\n".join(summary.lines()))
    print(summary.verdict_line())
    rare = summary.rare(options.require)
    if rare:
        print(f"fewer than {options.require} programs had: {'; '.join(rare)}")
    return 1 if summary.verdicts["wrong"] or rare else 0


if __name__ == "__main__":
    # The workers share a cache of their own, so that nothing of the user's is read or filled.
    with tempfile.TemporaryDirectory(prefix="inrush-drawn-") as folder:
        os.environ.setdefault("INRUSH_CACHE_DIR", folder)
        os.environ.setdefault("INRUSH_WARM_START", "0")
        code = main()
    sys.exit(code)
