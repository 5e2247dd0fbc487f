"""Compiled graphs as source: :func:`output_code`, the logger ``output_code``, and files of the option ``trace``."""

from __future__ import annotations

import base64
import collections
import ctypes
import logging
import math
import operator
import os
import types
import weakref
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from inrush import _native, log, torch_internals

# The largest constant of a graph that is written as text.
MAX_CONSTANT_BYTES = 64 << 20


@dataclass
class Graph:
    """A graph that was compiled in this process."""

    name: str | None
    """The name under which captured code calls it."""
    kind: str
    compiled: weakref.ref[Any]


# The last ones, newest last; a deque's append is atomic.
_graphs: collections.deque[Graph] = collections.deque(maxlen=1024)


def register(name: str | None, kind: str, compiled: Any) -> None:
    """Remembers a graph as long as something calls it."""
    if compiled is not None:
        _graphs.append(Graph(name, kind, weakref.ref(compiled)))


def output_code(compiled: Any = None, language: str = "python") -> list[str]:
    """Returns the source of each graph of a function or module that ``torch.compile(backend="inrush")`` gave, after a call of it: files of
    Python that run without inrush, or with ``language="cpp"`` of C++17, for graphs of a CPU that call no operator of PyTorch. Without an argument these are all graphs of this process that are still in use, oldest first.

    Modules of PyTorch's own classes, such as ``torch.nn.Linear``, share their captured code: the graphs of all of them are given.

    Raises ``UnsupportedError`` for a graph that has no source.
    """
    graphs = list(_graphs)
    if compiled is not None:
        names = set(torch_internals.names_of_graphs(compiled))
        graphs = [g for g in graphs if g.name in names]
        if not graphs:
            raise _native.InputError("no graph of it was compiled by inrush in this process: call it first; `inrush.last_compile()` tells of graphs that run eagerly")
    found = [(g.kind, g.compiled()) for g in graphs]
    return [print_graph(function, kind, language) for kind, function in found if function is not None]


def print_graph(compiled: Any, kind: str, language: str = "python") -> str:
    """Returns the source of one graph."""
    native = getattr(compiled, "compiled", compiled)
    if not isinstance(native, _native.Compiled):
        raise _native.UnsupportedError("the graph runs eagerly, so it has no source")
    return native.source(kind, language)


def tell(compiled: Any, kind: str, folder: str | None) -> None:
    """Logs the source of a graph, and writes it to a folder of the option ``trace``, if these are asked for."""
    logs = log.output_code.isEnabledFor(logging.INFO)
    if not logs and folder is None:
        return
    # The source is for readers: what keeps it from being printed must not fail the compile.
    try:
        text = print_graph(compiled, kind)
        log.output_code.info("%s graph:\n%s", kind, text)
        if folder is not None:
            path = os.path.join(folder, "output_code.py")
            with open(f"{path}.part", "w", encoding="utf-8") as out:
                out.write(text)
            os.replace(f"{path}.part", path)
    except Exception as error:
        log.output_code.info("%s graph: %s", kind, error)


def expression(value: Any) -> tuple[bool, str]:
    """Returns an expression for an object that a graph names; with False a description of one that has none."""
    if isinstance(value, torch._ops.OpOverload):
        namespace, name = value._schema.name.split("::")
        return True, f"torch.ops.{namespace}.{name}.{value._overloadname}"
    if value is None or type(value) in (bool, int, str):
        return True, repr(value)
    if type(value) is float:
        return True, _number(value)
    if type(value) is complex:
        return True, f"complex({_number(value.real)}, {_number(value.imag)})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return True, str(value)
    if isinstance(value, torch.device):
        return True, f'torch.device("{value}")'
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
        for module in (operator, math, torch):
            if getattr(module, value.__name__, None) is value:
                return True, f"{module.__name__}.{value.__name__}"
        return False, f"the function `{value.__module__}.{value.__qualname__}`"
    if isinstance(value, torch.Tensor):
        return _constant(value)
    return False, f"a constant of type {type(value).__name__}"


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _constant(tensor: torch.Tensor) -> tuple[bool, str]:
    """Returns the expression of a tensor that belongs to a graph."""
    kind = f"a constant tensor {tensor.dtype} {list(tensor.shape)}"
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False, kind
    span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    if span * tensor.element_size() > MAX_CONSTANT_BYTES:
        return False, f"{kind} of more than {MAX_CONSTANT_BYTES >> 20} MiB"
    flat = tensor.detach().as_strided((span,), (1,)).cpu()
    data = ctypes.string_at(flat.data_ptr(), span * flat.element_size()) if span else b""
    packed = base64.b64encode(zlib.compress(data)).decode()
    text = f'constant({tensor.dtype}, {tuple(tensor.shape)}, {tensor.stride()}, "{packed}")'
    return True, text if tensor.device.type == "cpu" else f"{text}.to(DEVICE)"
