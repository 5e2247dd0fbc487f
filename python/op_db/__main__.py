"""PyTorch's own operator samples (op_db), compiled and compared with eager.

usage: op_db [--shard I/N] [--samples K] [--dtype D] [--direction D] [--workers W] [--into FILE] [NAME ...]

A cell is an operator with a dtype, forward or backward. For each, some samples (--samples), spread over all that PyTorch has,
are compiled in batches and compared with eager: results, gradients, what became of the arguments, strides. Prints a line for
each cell, then totals; exit code 1 when anything failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter

# The folder of this package last: beside it lies the source of `inrush`, without its native half.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from op_db import samples, sweep
from op_db.attempt import Outcome


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators, by name and variant; all of them by default")
    parser.add_argument("--shard", default="1/1", help="which share of the operators, `2/8`")
    parser.add_argument("--samples", type=int, help="samples of each cell; 0: all; by default 12, 8 for gradients, 6 for dtypes but float32")
    parser.add_argument("--dtype", action="append", choices=samples.DTYPES)
    parser.add_argument("--direction", action="append", choices=("forward", "backward"))
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--into", help="write the outcomes there, a JSON object a line")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args()


def totals(outcomes: list[Outcome]) -> str:
    """A line for each dtype and direction."""
    columns: dict[str, Counter] = {}
    for o in outcomes:
        count = columns.setdefault(o.cell.split(" ", 1)[1], Counter())
        count[o.state] += 1
        count["samples"] += o.samples
        count["left"] += o.left
        count["eager refuses"] += o.refused_by_eager
        count["values undefined"] += o.undefined is not None
    return "\n".join(f"{name}: " + ", ".join(f"{n} {what}" for what, n in sorted(c.items())) for name, c in columns.items())


def main() -> int:
    options = arguments()
    if options.work:
        sweep.work(options.work, options.into, options.samples)
        return 0
    known = samples.operators()
    names = set(options.names or samples.shard(list(known), options.shard))
    unknown = names - set(known)
    if unknown:
        print(f"no such operators: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    cells = [
        c
        for c in samples.cells(known)
        if c.name in names and (not options.dtype or c.dtype in options.dtype) and (not options.direction or c.direction in options.direction)
    ]
    with tempfile.TemporaryDirectory(prefix="inrush-op-db-") as cache:
        # The user's cache is neither read nor filled. The workers inherit it.
        os.environ["INRUSH_CACHE_DIR"] = cache
        outcomes = sweep.run(cells, options.samples, options.workers, lambda o: print(o, flush=True))
    print(totals(outcomes))
    if options.into:
        sweep.save(options.into, outcomes)
    return 1 if any(o.failed for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
