"""Operators that only training or inference graphs of PyTorch contain, beside eager, with their gradients."""

import inrush
import pytest
import torch
import torch.nn.functional as F


def compare(f, *args, calls=(), **tolerance):
    """Results, and gradients of float arguments that want them; nothing but ``calls`` may be called."""
    torch._dynamo.reset()
    g = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    wanted, got = f(*args), g(*args)
    torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if leaves:
        weight = torch.randn_like(wanted)
        want = torch.autograd.grad((wanted * weight).sum(), leaves)
        have = torch.autograd.grad((got * weight).sum(), leaves)
        torch.testing.assert_close(have, want, equal_nan=True, **tolerance)
    called = {c.op for graph in inrush.last_compile().graphs for c in graph.calls}
    assert called == set(calls), called


def leaf(*sizes, **kind):
    return torch.randn(*sizes, **kind).requires_grad_()


@pytest.mark.parametrize("options", [{"mode": "sum"}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 3}, {"mode": "sum", "include_last_offset": True}])
def test_embedding_bag(options):
    table, indices = torch.randn(10, 6), torch.tensor([1, 3, 3, 9, 0, 2, 3])
    offsets = torch.tensor([0, 2, 2, 5, 7] if "include_last_offset" in options else [0, 2, 2, 5])
    compare(lambda i, w, o: F.embedding_bag(i, w, o, **options), indices, table, offsets)


def test_embedding_bag_gradients():
    indices, offsets = torch.tensor([1, 3, 3, 9, 0, 2, 3]), torch.tensor([0, 2, 2, 5])
    for options in ({"mode": "sum"}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 3}):
        compare(lambda i, w, o: F.embedding_bag(i, w, o, **options), indices, leaf(10, 6), offsets)


def test_gradients_of_special_functions():
    x = leaf(50, dtype=torch.float64)
    compare(lambda x: torch.lgamma(x.abs() + 0.5) + torch.digamma(x.abs() + 0.5), x)
    compare(lambda x: torch.special.i0(x) + torch.special.i1e(x) + torch.special.ndtri(torch.sigmoid(x)), x)
    compare(lambda x: torch.erfinv(torch.tanh(x)) + torch.special.log_ndtr(x), x)


def test_masked_scatter_and_medians():
    x, mask, source = leaf(6, 5), torch.rand(6, 5) < 0.5, leaf(30)
    compare(lambda x, s: x.masked_scatter(mask, s) * 2, x, source)
    compare(lambda x: torch.median(x, 1)[0] + torch.nanmedian(x, 1)[0], x)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p):
    compare(lambda a, b: torch.cdist(a, b, p), leaf(5, 7), leaf(6, 7), rtol=1e-4, atol=1e-5)


def test_weight_norm():
    linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(5, 4))
    compare(lambda x: linear(x), leaf(3, 5))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margin_losses(reduction):
    x = leaf(5, 7)
    target = torch.randint(0, 7, (5,))
    # Rows of labels that end early are left to the operator cases: PyTorch decomposes this loss, and its decomposition counts
    # what follows the end.
    labels = torch.stack([torch.randperm(7) for _ in range(5)])
    labels[0] = 2
    compare(lambda x: F.multi_margin_loss(x, target, p=2, weight=torch.arange(7.0), reduction=reduction), x)
    compare(lambda x: F.multilabel_margin_loss(x, labels, reduction=reduction), x)


def test_long_rows_are_sorted_by_pytorch():
    x = torch.randn(4, 1000)
    compare(lambda x: torch.sort(x, dim=1, stable=True)[1] + 1, x, calls=["aten.sort.stable"])
    compare(lambda x: torch.sort(x, dim=1, stable=True)[1] + 1, x[:, :16])
