"""A few programs drawn by chance; `python/random_programs.py` runs many."""

import os
import sys

import pytest

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import random_programs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_programs_drawn_by_chance(seed):
    program = random_programs.draw(seed)
    verdict = random_programs.check(program, "cpu")
    assert not random_programs.is_wrong(verdict), f"{verdict}\n{program.text()}"


def test_a_wrong_result_is_seen():
    program = random_programs.draw(0)
    eager = random_programs.execute(program.function("cpu"), program.arguments("cpu"))
    other = random_programs.Ran([t + 1 if t is not None else None for t in eager.tensors], eager.strides)
    assert random_programs.compare(eager, eager, None, program) == (None, False)
    assert random_programs.compare(other, eager, None, program)[0]
