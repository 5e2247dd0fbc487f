"""Gradients that `inrush.autograd.gradients` has formulas for, beside eager's in float64: zeros in all places, and what is not finite."""

import itertools

import pytest
import torch

OPERATORS = {
    "cumprod.rows": lambda x: x.cumprod(1),
    "cumprod.columns": lambda x: x.t().cumprod(0),
    "cumprod.outer": lambda x: x.cumprod(0),
    "prod": lambda x: x.prod(),
    "prod.rows": lambda x: x.prod(-1),
    "prod.kept": lambda x: x.prod(1, keepdim=True),
    "prod.columns": lambda x: x.t().prod(0),
    "masked.prod": lambda x: torch.masked.prod(x, 1, mask=x < 2),
}


def rows(*values):
    return torch.tensor(list(itertools.product(values, repeat=4)))


def gradient(f, x, weight):
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return torch.autograd.grad(y, x, weight.to(y.dtype).reshape(y.shape))[0]


def check(f, x, dynamic=False):
    torch.manual_seed(1)
    weight = torch.randn(f(x).shape)
    compiled = torch.compile(f, backend="inrush", options={"strict": True}, dynamic=dynamic)
    ours, exact = gradient(compiled, x, weight), gradient(f, x.double(), weight)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", OPERATORS)
def test_zeros_in_all_places(name):
    check(OPERATORS[name], rows(0.0, 1.5, -2.0) if name != "prod" else torch.tensor([[1.5, 0.0], [-2.0, 3.0]]))


@pytest.mark.parametrize("name", ["prod", "prod.rows", "cumprod.rows"])
@pytest.mark.parametrize("row", [[2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 2.0, 0.0], [1.0, -0.0, 4.0], [7.0], [0.0], []])
def test_single_rows(name, row):
    check(OPERATORS[name], torch.tensor([row]))


@pytest.mark.parametrize("name", ["cumprod.rows", "cumprod.columns"])
def test_infinities_and_nans_in_running_products(name):
    check(OPERATORS[name], rows(0.0, 1.5, float("inf"), float("nan")))


@pytest.mark.parametrize("zeros", [False, True])
def test_infinities_and_nans_in_products(zeros):
    # Eager divides in all rows or, if there is a zero in any, in none.
    x = rows(0.0, 1.5, float("inf"), float("nan"))
    check(OPERATORS["prod.rows"], x[(x == 0).any(1) == zeros])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_long_rows(name, dynamic):
    x = 1 + 0.02 * torch.randn(33, 1000, generator=torch.Generator().manual_seed(0))
    check(OPERATORS[name], x, dynamic)
    if name != "prod":
        x[::3, 300] = 0
        x[::6, 700] = 0
        check(OPERATORS[name], x, dynamic)


def test_running_products_are_few_operators():
    import inrush

    compiled = torch.compile(lambda x: x.cumprod(1), backend="inrush", options={"strict": True, "cache": False})
    compiled(torch.randn(3, 500, requires_grad=True)).sum().backward()
    (backward,) = [g for g in inrush.last_compile().graphs if g.kind == "backward"]
    assert backward.nodes < 100


@pytest.mark.parametrize("name", ["cumprod.rows", "prod.rows", "prod"])
def test_other_kinds(name):
    """Complex numbers, another dtype for the result, transforms and derivatives of derivatives are PyTorch's."""
    f = OPERATORS[name]
    x = torch.tensor([[1.5, 0.0, -2.0], [0.5, 3.0, 0.0]])
    cases = [
        (lambda x: torch.func.grad(lambda x: f(x).sin().sum())(x), x),
        (lambda x: torch.func.vmap(torch.func.grad(lambda x: f(x[None]).sum()))(x), x),
        (lambda x: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).square().sum())(x), x),
        (lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1], x),
    ]
    for g, x in cases:
        torch.testing.assert_close(torch.compile(g, backend="inrush")(x), g(x))
    # Eager's own gradient of `cumprod` fails at zeros where the result has another dtype.
    for x in (x.to(torch.complex64), (x + 0.25).half()):
        dtype = None if x.is_complex() else torch.float32
        g = lambda x: x.cumprod(1, dtype=dtype) if name == "cumprod.rows" else f(x.to(dtype)) if dtype else f(x)  # noqa: E731
        weight = torch.ones_like(g(x))
        torch.testing.assert_close(gradient(torch.compile(g, backend="inrush"), x, weight), gradient(g, x, weight))


@pytest.mark.parametrize("name", ["cumprod.rows", "prod.rows", "prod"])
def test_gradients_of_gradients(name):
    """A backward pass that is recorded itself takes PyTorch's formula."""
    from torch._functorch.aot_autograd import aot_function, make_boxed_func

    from inrush import patches
    from inrush.autograd import gradients

    def penalty(x):
        (grad,) = torch.autograd.grad(OPERATORS[name](x).square().sum(), x, create_graph=True)
        return grad.square().sum()

    x = torch.tensor([[1.5, 0.0, -2.0], [0.5, 3.0, 0.0]], dtype=torch.float64, requires_grad=True)
    as_it_is = lambda graph, _: make_boxed_func(graph)  # noqa: E731
    patches.install()
    with gradients.own_operators():
        traced = torch.autograd.grad(aot_function(penalty, fw_compiler=as_it_is, bw_compiler=as_it_is)(x), x)
    torch.testing.assert_close(traced, torch.autograd.grad(penalty(x), x))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic", "trilinear"])
def test_sampling_at_places(mode, padding, channels_last):
    """Corners of many places meet: what each of them adds arrives, twice the same."""
    generator = torch.Generator().manual_seed(0)
    volume = mode == "trilinear"
    sizes, spots = ((3, 5, 6, 7), (4, 5, 6, 3)) if volume else ((3, 9, 11), (13, 17, 2))
    x = torch.randn(2, *sizes, generator=generator)
    grid = torch.rand(2, *spots, generator=generator) * 2.6 - 1.3
    if channels_last:
        x = x.to(memory_format=torch.channels_last_3d if volume else torch.channels_last)
    for align in (False, True):
        f = lambda x, grid, align=align: torch.nn.functional.grid_sample(  # noqa: E731
            x, grid, "bilinear" if volume else mode, padding, align
        )
        weight = torch.randn(f(x, grid).shape, generator=generator)

        def gradients(f, *operands):
            operands = [t.detach().clone().requires_grad_() for t in operands]
            return torch.autograd.grad(f(*operands), operands, weight.to(operands[0].dtype))

        compiled = torch.compile(f, backend="inrush", options={"strict": True})
        ours, again, exact = gradients(compiled, x, grid), gradients(compiled, x, grid), gradients(f, x.double(), grid.double())
        for a, b, c in zip(ours, again, exact):
            assert torch.equal(a, b)
            torch.testing.assert_close(a.double(), c, rtol=2e-4, atol=2e-4)
