"""Places in PyTorch at which a function can be replaced: attributes, kernels of operators, handlers, and registrations."""

from __future__ import annotations

import functools
import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Callable

import torch


class Place:
    """A function of PyTorch's that can be read and replaced."""

    text: str
    """Its name for logs and reports."""

    def read(self) -> Callable[..., Any] | None:
        """Returns the function; None for a registration that replaces none. Raises if the release has no such place."""
        raise NotImplementedError

    def write(self, replacement: Callable[..., Any]) -> None:
        """Replaces the function."""
        raise NotImplementedError


class Attribute(Place):
    """An attribute of a module or class, given as `module:path`. Static and class methods stay such; they are read unbound."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _found(self) -> tuple[Any, str, Any]:
        module, _, path = self.text.partition(":")
        owner: Any = importlib.import_module(module)
        *parts, name = path.split(".")
        for part in parts:
            owner = getattr(owner, part)
        return owner, name, inspect.getattr_static(owner, name)

    def read(self) -> Callable[..., Any]:
        _, _, raw = self._found()
        return raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw

    def write(self, replacement: Callable[..., Any]) -> None:
        owner, name, raw = self._found()
        setattr(owner, name, type(raw)(replacement) if isinstance(raw, (staticmethod, classmethod)) else replacement)


@dataclass(frozen=True)
class Kernel:
    """The kernel of an operator for a dispatch key, as a function."""

    operator: Any
    key: Any
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def dispatched(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the dispatcher's kernel, past those in Python."""
        return self.operator._op_dk(self.key, *args, **kwargs)


class OperatorKernel(Place):
    """The kernel of an ATen operator, such as `prod.dim_int`, for a dispatch key: one in Python, or that of the dispatcher."""

    def __init__(self, operator: str, key: str) -> None:
        self.operator, self.key = operator, key
        self.text = f"torch.ops.aten.{operator}.py_kernels[{key}]"

    def _found(self) -> tuple[Any, Any]:
        return aten(self.operator), getattr(torch._C.DispatchKey, self.key)

    def read(self) -> Kernel:
        operator, key = self._found()
        return Kernel(operator, key, operator.py_kernels.get(key) or functools.partial(operator._op_dk, key))

    def write(self, replacement: Callable[..., Any]) -> None:
        operator, key = self._found()
        operator.py_kernels[key] = replacement
        operator._dispatch_cache.clear()


class Handler(Place):
    """Dynamo's handler of a function of the module `torch`."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.text = f"torch._dynamo.variables.torch:TorchInGraphFunctionVariable._get_handlers()[torch.{function}]"

    def _found(self) -> dict[Any, Callable[..., Any]]:
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

        return TorchInGraphFunctionVariable._get_handlers()

    def read(self) -> Callable[..., Any]:
        return self._found()[getattr(torch, self.function)]

    def write(self, replacement: Callable[..., Any]) -> None:
        self._found()[getattr(torch, self.function)] = replacement


class FakeKernel(Place):
    """The kernel of an ATen operator for fake tensors, which takes the place of its shape function."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.text = f"torch._subclasses.fake_impls:register_op_impl(aten.{operator})"

    def read(self) -> None:
        aten(self.operator)

    def write(self, replacement: Callable[..., Any]) -> None:
        from torch._subclasses.fake_impls import register_op_impl

        register_op_impl(aten(self.operator))(replacement)


class SideEffect(Place):
    """The set of operators that FX takes for having an effect. The replacement is the operator itself."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.text = f"torch.fx.node:has_side_effect(aten.{operator})"

    def read(self) -> Callable[..., Any]:
        return aten(self.operator)

    def write(self, replacement: Callable[..., Any]) -> None:
        torch.fx.node.has_side_effect(replacement)


def aten(name: str) -> Any:
    """Returns an overload of an ATen operator by its name."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)
