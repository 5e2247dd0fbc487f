"""A few programs drawn by chance, and what draws and compares them; `python/drawn` runs many."""

import dataclasses
import os
import sys
import time
from collections import Counter

import pytest
import torch

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from drawn.check import calls, check, is_wrong, shorter
from drawn.compare import compare, execute
from drawn.draw import draw
from drawn.known import known
from drawn.program import RANKS, Input, Program, Variant
from drawn.summary import all_features
from drawn.writes import DefinedWrites, Undefined, overlaps

SEEDS = [s for s in range(18) if s != 10]
verdicts: dict[int, str] = {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_programs_drawn_by_chance(seed):
    program = draw(seed)
    verdicts[seed] = verdict = check(program, "cpu")
    assert not is_wrong(verdict), f"{verdict}\n{program.text()}"


def test_most_of_them_could_be_compared():
    if len(verdicts) < len(SEEDS):
        pytest.skip("not all of them ran")
    assert Counter(verdicts.values())["right"] >= 13, verdicts


@pytest.mark.filterwarnings("ignore")
def test_a_seed_is_always_the_same_program():
    for seed in range(100, 110):
        assert draw(seed) == draw(seed)


def ran(program):
    built = program.build("cpu")
    return execute(built.function, program.arguments("cpu"), program, built.modules)


def test_a_wrong_value_stride_alias_or_draw_is_seen():
    inputs = [Input("float32", (3, 4), "transposed"), Input("float32", (3, 4), alias=(0, "x"))]
    program = Program(1, inputs, ["v0 = a0 * 2", "a1.add_(1)"], ["v0", "v0[1:]"], draws=True)
    eager = ran(program)
    assert compare(eager, ran(program), None, program) == (None, False)
    assert ("argument 0", "argument 1", 0) in eager.shared and ("result 0", "result 1", 4) in eager.shared
    other = dataclasses.replace(eager, tensors=[t + 1 for t in eager.tensors])
    assert "differ" in compare(other, eager, None, program)[0]
    assert "strides" in compare(dataclasses.replace(eager, strides=[(4, 1), *eager.strides[1:]]), eager, None, program)[0]
    assert "shared" in compare(dataclasses.replace(eager, shared=eager.shared[1:]), eager, None, program)[0]
    assert "generator" in compare(dataclasses.replace(eager, generator=eager.generator + 1), eager, None, program)[0]


def test_what_fails_is_made_shorter():
    inputs = [Input("float32", (3,)), Input("float16", (3, 4), "gapped"), Input("float32", (3, 4), alias=(1, "x"))]
    lines = ["v0 = a1.exp()", "v1 = a0 + 1", "a2.mul_(2)", "v3 = v1.sum()"]
    program = Program(1, inputs, lines, ["v0"], dynamic=True, trains=True, variants=[Variant((1, 2, 3, 4))])
    short = shorter(program, lambda p: any(x.endswith(".mul_(2)") for x in p.lines), time.monotonic() + 20)
    assert (short.lines, short.variants, short.dynamic, short.trains) == (["v0 = a0.exp()", "a1.mul_(2)"], [], False, False)
    assert [(i.layout, i.dtype) for i in short.inputs] == [("plain", "float32")] * 2


def test_layouts_are_what_they_are_called():
    shape = (2, 3, 4, 5)
    for name in RANKS:
        x = Program(1, [Input("float32", shape, name)], [], []).arguments("cpu")[0]
        assert x.shape == shape
        assert overlaps(x) == (name in ("expanded", "expanded_last", "overlapping")), name
        assert x.is_contiguous() == (name in ("plain", "offset", "negated", "part")), name
        assert x.is_neg() == (name in ("negated", "imaginary")), name


def test_writes_that_eager_does_not_define_are_not_drawn():
    x = torch.zeros(7).unfold(0, 3, 2)
    with DefinedWrites():
        x.fill_(1)
        x[:, :2].add_(1)
        with pytest.raises(Undefined):
            x.add_(1)


def test_later_calls_have_other_sizes_and_aliases():
    inputs = [Input("float32", (3, 4), symbols=(0, None)), Input("float32", (2, 4), alias=(0, "x[1:]"))]
    program = Program(1, inputs, ["a0.add_(1)"], ["a1"], variants=[Variant((5, 1, 1, 1)), Variant(None, ((1, None),))])
    sizes = [[tuple(x.shape) for x in program.arguments("cpu", v)] for v in calls(program)]
    assert sizes == [[(3, 4), (2, 4)], [(3, 4), (2, 4)], [(5, 4), (4, 4)], [(3, 4), (2, 4)]]
    a0, a1 = program.arguments("cpu", program.variants[1])
    assert a0.untyped_storage().data_ptr() != a1.untyped_storage().data_ptr()


def test_faults_that_are_known_are_told_apart():
    group_norm = Program(1, [Input("float32", (1, 2, 3, 3), "channels_last")], ["v0 = m0(a0)"], ["v0"], modules=["nn.GroupNorm(1, 2)"])
    assert known(group_norm, "call 2: strides of result 0: (1, 1, 6, 2), eager (18, 1, 6, 2)", "cpu")
    assert known(group_norm, "result 0: 1 of 18 elements differ", "cpu") is None
    plain = dataclasses.replace(group_norm, inputs=[Input("float32", (1, 2, 3, 3))])
    assert known(plain, "strides of result 0: (1, 1, 6, 2), eager (18, 1, 6, 2)", "cpu") is None


def test_features_have_names_of_their_own():
    names = all_features()
    assert len(names) == len(set(names)) > 500 and {f for s in range(30) for f in draw(s).features} <= set(names)
