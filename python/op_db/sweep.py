"""Runs cells in worker processes, so that a crash costs one cell and is seen."""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, TextIO

import torch

from .attempt import Outcome, check
from .samples import PARTS, Cell, device, operators

# Seconds that a cell may take.
PATIENCE = 600
# Operators are begun in this order's seed: a run that is cut off has seen some of every family.
SEED = 0


@dataclass
class Plan:
    """How cells are run."""

    count: int | None = None
    """Samples of each cell; None: the cell's share; 0: all."""
    workers: int = 1
    seconds: float | None = None
    """When to stop, whatever is left."""
    patience: int = PATIENCE
    begun: float = field(default_factory=time.monotonic)

    def is_over(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.begun > self.seconds

    def left(self) -> float | None:
        return None if self.seconds is None else max(self.seconds - (time.monotonic() - self.begun), 0.0)


def work(count: int | None, patience: int) -> None:
    """A worker: reads lists of cells, a line each, and answers each cell with its outcome."""
    # Whatever a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    known = operators()
    for line in sys.stdin:
        cells = [Cell.parse(name) for name in json.loads(line)]
        op = known[cells[0].name]
        faulthandler.dump_traceback_later(patience, exit=True)
        for outcome in check(op, cells, count):
            print(json.dumps(dataclasses.asdict(outcome)), file=answers, flush=True)
            faulthandler.cancel_dump_traceback_later()
            faulthandler.dump_traceback_later(patience, exit=True)
        faulthandler.cancel_dump_traceback_later()


def groups(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """Neighbours that are tried together: one operator forward, in other dtypes than float32, which has more samples."""

    def kind(cell: Cell) -> Any:
        together = cell.direction == "forward" and cell.dtype != "float32" and cell.part == "1/1"
        return cell.name if together else str(cell)

    for _, some in itertools.groupby(cells, kind):
        yield list(some)


class Queue:
    """What is left to do, shared by the threads that drive workers."""

    def __init__(self, cells: list[Cell], plan: Plan, take: Callable[[Outcome], None]) -> None:
        by_name: dict[str, list[Cell]] = {}
        for cell in cells:
            by_name.setdefault(cell.name, []).append(cell)
        names = sorted(by_name)
        random.Random(SEED).shuffle(names)
        # What takes longest first.
        names.sort(key=lambda n: -PARTS.get(n, 1))
        self.plan = plan
        self._todo = [group for name in names for group in groups(by_name[name])]
        self._take = take
        self._lock = threading.Lock()

    def next(self) -> list[Cell] | None:
        with self._lock:
            return None if self.plan.is_over() or not self._todo else self._todo.pop(0)

    def again(self, cells: list[Cell]) -> None:
        """Each by itself, to find out which of them a worker died of."""
        with self._lock:
            self._todo[:0] = [[c] for c in cells]

    def take(self, outcome: Outcome) -> None:
        with self._lock:
            self._take(outcome)


def place(number: int) -> tuple[dict[str, str], set[int]]:
    """The environment and the processors of a worker. Each keeps to two processors: one that ran as many threads, or started as
    many builders of kernels, as the machine has processors would wait for the others. On GPUs workers take the devices in turn."""
    environment, processors = dict(os.environ), sorted(os.sched_getaffinity(0))
    if device() != "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = str(number % max(torch.cuda.device_count(), 1))
    at = 2 * number % len(processors)
    return environment, set(processors[at : at + 2])


class Worker:
    """A process that checks cells, and what it wrote to its error stream."""

    def __init__(self, plan: Plan, number: int, log: TextIO) -> None:
        count = [] if plan.count is None else ["--samples", str(plan.count)]
        environment, processors = place(number)
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, os.path.dirname(__file__), "--work", "--patience", str(plan.patience), *count],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        os.sched_setaffinity(self._process.pid, processors)
        # A worker beyond the whole run's time is ended; its cells are left to the next run.
        left = plan.left()
        self._timer = None if left is None else threading.Timer(left + 1, self._process.kill)
        if self._timer:
            self._timer.daemon = True
            self._timer.start()

    def ask(self, cells: list[Cell]) -> Iterator[Outcome]:
        """Outcomes of the cells, fewer where the process dies."""
        try:
            print(json.dumps([str(c) for c in cells]), file=self._process.stdin, flush=True)
        except OSError:
            return
        for _ in cells:
            line = self._process.stdout.readline()
            if not line.endswith("\n"):
                return
            yield Outcome(**json.loads(line))

    def died(self) -> str:
        """How a process ended that does not answer any more."""
        code = self._process.wait()
        self._log.flush()
        with open(self._log.name, encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log.read()[-20000:].splitlines() if line.strip()]
        # The stacks that the process printed, innermost first: of a crash the thread that crashed, which comes first; where it
        # took too long the main thread, which comes last. Else the last words.
        at = max((k for k, line in enumerate(lines) if line.startswith(("Fatal Python error", "Timeout"))), default=None)
        if at is None:
            told = lines[-3:]
        elif lines[at].startswith("Timeout"):
            told = lines[max(k for k, line in enumerate(lines) if line.startswith(("Timeout", "Thread", "Current thread"))) :][:7]
        else:
            told = lines[at : at + 6]
        return f"exit code {code}: {' / '.join(told)[:600]}"

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._process.kill()
        self._process.wait()


def run(cells: list[Cell], plan: Plan, folder: str, show: Callable[[Outcome], None]) -> list[Outcome]:
    """All cells, or as many as there is time for; outcomes in the order of the cells. `show` sees each as it comes."""
    found: dict[str, Outcome] = {}

    def take(outcome: Outcome) -> None:
        found[outcome.cell] = outcome
        show(outcome)

    queue = Queue(cells, plan, take)
    failures: list[BaseException] = []

    def drive_one(number: int) -> None:
        try:
            drive(queue, number, os.path.join(folder, f"worker-{number}.log"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive_one, args=(k,)) for k in range(plan.workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return [found[str(c)] for c in cells if str(c) in found]


def drive(queue: Queue, number: int, path: str) -> None:
    """One worker after the other until nothing is left."""
    plan, worker = queue.plan, None
    with open(path, "w", encoding="utf-8") as log:
        try:
            while (cells := queue.next()) is not None:
                worker = worker or Worker(plan, number, log)
                left = list(cells)
                for outcome in worker.ask(cells):
                    queue.take(outcome)
                    left.remove(Cell.parse(outcome.cell))
                if not left:
                    continue
                if plan.is_over():
                    return
                why = worker.died()
                worker.close()
                worker = None
                # One of several is found by trying each.
                if len(cells) == 1 or len(left) < len(cells):
                    queue.take(Outcome(str(left[0]), failed=[f"the process died or took more than {plan.patience} s: {why}"]))
                    left = left[1:]
                queue.again(left)
        finally:
            if worker:
                worker.close()


def load(path: str) -> list[Outcome]:
    """Outcomes of a run, of parts as such; of a run that was cut off, those before the cut."""
    with open(path, encoding="utf-8") as lines:
        return [Outcome(**json.loads(line)) for line in lines if line.endswith("\n")]


def merge(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes of whole cells; the last one of each part counts. Parts that are not there count as a sample left."""
    by_cell: dict[Cell, dict[str, Outcome]] = {}
    for o in outcomes:
        cell = Cell.parse(o.cell)
        by_cell.setdefault(dataclasses.replace(cell, part="1/1"), {})[cell.part] = o
    merged = []
    for cell, parts in by_cell.items():
        # A later run may have taken fewer samples, undivided: it says all that there is to say of them.
        last = list(parts.values())[-1]
        if Cell.parse(last.cell).part == "1/1":
            merged.append(last)
            continue
        missing = int(Cell.parse(last.cell).part.split("/")[1]) - len([p for p in parts if p != "1/1"])
        one = Outcome(str(cell), undefined=last.undefined, skipped=last.skipped, left=missing)
        for o in (o for p, o in parts.items() if p != "1/1"):
            one.samples += o.samples
            one.left += o.left
            one.refused_by_eager += o.refused_by_eager
            one.kernels += o.kernels
            one.called.update(o.called)
            one.upstream += o.upstream
            one.failed += o.failed
        merged.append(one)
    return merged


def is_done(outcome: Outcome, count: int | None) -> bool:
    """Whether a run that takes `count` samples of the cell would learn nothing new."""
    wanted = Cell.parse(outcome.cell).share() if count is None else count
    tried = outcome.samples + outcome.refused_by_eager
    return not outcome.failed and (outcome.left == 0 or bool(wanted) and tried >= wanted)


def append(out: TextIO, outcome: Outcome) -> None:
    print(json.dumps(dataclasses.asdict(outcome)), file=out, flush=True)
