"""Replacements in Dynamo that keep results as eager has them."""

from __future__ import annotations

import functools
from typing import Any, Callable

from torch._dynamo import config
from torch._dynamo.utils import is_int_specialization_case

from inrush import _native


def own_remove_graphargs(remove: Callable[..., Any]) -> Callable[..., Any]:
    """Hides in-place operators on inputs of `float64` without dimensions while Dynamo removes such inputs.

    When Dynamo captures again, to make numbers constants, it removes every node whose value is such an input and that is read by
    nothing: the input itself, and an in-place operator on it, whose effect would be lost.
    """

    @functools.wraps(remove)
    def own(self: Any) -> None:
        written = [n for n in self.graph.nodes if n.op != "placeholder" and not n.users and "example_value" in n.meta]
        values = [n.meta.pop("example_value") for n in written]
        try:
            remove(self)
        finally:
            for node, value in zip(written, values):
                node.meta["example_value"] = value

    return own


def own_addcdiv(composed: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps `addcdiv` whole if its `value` is a number.

    Dynamo composes it of three operators, each of which rounds, so that a tensor need not be read. A number need not be either way.
    """

    @functools.wraps(composed)
    def own(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        value = kwargs.get("value")
        if value is not None and value.is_python_constant():
            return None
        return composed(self, tx, *args, **kwargs)

    return own


def own_wrap_symfloat(wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Takes floats of modules and globals for constants until they change. Dynamo does so with integers.

    With `dynamic=True` Dynamo makes each such float a tensor twice a call: for the guard and for the graph.
    """

    @functools.wraps(wrap)
    def own(self: Any, value: float) -> Any:
        if config.assume_static_by_default or not _compiles(self.tx.output.compiler_fn) or not is_int_specialization_case(value, self.source):
            return wrap(self, value)
        # So a float that was seen with another value is an input all the same.
        with config.patch(assume_static_by_default=True):
            return wrap(self, value)

    return own


def own_call_size(call: Callable[..., Any]) -> Callable[..., Any]:
    """Reads sizes of plain tensors without turning Dynamo off, which takes longer than the size."""
    return _native.TensorProperty("size", call)


def own_call_stride(call: Callable[..., Any]) -> Callable[..., Any]:
    """Reads strides likewise."""
    return _native.TensorProperty("stride", call)


def _compiles(compiler: Any) -> bool:
    """Returns true if Dynamo captures for inrush, whatever it has wrapped around the backend."""
    from inrush import dynamo_backend

    for name in ("_torchdynamo_orig_backend", "compiler_fn"):
        compiler = getattr(compiler, name, compiler)
    return compiler is dynamo_backend.backend
