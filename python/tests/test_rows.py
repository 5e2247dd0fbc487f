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


KINDS = [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]


@pytest.mark.parametrize("name", KINDS)
def test_chebyshev_polynomials(name):
    f = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-1.6, 1.6, 23, dtype=torch.float64), torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)])
    # Below zero, by the recurrence, by closed forms, fractions.
    n = torch.tensor([-1.0, 0, 1, 2, 3, 7, 8, 9, 10, 25, 40, 2.9, 9.9], dtype=torch.float64)
    compare(lambda x, n: f(x[:, None], n), x, n, rtol=1e-9, atol=1e-11)
    compare(lambda x: f(x, -2) + f(x, 0) + f(x, 1) + f(x, 5) + f(x, 2.5), x)
    compare(lambda n: f(0.3, n), torch.arange(-2, 12))
    assert f(x[:0], n[:0]).shape == torch.compile(f, backend="inrush")(x[:0], n[:0]).shape


@pytest.mark.parametrize("name", ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"])
def test_polynomials_whose_degree_is_a_number(name):
    f = getattr(torch.special, name)
    x = torch.tensor([-1.5, -1.0, -0.3, 0.0, 0.4, 1.0, 2.0], dtype=torch.float64)
    for n in (-1, 0, 1, 2, 9, 3.7):
        compare(lambda x: f(x, n), x)
    compare(lambda x, n: f(x, n) * 2, x, torch.full((7,), 3.0), calls=[f"aten.special_{name}.default"])


def test_airy_function():
    x = torch.cat([torch.linspace(-40, 20, 301), torch.tensor([0.0, 2.09, -2.09, 8.3203353, 104, -1e4])]).double()
    compare(torch.special.airy_ai, x, rtol=1e-9, atol=1e-12)
    compare(torch.special.airy_ai, torch.tensor([float("nan"), float("inf"), -float("inf")]))
    compare(torch.special.airy_ai, x.float()[:290], rtol=1e-3, atol=1e-5)


def test_searching_by_a_sorter():
    rows, values = torch.randint(0, 9, (3, 8)), torch.randint(-1, 10, (3, 5))
    sorter = rows.argsort(1)
    for right in (False, True):
        compare(lambda r, v, s: torch.searchsorted(r, v, sorter=s, right=right), rows, values, sorter)
    compare(lambda r, s: torch.searchsorted(r, 4, sorter=s), rows[0], sorter[0])
    compare(lambda r, v, s: torch.searchsorted(r, v, sorter=s), rows[:, :0], values, sorter[:, :0])
    with pytest.raises((RuntimeError, IndexError)):
        torch.compile(lambda r, v, s: torch.searchsorted(r, v, sorter=s), backend="inrush")(rows, values, sorter + 8)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_paddings_that_cut_off(mode):
    for pads in ([-1, 2], [2, -3], [-1, -2]):
        compare(lambda x: F.pad(x, pads, mode=mode) * 2, leaf(2, 3, 7))
    compare(lambda x: F.pad(x, [1, -2, -1, 3], mode=mode) * 2, leaf(2, 3, 7, 6))


def test_gradients_with_nothing_to_gather():
    compare(lambda x: x.gather(0, torch.empty(0, dtype=torch.int64)) * 2, leaf(4))
    compare(lambda x: x.unfold(0, 1, 1) * 3, torch.tensor(0.5, requires_grad=True))
