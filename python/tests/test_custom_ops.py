"""Operators that users define."""

import pytest
import torch


@torch.library.custom_op("inrush_tests::doubled", mutates_args=())
def doubled(a: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(a.numpy() * 2)


@doubled.register_fake
def _(a):
    return torch.empty_like(a)


@torch.library.custom_op("inrush_tests::increment", mutates_args=("a",))
def increment(a: torch.Tensor, by: float = 1.0) -> None:
    a.add_(by)


@torch.library.custom_op("inrush_tests::pair", mutates_args=())
def pair(items: list[torch.Tensor], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return items[0] * n, torch.stack(items)


@pair.register_fake
def _(items, n):
    return torch.empty_like(items[0]), items[0].new_empty(len(items), *items[0].shape)


@torch.library.custom_op("inrush_tests::fails", mutates_args=())
def fails(a: torch.Tensor) -> torch.Tensor:
    if a.sum() > 0:
        raise ValueError("no positive sums")
    return a.clone()


@fails.register_fake
def _(a):
    return torch.empty_like(a)


def test_between_kernels(check):
    report = check(lambda a: doubled(a + 1) * 3, torch.randn(4))
    assert [c.op for g in report.graphs for c in g.calls] == ["inrush_tests.doubled.default"]
    assert report.kernels >= 2


def test_mutation(check):
    def f(a):
        b = a * 2
        increment(b, 0.5)
        increment(a)
        return b + a

    check(f, torch.randn(4), calls=2)


def test_lists_and_tuples(check):
    check(lambda a, b: [t + 1 for t in pair([a * 2, b], 3)], torch.randn(4), torch.randn(4))


def test_gradients():
    doubled.register_autograd(lambda ctx, grad: grad * 2)
    a = torch.randn(4, requires_grad=True)
    torch.compile(lambda a: doubled(a.sin()).sum(), backend="inrush", options={"strict": True})(a).backward()
    torch.testing.assert_close(a.grad, 2 * a.detach().cos())


def test_an_exception_inside_is_the_users():
    f = torch.compile(lambda a: fails(a * 2) + 1, backend="inrush", options={"strict": True})
    torch.testing.assert_close(f(-torch.ones(3)), -torch.ones(3))
    for _ in range(3):
        with pytest.raises(ValueError, match="no positive sums"):
            f(torch.ones(3))
    torch.testing.assert_close(f(-torch.ones(3)), -torch.ones(3))
