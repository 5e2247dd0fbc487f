"""Strides of fresh results as eager's kernels give them, where PyTorch's shape functions say otherwise.

Fake tensors are what Dynamo, AOTAutograd and inrush learn the layout of every value from. A wrong stride there is a wrong result
of ``stride()``, a copy where eager has none, and a wrong number where :func:`torch.as_strided` counts positions in memory. The
table of what is wrong is ``layouts/rules.txt`` of ``inrush-aten``, which packages go by as well; this module applies it to
what :class:`FakeTensorMode` computes, and lets no fresh result have two elements in one place.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, guard_or_false

from inrush import _native

aten = torch.ops.aten

# Strides of one result, or None where the shape function is right.
Strides = Sequence[Any] | None


def contiguous(shape: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        # PyTorch counts a size of zero as one.
        step = shape[d + 1] if not _is(shape[d + 1] == 0) else 1
        strides[d] = strides[d + 1] * step
    return tuple(strides)


def _is(condition: Any) -> bool:
    return bool(guard_or_false(condition))


def permuted(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Dense strides with the dimensions in this order, outermost first."""
    inner = contiguous([shape[d] for d in order])
    strides: list[Any] = [0] * len(shape)
    for d, s in zip(order, inner):
        strides[d] = s
    return tuple(strides)


def format_like(x: torch.Tensor, shape: Sequence[Any]) -> Strides:
    """Row-major, or channels last if the strides of ``x`` look so."""
    last = torch._prims_common.suggest_memory_format(x)
    if last == torch.contiguous_format or x.dim() != len(shape):
        return contiguous(shape)
    return permuted(shape, (0, *range(2, x.dim()), 1))


def pointwise(shape: Sequence[Any], operands: Sequence[torch.Tensor]) -> Strides:
    """Returns what an iteration over operands allocates for a result: all of them in one dense layout keep it, else dimensions are sorted
    by the first operand that tells two of them apart."""
    operands = [t for t in operands if isinstance(t, torch.Tensor)]
    rank = len(shape)
    same = all(t.dim() == rank and all(_is(a == b) for a, b in zip(t.shape, shape)) for t in operands)
    if same and operands:
        if all(t.is_contiguous() for t in operands):
            return contiguous(shape)
        if rank == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in operands):
            return permuted(shape, (0, 2, 3, 1))
        first = operands[0]
        if torch._prims_common.is_non_overlapping_and_dense_or_false(first):
            if all(_is(a == b) for t in operands[1:] for a, b in zip(t.stride(), first.stride())):
                return tuple(first.stride())
    return permuted(shape, order_of(shape, [strides_in(t.shape, t.stride(), shape) for t in operands]))


def strides_in(own: Sequence[Any], strides: Sequence[Any], shape: Sequence[Any]) -> list[Any]:
    """Strides of an operand that is broadcast to ``shape``."""
    lead = len(shape) - len(own)
    return [0] * lead + [0 if _is(n == 1) and not _is(m == 1) else s for n, m, s in zip(own, shape[lead:], strides)]


def order_of(shape: Sequence[Any], operands: Sequence[Sequence[Any]]) -> list[int]:
    """Dimensions from the outermost to the innermost, for operands of these strides: an insertion sort in which the first
    operand that can tell two dimensions apart decides."""

    def outer(a: int, b: int) -> int:
        """1 if ``a`` is to be outside of ``b``, -1 if inside, 0 where nothing tells."""
        for strides in operands:
            s, t = strides[a], strides[b]
            if _is(s == 0) or _is(t == 0):
                continue
            if _is(s < t):
                return -1
            if _is(s > t):
                return 1
            if _is(shape[a] > shape[b]):
                return 1
        return 0

    inner_first = list(reversed(range(len(shape))))
    for i in range(1, len(shape)):
        at = i
        for before in range(i - 1, -1, -1):
            told = outer(inner_first[before], inner_first[at])
            if told > 0:
                inner_first[before], inner_first[at] = inner_first[at], inner_first[before]
                at = before
            elif told < 0:
                break
    return inner_first[::-1]


