"""Operators that users define, in packages: ``torch.library`` has them where a model is exported, the host where it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from inrush import _native, log
from inrush._native import InputError

if TYPE_CHECKING:
    import torch

# Namespaces whose operators are PyTorch's or inrush's.
_KNOWN = ("aten", "prims", "prim", "higher_order", "_c10d_functional", "c10d_functional", "inrush")


def register_operator(schema: str, function: Callable[..., Any], *, device: str = "cpu") -> None:
    """Registers the function that packages call for an operator of one's own, for models that are loaded afterwards.

    ``schema`` is the operator's with its name, ``"mylib::scale(Tensor x, float by=2.0) -> Tensor"``. The function takes the arguments
    in the order of the schema and gives the results; what it writes, the schema says (``Tensor(a!) x``). ``device`` is ``"cpu"`` or
    ``"cuda"`` (in builds of PyTorch for ROCm an AMD GPU) or ``"xpu"``: then work goes to PyTorch's current stream. Operators that
    ``torch.library`` knows need no registration.
    """
    from inrush import gpu

    device = gpu.kind_of(device)
    _register(schema, lambda args: function(*args), device)
    _automatic.discard((schema.split("(")[0], device))


# Names and devices of operators whose functions were taken from PyTorch.
_automatic: set[tuple[str, str]] = set()


def _register(schema: str, function: Callable[[list[Any]], Any], device: str) -> None:
    def call(args: list[Any], results: list[Any], allocate: Callable[[int, list[int]], Any], stream: int) -> None:
        given = [_argument(a) for a in args]
        tensors = [None if r is None else _tensor(r) for r in results]
        with _stream(given, tensors, stream):
            _fill(function(given), tensors, allocate, schema)

    _native.register_operator(schema, device, call)


def load_operators(path: str | os.PathLike[str]) -> None:
    """Registers the functions of a shared library, which exports ``inrush_operators``: see ``inrush.h``."""
    _native.load_operators(os.fspath(path))


def schemas(program: torch.export.ExportedProgram) -> list[str]:
    """The schemas of the operators of a program that are not PyTorch's own."""
    import torch

    found: dict[str, None] = {}
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            op = node.target
            if node.op == "call_function" and isinstance(op, torch._ops.OpOverload) and op.namespace not in _KNOWN:
                found.setdefault(str(op._schema))
    return list(found)


def take_from_torch(schemas: Sequence[str], device: str) -> None:
    """Registers PyTorch's functions for operators that nothing has registered."""
    for schema in dict.fromkeys(schemas):
        key = schema.split("(")[0], device
        # What PyTorch has now may be another operator than before.
        own = key not in _automatic and _native.is_operator_registered(schema, device)
        op = None if own else _of_torch(schema)
        if op is not None:
            log.package.info("%s is PyTorch's", schema)
            _register(str(op._schema), _of_overload(op), device)
            _automatic.add(key)


def _of_overload(op: Any) -> Callable[[list[Any]], Any]:
    """An operator of PyTorch as a function of arguments in the order of its schema."""
    parameters = op._schema.arguments
    by_position = sum(not p.kwarg_only for p in parameters)
    names = [p.name for p in parameters[by_position:]]
    return lambda args: op(*args[:by_position], **dict(zip(names, args[by_position:], strict=True)))


def _of_torch(schema: str) -> Any:
    """The operator of ``torch.ops`` of this name; ``None`` if there is none."""
    import torch

    namespace, _, name = schema.split("(")[0].partition("::")
    name, _, overload = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, overload or "default", None)


def _argument(value: Any) -> Any:
    """An argument as functions take it: capsules are tensors."""
    if type(value).__name__ == "PyCapsule":
        return _tensor(value)
    if isinstance(value, list):
        return [_argument(v) for v in value]
    return value


def _tensor(capsule: Any) -> torch.Tensor:
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(capsule)


def _stream(args: Sequence[Any], results: Sequence[Any], stream: int) -> Any:
    """Makes the call's stream PyTorch's current one."""
    import torch

    from inrush import gpu

    flat = [t for a in (*args, *results) for t in (a if isinstance(a, list) else [a])]
    device = next((t.device for t in flat if isinstance(t, torch.Tensor) and t.device.type == gpu.torch_name()), None)
    if device is not None and device.type == "xpu":
        # A call's stream is PyTorch's current one; after work of PyTorch's own its events stand for the call's work too.
        torch.zeros(1, device=device)
        return contextlib.nullcontext()
    if device is None:
        return contextlib.nullcontext()
    if stream == 0:
        # `ExternalStream(0)` would be a stream of PyTorch's pool, which waits for nothing.
        return torch.cuda.stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))


def _fill(given: Any, results: list[Any], allocate: Callable[[int, list[int]], Any], schema: str) -> None:
    """Copies what a function gives into the results."""
    import torch

    flat: list[torch.Tensor] = []
    for value in given if isinstance(given, (tuple, list)) else [] if given is None else [given]:
        flat.extend(value if isinstance(value, (tuple, list)) else [value])
    if len(flat) != len(results):
        raise InputError(f"the function of `{schema}` gives {len(flat)} tensors, the package takes {len(results)}")
    for at, (value, result) in enumerate(zip(flat, results)):
        to = _tensor(allocate(at, list(value.shape))) if result is None else result
        if to.dtype != value.dtype or to.shape != value.shape:
            raise InputError(
                f"result {at} of `{schema}` is {value.dtype} of sizes {list(value.shape)}, "
                f"the package declares {to.dtype} of {list(to.shape)}"
            )
        to.copy_(value)
