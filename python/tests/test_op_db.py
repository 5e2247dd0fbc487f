"""A share of PyTorch's own operator samples, another one for each commit, against eager and `docs/coverage.md`; and the table itself.

`cargo xtask coverage` runs them all.
"""

import os
import random
import sys
import time

import pytest
import torch
from torch._subclasses import FakeTensorMode

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

from inrush import fake_strides
from op_db import attempt, compare, layouts, samples, table

TABLE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "coverage.md")
# Which operators, how many, in how many seconds.
SEED = int(os.environ.get("INRUSH_OP_DB_SEED") or os.environ.get("INRUSH_SEED") or time.time() // 86400)
COUNT = int(os.environ.get("INRUSH_OP_DB_COUNT", "36"))
SECONDS = float(os.environ.get("INRUSH_OP_DB_SECONDS", "120"))
# Share of operators that must be lowered forward in float32.
GOAL = 0.75

OPERATORS = samples.operators()
ROWS = table.read(TABLE)


@pytest.fixture(scope="module")
def deadline():
    """Counted from the first sample on: the tests before it take their own time."""
    return time.monotonic() + SECONDS


def drawn():
    """Some operators forward in float32, and for each another cell."""
    dice = random.Random(SEED)
    by_name = {}
    for cell in samples.cells(OPERATORS):
        by_name.setdefault(cell.name, []).append(cell)
    for name in sorted(dice.sample(sorted(by_name), COUNT)):
        first, *others = sorted(by_name[name], key=lambda c: (c.dtype, c.direction) != ("float32", "forward"))
        yield first
        if others:
            yield dice.choice(others)


@pytest.mark.parametrize("cell", list(drawn()), ids=str)
def test_samples(cell, deadline):
    if time.monotonic() > deadline:
        pytest.skip("the time for operator samples is over")
    (outcome,) = attempt.check(OPERATORS[cell.name], [cell], None)
    assert not outcome.failed, f"seed {SEED}: {outcome}"
    told = ROWS[cell.name].states.get(table.column(cell), table.NONE)
    now = table.state(outcome)
    if told == table.NONE:
        pytest.skip("the table does not have this cell yet")
    # What is better than the table says waits for the next run of the command; what is worse is a failure.
    assert table.RANK[now] >= table.RANK[told], f"docs/coverage.md says {told}, it is {now}: `cargo xtask coverage {cell.name}` writes it anew\n{outcome}"


def test_strides_in_several_formats():
    """Operators that need a line of `rules.txt`, and some that need none; `python/op_db/layouts.py` takes all of them."""
    end = time.monotonic() + SECONDS / 12
    names = ["roll", "nn.functional.pad.reflect", "nn.functional.pad.replicate", "nn.functional.pad.constant", "ldexp", "copysign", "add", "xlogy", "fft.ifft"]
    cells = [samples.Cell(n, "float32", "forward") for n in names]
    known = {str(c) for c in samples.cells(OPERATORS)}
    compared = 0
    for cell in (c for c in cells if str(c) in known):
        for found in layouts.differences(OPERATORS[cell.name], cell, 2):
            assert found is None, f"{found}"
            compared += 1
        if time.monotonic() > end:
            break
    assert compared > 10


def test_wrong_strides_are_found(monkeypatch):
    cell = samples.Cell("ldexp", "float32")
    assert not any(layouts.differences(OPERATORS["ldexp"], cell, 12))
    monkeypatch.setattr(fake_strides, "rules", dict)
    FakeTensorMode.cache_clear()
    found = list(filter(None, layouts.differences(OPERATORS["ldexp"], cell, 12)))
    FakeTensorMode.cache_clear()
    assert found and found[0].eager != found[0].fake


def test_the_table_is_whole():
    cells = {(c.name, table.column(c)) for c in samples.cells(OPERATORS)}
    told = {(name, column) for name, row in ROWS.items() for column in row.states}
    assert not told - cells, f"no such cells: {sorted(told - cells)[:5]}"
    # A few cells may wait for the next run of the command.
    missing = sorted({name for name, _ in cells - told})
    assert len(cells - told) <= 0.02 * len(cells), f"`cargo xtask coverage` was not run for {missing}"


def test_most_operators_are_lowered():
    head, lowered, all, _ = table.shares(ROWS)[0]
    assert lowered >= GOAL * all, f"{head}: {lowered} of {all} operators are lowered"


def test_differences_are_found():
    x = torch.tensor([1.0, 2.0, float("nan")])
    nothing = lambda: []
    compare.compare([x], [x.clone()], nothing, True)
    wrong = [x + 1e-4, x.double(), x[:2], torch.tensor([1.0, 2.0, 3.0]), 1.0]
    for got in wrong:
        with pytest.raises(compare.Wrong):
            compare.compare([got], [x], nothing, True)
    with pytest.raises(compare.Wrong):
        compare.compare([torch.zeros(2, 3).t()], [torch.zeros(3, 2)], nothing, True)
    # As near to the truth as eager, and farther.
    half, exact = torch.tensor([1.0, 1000.0]).half(), torch.tensor([1.0, 1001.5]).double()
    compare.compare([half + 3], [half], lambda: [exact + torch.tensor([1.5, 0])], True)
    with pytest.raises(compare.Wrong):
        compare.compare([half + 30], [half], lambda: [exact], True)


def test_a_share_of_the_samples_makes_no_cell_better():
    cell = samples.Cell("add", "float32")
    called = attempt.Outcome(str(cell), samples=3, called={"aten.add": "no lowering"})
    rows = {}
    assert table.update(rows, [called]) == ([], [])
    lowered = attempt.Outcome(str(cell), samples=2, left=1)
    worse, perhaps = table.update(rows, [lowered])
    assert not worse and len(perhaps) == 1
    assert rows["add"].states[table.column(cell)] == table.CALLED
    whole = attempt.Outcome(str(cell), samples=3)
    assert table.update(rows, [whole]) == ([], [])
    assert rows["add"].states[table.column(cell)] == table.LOWERED and not rows["add"].reasons
    assert table.update(rows, [attempt.Outcome(str(cell), samples=1, left=2, called={"aten.add": "no lowering"})])[0]
