"""Writes that eager does not define: each of several elements that share memory gets a value of its own, or an operand changes while
it is read."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What gives all elements one value is defined wherever they are.
FILLS = ("fill_", "zero_")


class Undefined(Exception):
    """A write into elements that share memory."""


class DefinedWrites(TorchDispatchMode):
    """Raises for a write whose result depends on the order in which elements are visited."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable and func.overloadpacket.__name__ not in FILLS:
            for k, argument in enumerate(schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                value = args[k] if k < len(args) else kwargs.get(argument.name)
                if not isinstance(value, torch.Tensor):
                    continue
                operands = torch.utils._pytree.tree_leaves((args, kwargs))
                if overlaps(value) or any(changes(value, x) for x in operands if isinstance(x, torch.Tensor)):
                    raise Undefined(func.overloadpacket.__name__)
        return func(*args, **kwargs)


def overlaps(x: torch.Tensor) -> bool:
    """Returns true where two elements share memory."""
    dims = sorted((s, n) for s, n in zip(x.stride(), x.shape) if n > 1)
    reach = 0
    for stride, n in dims:
        if stride <= reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    return bool(x.numel()) and places(x).unique().numel() < x.numel()


def changes(written: torch.Tensor, operand: torch.Tensor) -> bool:
    """Returns true where a write changes elements of an operand other than the one that is computed from them."""
    if operand is written or written.dtype != operand.dtype or not written.numel() or not operand.numel():
        return False
    if written.untyped_storage().data_ptr() != operand.untyped_storage().data_ptr():
        return False
    operand = operand.broadcast_to(written.shape) if can_broadcast(operand, written) else operand
    a, b = places(written), places(operand)
    return not torch.equal(a, b) and bool(torch.isin(a, b).any())


def can_broadcast(x: torch.Tensor, to: torch.Tensor) -> bool:
    sizes = zip(reversed(x.shape), reversed(to.shape))
    return x.ndim <= to.ndim and all(n in (1, m) for n, m in sizes)


def places(x: torch.Tensor) -> torch.Tensor:
    """Which element of its storage each element is."""
    out = torch.tensor(x.storage_offset())
    for stride, n in zip(x.stride(), x.shape):
        out = out[..., None] + torch.arange(n) * stride
    return out
