"""Runs cells in worker processes, so that a crash costs one cell and is seen."""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterable, Iterator

from .attempt import Outcome, check, check_together
from .samples import Cell, operators

# Seconds that a cell may take.
PATIENCE = 600


# What a line of a worker's list begins with when the cell has to be checked alone.
ALONE = "!"


def work(cells: str, results: str, count: int | None) -> None:
    """A worker: reads cells, one a line, and appends to the results a line when it begins some and one when it is done."""
    known = operators()
    with open(cells, encoding="utf-8") as lines:
        todo = [line.rstrip("\n") for line in lines]
    with open(results, "a", encoding="utf-8") as out:
        for names in groups(todo):
            print(json.dumps({"begun": names}), file=out, flush=True)
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            cells = [Cell.parse(n.removeprefix(ALONE)) for n in names]
            op = known[cells[0].name]
            done = check_together(op, cells, count) if len(cells) > 1 else None
            for outcome in done or (check(op, c, count) for c in cells):
                print(json.dumps({"done": dataclasses.asdict(outcome)}), file=out, flush=True)
            faulthandler.cancel_dump_traceback_later()


def groups(todo: list[str]) -> Iterator[list[str]]:
    """Neighbours that are tried together: one operator forward, in other dtypes than float32, which has more samples."""

    def kind(name: str) -> Any:
        cell = Cell.parse(name)
        together = cell.direction == "forward" and cell.dtype != "float32" and not name.startswith(ALONE)
        return cell.name if together else name

    for _, names in itertools.groupby(todo, kind):
        yield list(names)


def run(cells: list[Cell], count: int | None, workers: int, show: Callable[[Outcome], None]) -> list[Outcome]:
    """All cells, dealt out to the workers; outcomes in the order of the cells."""
    found: dict[str, Outcome] = {}
    lock = threading.Lock()

    def take(outcome: Outcome) -> None:
        with lock:
            found[outcome.cell] = outcome
            show(outcome)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(drive, share, count, take) for share in deal(cells, workers)]:
            done.result()
    return [found[str(c)] for c in cells]


def deal(cells: list[Cell], workers: int) -> list[list[Cell]]:
    """Whole operators for each worker."""
    names = sorted({c.name for c in cells})
    return [[c for c in cells if c.name in set(names[k::workers])] for k in range(workers)]


def drive(cells: list[Cell], count: int | None, take: Callable[[Outcome], None]) -> None:
    """One worker after the other until all cells are done."""
    todo = [str(c) for c in cells]
    with tempfile.TemporaryDirectory(prefix="inrush-op-db-") as folder:
        names, results = os.path.join(folder, "cells"), os.path.join(folder, "results")
        log = os.path.join(folder, "log")
        while todo:
            with open(names, "w", encoding="utf-8") as out:
                out.write("\n".join(todo) + "\n")
            open(results, "w").close()
            command = [sys.executable, os.path.dirname(__file__), "--work", names, "--into", results, *([] if count is None else ["--samples", str(count)])]
            with open(log, "w", encoding="utf-8") as errors:
                worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            begun: list[str] = []
            for line in follow(results, worker):
                if "begun" in line:
                    begun = line["begun"]
                else:
                    outcome = Outcome(**line["done"])
                    take(outcome)
                    begun = [n for n in begun if n.removeprefix(ALONE) != outcome.cell]
                    todo = [n for n in todo if n.removeprefix(ALONE) != outcome.cell]
            if todo and not begun:
                with open(log, encoding="utf-8", errors="replace") as errors:
                    raise RuntimeError(f"a worker ended before its work: {errors.read()[-2000:]}")
            if len(begun) == 1:
                name = begun[0].removeprefix(ALONE)
                take(Outcome(name, failed=[f"the process died ({worker.returncode}) or took more than {PATIENCE} s"]))
                todo.remove(begun[0])
            # Which of several it was, the next worker finds out.
            todo = [ALONE + n if n in begun and not n.startswith(ALONE) else n for n in todo]


def follow(path: str, worker: subprocess.Popen) -> Iterator[dict]:
    """Lines of a file that a process appends to, until it ends."""
    with open(path, encoding="utf-8") as lines:
        part = ""
        while True:
            ended = worker.poll() is not None
            for text in lines:
                part += text
                if part.endswith("\n"):
                    yield json.loads(part)
                    part = ""
            if ended:
                return
            try:
                worker.wait(0.5)
            except subprocess.TimeoutExpired:
                pass


def load(path: str) -> list[Outcome]:
    """Outcomes of a run."""
    with open(path, encoding="utf-8") as lines:
        return [Outcome(**json.loads(line)) for line in lines]


def save(path: str, outcomes: Iterable[Outcome]) -> None:
    with open(path, "w", encoding="utf-8") as out:
        for o in outcomes:
            out.write(json.dumps(dataclasses.asdict(o)) + "\n")
