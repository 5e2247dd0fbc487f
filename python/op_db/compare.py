"""Whether compiled results are eager's, or as near to the truth as eager's."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

# Relative and absolute tolerance by dtype of the result, PyTorch's own; everything else is exact.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
# How much farther from the truth than eager a result may be, where it is not within the tolerance.
FACTOR = 2.0
# But never farther than this, in parts of the largest value: eager may be far off.
FARTHEST = 0.05
# What sums may be off where their terms cancel: parts of the largest value, in units that the dtype can tell apart.
CANCELLING = {torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 256.0, torch.float64: 256.0}


class Wrong(AssertionError):
    """A result that differs from eager's."""


def leaves(value: Any) -> list[Any]:
    """Tensors and numbers of any containers, in order."""
    return [v for v in pytree.tree_leaves(value) if v is not None]


def compare(
    got: Any,
    wanted: Any,
    truth: Callable[[], Any],
    defined: bool,
    settle: Callable[[list[Any]], list[Any]] = lambda all: all,
    strides: bool = True,
    cancels: bool = False,
) -> None:
    """Raises `Wrong`. `truth` gives results of the same call in float64, as far as there is one; `settle` replaces results
    that are free by what is not; `cancels` says that results are sums whose terms may cancel."""
    got, wanted = leaves(got), leaves(wanted)
    if len(got) != len(wanted):
        raise Wrong(f"{len(got)} results, eager gives {len(wanted)}")
    if defined:
        got, wanted = settle(got), settle(wanted)
    exact: list[Any] | None = None
    for k, (g, w) in enumerate(zip(got, wanted)):
        where = f"result {k}: " if len(got) > 1 else ""
        if not isinstance(w, torch.Tensor):
            if defined and not same_number(g, w):
                raise Wrong(f"{where}{g!r}, eager gives {w!r}")
            continue
        form(g, w, where, strides)
        if not defined:
            continue
        g, w = dense(g), dense(w)
        problem = differs(g, w)
        if problem is None:
            continue
        if exact is None:
            exact = leaves(truth())
        if k < len(exact) and isinstance(exact[k], torch.Tensor) and exact[k].shape == w.shape and as_near(g, w, dense(exact[k]), cancels):
            continue
        raise Wrong(where + problem)


def same_number(g: Any, w: Any) -> bool:
    if isinstance(w, (float, complex)) and isinstance(g, (int, float, complex)):
        return torch.allclose(torch.tensor(g, dtype=torch.complex128), torch.tensor(w, dtype=torch.complex128), 1e-5, 1e-5, True)
    return g == w


def form(g: torch.Tensor, w: torch.Tensor, where: str, strides: bool) -> None:
    """Shape, dtype, layout, and strides where they are of any consequence."""
    if not isinstance(g, torch.Tensor):
        raise Wrong(f"{where}{type(g).__name__}, eager gives a tensor")
    if (g.shape, g.dtype, g.layout) != (w.shape, w.dtype, w.layout):
        raise Wrong(f"{where}{tuple(g.shape)} {g.dtype} {g.layout}, eager gives {tuple(w.shape)} {w.dtype} {w.layout}")
    if strides and g.layout == torch.strided and g.numel():
        if any(n > 1 and s != t for n, s, t in zip(g.shape, g.stride(), w.stride())):
            raise Wrong(f"{where}strides {g.stride()} of shape {tuple(g.shape)}, eager gives {w.stride()}")


def dense(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    if t.layout != torch.strided:
        t = t.to_dense()
    if t.is_quantized:
        t = t.int_repr()
    return t.resolve_conj().resolve_neg()


def differs(g: torch.Tensor, w: torch.Tensor) -> str | None:
    """What differs beyond the tolerance, or None."""
    rtol, atol = TOLERANCE.get(w.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        return None
    except AssertionError as error:
        return " ".join(line.strip() for line in str(error).splitlines() if line.strip())


def as_near(g: torch.Tensor, w: torch.Tensor, exact: torch.Tensor, cancels: bool = False) -> bool:
    """Whether `g` is as near to the exact result as eager's `w`: at its worst, in units that the dtype can tell apart."""
    if not (w.is_floating_point() or w.is_complex()) or not w.numel():
        return False
    unit = 4 * torch.finfo(w.dtype).eps
    rtol, atol = TOLERANCE[w.dtype]
    kind = torch.complex128 if w.is_complex() else torch.float64
    allowed = CANCELLING.get(w.dtype, 0.0) * torch.finfo(w.dtype).eps if cancels else 0.0
    g, w, exact = g.to(kind), w.to(kind), exact.to(kind)
    largest = exact[torch.isfinite(exact)].abs().max() if torch.isfinite(exact).any() else torch.tensor(0.0)
    right = torch.isclose(g, exact, rtol=rtol, atol=atol, equal_nan=True)
    g, w, exact = g[~right], w[~right], exact[~right]
    if not g.numel():
        return True
    # What the dtype cannot hold is eager's affair: there the two have to agree.
    odd = ~torch.isfinite(g) | ~torch.isfinite(w) | ~torch.isfinite(exact)
    if not bool(torch.isclose(g[odd], w[odd], rtol=rtol, atol=atol, equal_nan=True).all()):
        return False
    g, w, exact = g[~odd], w[~odd], exact[~odd]
    if not g.numel():
        return True
    ours, theirs = (g - exact).abs(), (w - exact).abs()
    if bool((ours <= theirs).all()):
        return True
    limit = torch.minimum(FACTOR * theirs.max(), FARTHEST * largest) + allowed * largest
    return bool((ours <= limit + unit * exact.abs()).all())