def overlaps(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns true if a stride of zero puts elements in one place."""
    return any(isinstance(s, int) and s == 0 and not _is(n == 1) for n, s in zip(shape, strides)) and not any(_is(n == 0) for n in shape)


def copy_of(x: torch.Tensor) -> Strides:
    """Returns the strides that ``clone`` allocates."""
    return torch.empty_like(x).stride()


def storage(x: torch.Tensor) -> Strides:
    return copy_of(x) if overlaps(x.shape, x.stride()) else x.stride()


def roll(shape: Sequence[Any], x: torch.Tensor, shifts: Any, dims: Any = ()) -> Strides:
    """Two pieces joined along each dimension in turn: joined pieces that agree on channels last keep it."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims:
        return contiguous(shape)
    if any(_is(n == 0) for n in shape):
        return copy_of(x)
    for shift, dim in zip(shifts, dims):
        size = x.shape[dim]
        start = (size - shift) % size
        pieces = [x.narrow(dim, start, size - start), x.narrow(dim, 0, start)]
        formats = {torch._prims_common.suggest_memory_format(p) for p in pieces}
        strides = format_like(pieces[0], shape) if len(formats) == 1 else contiguous(shape)
        x = x.new_empty_strided(shape, strides)
    return x.stride()


def index(shape: Sequence[Any], x: torch.Tensor, indices: Sequence[Any]) -> Strides:
    """An iteration over the source with strides of zero where it is indexed, then the indices."""
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return None
    indices = [*indices, *[None] * (x.dim() - len(indices))]
    at = [d for d, i in enumerate(indices) if i is not None]
    common = torch.broadcast_shapes(*(indices[d].shape for d in at))
    beside = at == list(range(at[0], at[-1] + 1))
    lead = at[0] if beside else 0
    kept = [d for d in range(x.dim()) if d not in at]
    before, after = kept[:lead], kept[lead:]
    strides = [x.stride(d) for d in before] + [0] * len(common) + [x.stride(d) for d in after]
    operands = [strides]
    for d in at:
        i = indices[d]
        operands.append([0] * len(before) + strides_in(i.shape, i.stride(), common) + [0] * len(after))
    return permuted(shape, order_of(shape, operands))


def rrelu_backward(shape: Sequence[Any], grad: torch.Tensor, x: torch.Tensor, noise: torch.Tensor, *rest: Any) -> Strides:
    """In training the noise times the gradient."""
    training = rest[2] if len(rest) > 2 else False
    return pointwise(shape, [noise, grad] if training else [grad, x])


def pad(shape: Sequence[Any], x: torch.Tensor, padding: Any, mode: str = "constant", value: Any = None) -> Strides:
    return format_like(x, shape) if mode in ("reflect", "replicate") else None


def ldexp(shape: Sequence[Any], x: torch.Tensor, other: torch.Tensor) -> Strides:
    """A product with a power of two, which is row-major."""
    return pointwise(shape, [x, other.new_empty_strided(other.shape, contiguous(other.shape))])


def pool3d(shape: Sequence[Any], x: torch.Tensor, *rest: Any, **named: Any) -> Strides:
    """Volumes without a batch have a rule of their own."""
    if x.dim() != 4:
        return None
    last = x.unsqueeze(0).is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()
    return permuted(shape, (1, 2, 3, 0)) if last else contiguous(shape)


def _transformed(shape: Sequence[Any], strides: Sequence[Any], dims: Sequence[int]) -> Strides:
    """MKL's transforms: what is not transformed comes first, in the order of memory, then ``dims``."""
    rank = len(shape)
    return permuted(shape, [*_outermost_first(strides, [d for d in range(rank) if d not in dims]), *dims])


def _outermost_first(strides: Sequence[Any], dims: Sequence[int]) -> list[int]:
    compare = lambda a, b: -1 if _is(strides[a] > strides[b]) else int(_is(strides[a] < strides[b]))
    return sorted(dims, key=functools.cmp_to_key(compare))


def fft_c2c(shape: Sequence[Any], x: torch.Tensor, dim: Sequence[int], *rest: Any) -> Strides:
    if not dim or not torch.backends.mkl.is_available():
        return None
    return _transformed(shape, x.stride(), _outermost_first(x.stride(), [d % x.dim() for d in dim]))


def fft_r2c(shape: Sequence[Any], x: torch.Tensor, dim: Sequence[int], *rest: Any) -> Strides:
    if not torch.backends.mkl.is_available():
        return None
    *others, last = (d % x.dim() for d in dim)
    return _transformed(shape, x.stride(), [*_outermost_first(x.stride(), others), last])


def fft_c2r(shape: Sequence[Any], x: torch.Tensor, dim: Sequence[int], *rest: Any) -> Strides:
    """The other dimensions are transformed first."""
    if not torch.backends.mkl.is_available():
        return None
    before = fft_c2c(x.shape, x, dim[:-1]) or x.stride()
    return _transformed(shape, before, [dim[-1] % x.dim()])


_OWN: dict[str, Callable[..., Strides]] = {
    "roll": roll,
    "index": index,
    "rrelu_backward": rrelu_backward,
    "pad": pad,
    "ldexp": ldexp,
    "pool3d": pool3d,
    "fft_c2c": fft_c2c,
    "fft_r2c": fft_r2c,
    "fft_c2r": fft_c2r,
}


class Rule:
    """A line of the table."""

    def __init__(self, operator: Any, devices: str, results: str) -> None:
        self.names = [a.name for a in operator._schema.arguments]
        self.defaults = {a.name: a.default_value for a in operator._schema.arguments}
        self.devices = devices
        self.results = [r.split() for r in results.split(";")]

    def arguments(self, args: Any, kwargs: Any) -> dict[str, Any]:
        return {**self.defaults, **dict(zip(self.names, args)), **kwargs}

    def strides(self, k: int, out: torch.Tensor, args: Any, kwargs: Any) -> Strides:
        """Strides of result ``k``."""
        rule, *operands = self.results[k] if k < len(self.results) else ["-"]
        if rule == "-":
            return None
        if rule == "contiguous":
            return contiguous(out.shape)
        if rule in _OWN:
            return _OWN[rule](out.shape, *args, **kwargs)
        given = self.arguments(args, kwargs)
        tensors = [given[name] for name in operands]
        if rule == "pointwise":
            return pointwise(out.shape, tensors)
        if rule == "format":
            return format_like(tensors[0], out.shape)
        if rule == "like":
            same = out.dim() == tensors[0].dim() and all(_is(a == b) for a, b in zip(out.shape, tensors[0].shape))
            return copy_of(tensors[0]) if same else None
        if rule == "storage":
            return storage(tensors[0])
        raise AssertionError(f"no rule `{rule}`")


@functools.cache
def rules() -> dict[Any, Rule]:
    """The table, by operator. Operators that this release of PyTorch lacks are left out."""
    found = {}
    for name, devices, results in _native.layout_rules():
        namespace, base, overload = name.split(".")
        operator = getattr(getattr(getattr(torch.ops, namespace), base, None), overload, None)
        if operator is not None:
            found[operator] = Rule(operator, devices, results)
    return found


def corrected(operator: Any, out: Any, args: Any, kwargs: Any) -> Any:
    """Results of an operator on fake tensors with the strides that eager gives them."""
    rule = rules().get(operator)
    if isinstance(out, torch.Tensor):
        return _result(operator, rule, 0, out, args, kwargs)
    if isinstance(out, (tuple, list)):
        results = [_result(operator, rule, k, o, args, kwargs) if isinstance(o, torch.Tensor) else o for k, o in enumerate(out)]
        if all(a is b for a, b in zip(results, out)):
            return out
        return type(out)._make(results) if hasattr(out, "_make") else type(out)(results)
    return out


def _result(operator: Any, rule: Rule | None, k: int, out: Any, args: Any, kwargs: Any) -> Any:
    if out.layout != torch.strided:
        return out
    strides = None
    if rule is not None and (rule.devices == "any" or out.device.type == rule.devices):
        try:
            strides = rule.strides(k, out, args, kwargs)
        except GuardOnDataDependentSymNode:
            # Sizes that are read from data: nothing tells.
            strides = None
    if strides is None:
        if not overlaps(out.shape, out.stride()) or not _is_fresh(operator, k):
            return out
        strides = copy_of(out)
    same = all(isinstance(a, int) and isinstance(b, int) and a == b for a, b in zip(strides, out.stride()))
    return out if same else out.new_empty_strided(out.shape, strides)


def _is_fresh(operator: Any, k: int) -> bool:
    """Returns true if a result is memory of its own by the operator's schema, and no argument says its strides."""
    if operator in (aten.empty_strided.default, aten.new_empty_strided.default):
        return False
    returns = operator._schema.returns
    return k < len(returns) and returns[k].alias_info is None


def own_dispatch(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Has fake tensors follow the table; see :mod:`inrush.patches.table`."""

    @functools.wraps(plain)
    def dispatch(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = plain(self, func, types, args, kwargs)
        return corrected(func, out, args, kwargs or {}) if getattr(func, "namespace", None) == "aten" else out

    # Results that were computed before are kept by the mode's class.
    FakeTensorMode.cache_clear()
    return dispatch
