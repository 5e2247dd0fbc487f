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
import concurrent.futures.process
import multiprocessing
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from drawn.summary import Summary

# The folder of this package last: there lies the source of `inrush`, without its native half.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..199", help="`FIRST..LAST`")
    parser.add_argument("--fresh", action="store_true", help="seeds from INRUSH_SEED, else from the clock; the first one is printed")
    parser.add_argument("--count", type=int, default=1_000_000, metavar="N", help="with --fresh: how many seeds at most")
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
        first = int(os.environ.get("INRUSH_SEED", time.time())) % 1_000_000 * 1000
        print(f"seeds from {first}: --seeds {first}..{first + options.count - 1} repeats them", flush=True)
        return iter(range(first, first + options.count))
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


# Seconds that what runs may take when the time is over, and between two lines of progress.
GRACE, INTERVAL = 60.0, 30.0


class Work:
    """The seeds, given out to processes until the time is over."""

    def __init__(self, options: argparse.Namespace, summary: Summary) -> None:
        self.options, self.summary = options, summary
        self.tasks = tasks(options, seeds(options))
        self.end = time.monotonic() + options.seconds if options.seconds else float("inf")
        self.told = time.monotonic()
        # What processes were at when one of them ended: run again, one by one.
        self.suspects: list[tuple[Any, ...]] = []

    def run_pool(self) -> bool:
        """Runs until there is nothing more to do, or until a process ends, as one does whose device fails. Returns whether all is done."""
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(self.options.workers, context, max_tasks_per_child=200)
        running: dict[concurrent.futures.Future, tuple[Any, ...]] = {}
        try:
            while True:
                while len(running) < 2 * self.options.workers and time.monotonic() < self.end:
                    task = next(self.tasks, None)
                    if task is None:
                        self.end = time.monotonic()
                        break
                    running[pool.submit(*task)] = task
                if not running:
                    return True
                done, _ = concurrent.futures.wait(running, timeout=INTERVAL, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    found = future.result()
                    del running[future]
                    self.take(found)
                self.tell()
                if self.options.seconds and time.monotonic() > self.end + GRACE:
                    self.summary.verdicts["not finished in time"] += len(running)
                    return True
        except concurrent.futures.process.BrokenProcessPool:
            self.suspects += running.values()
            return False
        finally:
            processes = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes if running else []:
                process.kill()

    def run_suspects(self) -> None:
        """Runs each task that was lost with a process in a process of its own, and names those that end theirs."""
        context = multiprocessing.get_context("spawn")

        def alone(task: tuple[Any, ...]) -> Any:
            with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
                return pool.submit(*task).result()

        with concurrent.futures.ThreadPoolExecutor(self.options.workers) as threads:
            running = {threads.submit(alone, task): task for task in self.suspects}
            for future in concurrent.futures.as_completed(running):
                try:
                    self.take(future.result())
                except concurrent.futures.process.BrokenProcessPool:
                    self.summary.verdicts["wrong"] += 1
                    print(f"the process ended at seed {running[future][1]}: --show prints its program", flush=True)

    def take(self, found: Any) -> None:
        for outcome in found if isinstance(found, list) else [found]:
            self.summary.add(outcome)
            if outcome.kind == "wrong":
                print(f"seed {outcome.seed}: {outcome.verdict}\n{outcome.text}", flush=True)

    def tell(self) -> None:
        """Prints how far it is, now and then."""
        if time.monotonic() > self.told + INTERVAL:
            self.told = time.monotonic()
            print(self.summary.verdict_line(), file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    from drawn.attempt import shown
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
    summary = Summary()
    work = Work(options, summary)
    while not work.run_pool():
        pass
    work.run_suspects()
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
