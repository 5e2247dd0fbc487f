"""Control-flow operators: branches and bodies are compiled."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop


def branches(report):
    return [g for g in report.all_graphs() if g.kind == "subgraph"]


def test_cond(check):
    f = lambda a: torch.cond(a.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (a,))
    report = check(f, torch.ones(3, 4))
    assert len(branches(report)) == 2 and all(g.kernels for g in branches(report))
    check(f, -torch.ones(3, 4))


def test_cond_on_sizes_and_closures(check):
    def f(a, w):
        return torch.cond(a.mean() > 0, lambda t: (t @ w).sum(0), lambda t: (t @ w.t()).sum(0), (a,))

    for sign in (1, -1):
        check(f, sign * torch.rand(3, 4), torch.randn(4, 4), dynamic=True)


def test_cond_inside_cond(check):
    def inner(t):
        return torch.cond(t.max() > 2, lambda u: u * 2, lambda u: u + 1, (t,))

    f = lambda a: torch.cond(a.sum() > 0, inner, lambda t: t - 1, (a,))
    for scale in (1.0, 5.0, -1.0):
        check(f, torch.full((3,), scale))


def test_cond_has_gradients(check):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, a):
            return torch.cond(a.sum() > 0, lambda t: t @ self.w, lambda t: t * 2 @ self.w, (a,))

    check.training(Model(), torch.ones(3, 4))


def test_while_loop(check):
    def f(a):
        return while_loop(lambda k, t: k < 5, lambda k, t: (k + 1, t * 1.5), (torch.tensor(0), a))

    report = check(f, torch.randn(3))
    assert len(branches(report)) == 2
    check(lambda a: while_loop(lambda k, t: k < 0, lambda k, t: (k + 1, t * 1.5), (torch.tensor(0), a)), torch.randn(3))


def test_scan(check):
    f = lambda a: scan(lambda c, t: (c + t, c * t), torch.zeros(5), a, dim=0)
    report = check(f, torch.randn(4, 5))
    assert len(branches(report)) == 1
    check(lambda a: scan(lambda c, t: (c * 0.5 + t, c.sin()), torch.zeros(4), a, dim=1), torch.randn(4, 5))


def test_map(check):
    report = check(lambda a, b: map_(lambda t, u: (t @ u).exp(), a, b), torch.randn(3, 2, 4), torch.randn(4))
    assert len(branches(report)) == 1


def test_associative_scan(check):
    check(lambda a: associative_scan(lambda p, q: p * q, a, 0, combine_mode="generic"), torch.rand(7, 3))


def test_a_subgraph_that_is_called_often(check):
    @torch.compiler.nested_compile_region
    def block(a):
        return torch.relu(a * 2) + 1

    check(lambda a: block(block(a)), torch.randn(4))
