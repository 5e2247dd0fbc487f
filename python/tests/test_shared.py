"""Values that several library calls read are computed once, and nothing else is shared."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from inrush import _shared

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(_shared._gpu, "is_device", lambda tensor: True)


def shared(f, *args):
    """The graph of ``f`` after the pass, which must compute the same; and how many nodes are gone."""
    gm = make_fx(f)(*args)
    wanted = gm(*args)
    gone = _shared.share(gm)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*args), wanted, rtol=0, atol=0)
    return gm, gone


def count(gm, target):
    return len(gm.graph.find_nodes(op="call_function", target=target))


X, M = torch.randn(4, 4), torch.randn(4, 4) > 0


def test_equal_operands_of_products_are_computed_once():
    def f(x, m):
        masks = [torch.where(m, torch.zeros(()), torch.full((), -1.0)).expand(4, 4) for _ in range(3)]
        return masks[0] @ x, masks[1] @ (x + 1), x @ masks[2]

    gm, gone = shared(f, X, M)
    assert gone >= 6 and count(gm, aten.where.self) == 1 and count(gm, aten.mm.default) == 3


def test_what_no_library_reads_stays():
    gm, gone = shared(lambda x, m: (x.sin() * 2, x.sin() + 1, x @ x), X, M)
    assert gone == 0 and count(gm, aten.sin.default) == 2


def test_results_have_memory_of_their_own():
    def f(x, m):
        a, b = x.sin(), x.sin()
        return a @ x, b @ x, b.t()

    gm, gone = shared(f, X, M)
    assert gone == 0 and count(gm, aten.sin.default) == 2


def test_writes_are_not_crossed():
    def f(x, m):
        x = x.clone()
        a = x.sin() @ x
        x.add_(1)
        return a, x.sin() @ x

    gm, gone = shared(f, X, M)
    assert gone == 0 and count(gm, aten.sin.default) == 2


def test_random_numbers_are_drawn_each_time():
    gm = make_fx(lambda x: (torch.rand_like(x) @ x, torch.rand_like(x) @ x))(X)
    assert _shared.share(gm) == 0


def test_signs_of_zero_and_kinds_of_numbers_differ():
    def f(x, m):
        return torch.full((4, 4), 0.0) @ x, torch.full((4, 4), -0.0) @ x, x.mul(1) @ x, x.mul(1.0) @ x

    assert shared(f, X, M)[1] == 0


def test_a_value_that_only_a_copy_was_read_for_is_found_by_later_ones():
    """The first of equal values may have no reader of its own but one that goes."""

    def f(x, m):
        first = [aten.sin.default(x) for _ in range(3)]
        second = [aten.cos.default(v) for v in (first[1], first[0], first[2])]
        return [v @ x for v in second] + [first[2] @ x]

    gm, _ = shared(f, X, M)
    assert count(gm, aten.cos.default) == 1 and count(gm, aten.sin.default) == 2
