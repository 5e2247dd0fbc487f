"""Writes that eager does not define: each of several elements that share memory gets a value of its own."""

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
                if isinstance(value, torch.Tensor) and overlaps(value):
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
    if not x.numel():
        return False
    places = torch.zeros((), dtype=torch.int64)
    for stride, n in dims:
        places = places[..., None] + torch.arange(n) * stride
    return places.unique().numel() < places.numel()
