"""Gradients whose formulas PyTorch writes out at length when it captures a graph, because eager's look at the values first.

Eager's gradient of ``prod`` divides by the elements where none is zero, and that of ``cumprod`` does before a row's first zero.
A captured graph cannot ask, and gets products of all others: two running products, or as many operators as a row has elements.
What is here divides where eager does and chooses element by element.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

aten = torch.ops.aten

_own = threading.local()


@contextlib.contextmanager
def own_operators(active: bool = True) -> Iterator[None]:
    """Has this thread's captures keep shrinks, and resampling of images on CPUs, whole, and take the gradients below.

    With ``active=False`` PyTorch's decompositions hold while this lasts. :mod:`inrush.patches.operators` asks.
    """
    before = own_operators_are_active()
    _own.active = active
    try:
        yield
    finally:
        _own.active = before


def own_operators_are_active() -> bool:
    """Returns true inside of :func:`own_operators`."""
    return getattr(_own, "active", False)


def reversed_cumsum(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


def of_cumprod(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, dim: int) -> torch.Tensor:
    """Each result depends on the elements up to its place. After a row's first zero the gradients are zeros, as the factor is
    part of all results there; at that zero it is the products without it, up to the next zero, that count."""
    size = x.shape[dim]
    place = torch.arange(size, dtype=torch.int32, device=x.device).view(-1, *([1] * (x.dim() - 1 - dim % x.dim())))
    # The first two zeros are found by reductions: a count of those up to each place would be one more running sum.
    zero_at = torch.where(x == 0, place, size)
    first = zero_at.amin(dim, keepdim=True)
    second = torch.where(zero_at > first, zero_at, size).amin(dim, keepdim=True)
    before, between = place < first, (place > first) & (place < second)
    divided = reversed_cumsum(torch.where(before, grad * out, 0), dim) / x
    behind = torch.where(between, x, 1).cumprod(dim)
    at_first = (torch.where(between | (place == first), grad, 0) * behind).sum(dim, keepdim=True)
    ahead = torch.cat([torch.ones_like(out.narrow(dim, 0, 1)), out.narrow(dim, 0, size - 1)], dim)
    return torch.where(before, divided, torch.where(place == first, at_first * ahead, 0))


def of_prod(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """The product of all others: the result by the element, where there is no zero. A single zero has the product of the rest.
    Rows (what `dims` go over) decide for themselves; eager takes the products of all others everywhere if there is a zero
    anywhere, which an infinite element tells apart."""
    zero = x == 0
    zeros = zero.to(torch.float32).sum(dims, keepdim=True)
    rest = torch.where(zero, 1, x)
    for dim in dims:
        rest = rest.prod(dim, keepdim=True)
    # A zero among the others has the last word unless they are not finite: then the product is NaN, as the result is. Of such
    # an element itself the others have to be asked.
    endless = torch.where(x.isfinite(), 0.0, 1.0)
    others = torch.where(endless.sum(dims, keepdim=True) > 1, torch.nan, 0.0).to(x.dtype)
    besides_zeros = torch.where(x.isfinite(), out / x, torch.where(zeros == 0, out / x, others))
    return grad * torch.where(zero, torch.where(zeros == 1, rest, rest * 0), besides_zeros)


class _Differentiated(torch.autograd.Function):
    """An operator whose gradient is computed by one of :data:`FORMULAS`."""

    @staticmethod
    def forward(ctx: Any, operator: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = operator(x, *rest)
        ctx.save_for_backward(x, out)
        ctx.operator, ctx.rest = operator, rest
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Gradients of this gradient are wanted, which the formulas above do not have at zeros.
            with own_operators(False):
                out = ctx.operator(x, *ctx.rest)
            (to_input,) = torch.autograd.grad(out, x, grad, create_graph=True)
        else:
            to_input = FORMULAS[ctx.operator](grad, x, out, *ctx.rest)
        return None, to_input, *(None for _ in ctx.rest)


def _cumprod(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, dim: int) -> torch.Tensor:
    return of_cumprod(grad, x, out, dim)


def _prod(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return of_prod(grad, x, out, list(range(x.dim())))


def _prod_of_rows(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    if not keepdim:
        grad, out = grad.unsqueeze(dim), out.unsqueeze(dim)
    return of_prod(grad, x, out, [dim])


FORMULAS: dict[Any, Callable[..., torch.Tensor]] = {
    aten.cumprod.default: _cumprod,
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod_of_rows,
}


def _may_be_empty(x: torch.Tensor) -> bool:
    # Symbols of sizes that a caller gives are two and more; of those that data give nothing is known.
    return any(n == 0 if isinstance(n, int) else bool(free_unbacked_symbols(n)) for n in x.shape)


def differentiated(operator: Any, x: torch.Tensor, *rest: Any, dtype: Any = None) -> torch.Tensor | None:
    """The operator with a gradient of this module's, or None where PyTorch's is to be taken."""
    if dtype is not None or not x.is_floating_point() or x.dim() == 0 or _may_be_empty(x):
        return None
    return _Differentiated.apply(operator, x, *rest)
