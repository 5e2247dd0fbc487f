"""PyTorch's own operator samples (op_db), compiled and compared with eager.

usage: op_db [--shard I/N] [--samples K] [--device D] [--dtype D] [--direction D] [--workers W] [--seconds S] [--patience S]
             [--into FILE] [--done FILE] [--table FILE] [--called] [--from FILE] [--worse] [NAME ...]

A cell is an operator with a dtype, forward or backward. For each, some samples (--samples), spread over all that PyTorch has,
are compiled in batches and compared with eager: results, gradients, what became of the arguments, strides. Prints a line for
each cell, then totals; exit code 1 when anything failed.

--table writes what was found into the table of the documentation, cells that were not run staying as they are; a cell that
got worse is an error, unless --worse is given. For a GPU, which not everybody has, the table is written anew, wrong cells too. --called runs only cells that the table does not call lowered.

--into appends each outcome as it comes, so that a run that is cut off (--seconds, or otherwise) goes on in a next one: what
--done names is not run again, unless it failed or was tried with fewer samples.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter

# The folder of this package last: beside it lies the source of `inrush`, without its native half.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from op_db import samples, sweep, table
from op_db.attempt import Outcome


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators, by name and variant; all of them by default")
    parser.add_argument("--shard", default="1/1", help="which share of the operators, `2/8`")
    parser.add_argument("--samples", type=int, help="samples of each cell; 0: all; by default 12, 8 for gradients, 6 for dtypes but float32")
    parser.add_argument("--dtype", action="append", choices=samples.DTYPES)
    parser.add_argument("--device", default="cpu", help="`cuda` for samples on a GPU")
    parser.add_argument("--direction", action="append", choices=("forward", "backward"))
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="stop after so many, whatever is left")
    parser.add_argument("--patience", type=int, default=sweep.PATIENCE, help="seconds that a cell may take")
    parser.add_argument("--into", help="append the outcomes to that file, a JSON object a line")
    parser.add_argument("--done", action="append", default=[], help="leave out what this file has outcomes of")
    parser.add_argument("--from", action="append", dest="given", help="take outcomes that --into wrote instead of running anything")
    parser.add_argument("--table", help="update this table")
    parser.add_argument("--called", action="store_true", help="only what the table does not call lowered")
    parser.add_argument("--worse", action="store_true", help="let cells of the table get worse")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
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


def chosen(cell: samples.Cell, names: set[str], options: argparse.Namespace, rows: dict[str, table.Row]) -> bool:
    """Whether the command asks for a cell."""
    if options.called and cell.name in rows and rows[cell.name].states.get(table.column(cell)) in (table.LOWERED, table.OUT):
        return False
    dtype = not options.dtype or cell.dtype in options.dtype
    return cell.name in names and dtype and (not options.direction or cell.direction in options.direction)


def write(path: str, rows: dict[str, table.Row], outcomes: list[Outcome], known: dict, options: argparse.Namespace) -> bool:
    """Updates the table with what did not fail; False where it must not be."""
    import torch

    if options.device != "cpu":
        rows = {}
        table.update(rows, outcomes)
        samples = table.ALL if not any(o.left for o in outcomes) else table.SHARE
        with open(path, "w", encoding="utf-8") as out:
            out.write(table.render(rows, torch.__version__, f"on a GPU ({options.device})", samples))
        return True
    worse, perhaps = table.update(rows, [o for o in outcomes if not o.failed])
    if perhaps:
        print("perhaps better, `--samples 0` with these operators tells:\n" + "\n".join(perhaps))
    if worse and not options.worse:
        print("cells got worse, the table stays as it is:\n" + "\n".join(worse), file=sys.stderr)
        return False
    with open(path, "w", encoding="utf-8") as out:
        out.write(table.render({n: r for n, r in rows.items() if n in known}, torch.__version__, table.CPU, table.ALL))
    return True


def attempt_all(cells: list[samples.Cell], options: argparse.Namespace) -> list[Outcome]:
    plan = sweep.Plan(options.samples, options.workers, options.seconds, options.patience)
    with tempfile.TemporaryDirectory(prefix="inrush-op-db-", ignore_cleanup_errors=True) as folder, contextlib.ExitStack() as stack:
        # The user's cache is neither read nor filled. The workers inherit it.
        os.environ["INRUSH_CACHE_DIR"] = folder
        into = stack.enter_context(open(options.into, "a", encoding="utf-8")) if options.into else None

        def show(outcome: Outcome) -> None:
            print(outcome, flush=True)
            if into:
                sweep.append(into, outcome)

        return sweep.run(cells, plan, folder, show)


def main() -> int:
    options = arguments()
    if options.work:
        sweep.work(options.samples, options.patience)
        return 0
    os.environ["INRUSH_OP_DB_DEVICE"] = options.device
    if options.device == "cpu":
        # Some samples make tensors on a GPU where there is one.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    known = samples.operators()
    names = set(options.names or samples.shard(list(known), options.shard))
    unknown = names - set(known)
    if unknown:
        print(f"no such operators: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    mine = options.table and options.device == "cpu" and os.path.exists(options.table)
    rows = table.read(options.table) if mine else {}
    if options.given:
        outcomes = sweep.merge(o for path in options.given for o in sweep.load(path))
    else:
        done = {o.cell for path in options.done for o in sweep.load(path) if sweep.is_done(o, options.samples)}
        cells = [c for c in samples.cells(known) if chosen(c, names, options, rows)]
        cells = [p for c in cells for p in (c.parts() if options.samples == 0 else [c]) if str(p) not in done]
        found = attempt_all(cells, options)
        if len(found) < len(cells):
            print(f"out of time: {len(cells) - len(found)} of {len(cells)} cells and parts of cells are left")
        outcomes = sweep.merge(found)
    print(totals(outcomes))
    if options.table and not write(options.table, rows, outcomes, known, options):
        return 1
    return 1 if any(o.failed for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
