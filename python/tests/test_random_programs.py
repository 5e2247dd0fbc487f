"""A few programs drawn by chance; `python/random_programs.py` runs many."""

import os
import sys
from collections import Counter

import pytest

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import random_programs

SEEDS = range(40)
verdicts: dict[int, str] = {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_programs_drawn_by_chance(seed):
    program = random_programs.draw(seed)
    verdicts[seed] = verdict = random_programs.check(program, "cpu")
    assert not random_programs.is_wrong(verdict), f"{verdict}\n{program.text()}"


def test_most_of_them_could_be_compared():
    if len(verdicts) < len(SEEDS):
        pytest.skip("not all of them ran")
    assert Counter(verdicts.values())["right"] >= 30, verdicts


def test_a_wrong_result_is_seen():
    program = random_programs.draw(0)
    eager = random_programs.execute(program.function("cpu"), program.arguments("cpu"))
    other = random_programs.Ran([t + 1 if t is not None else None for t in eager.tensors], eager.strides)
    assert random_programs.compare(eager, eager, None, program) == (None, False)
    assert random_programs.compare(other, eager, None, program)[0]
