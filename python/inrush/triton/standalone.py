"""Triton kernels of users as modules of their own: the function with all that it names, and its constants as text."""

from __future__ import annotations

import ast
import builtins
import math
import types
from dataclasses import dataclass, field
from typing import Any

import torch

# Packages that kernels may name, besides functions and constants of their own module.
_LIBRARIES = ("triton", "math")


class NotStandalone(Exception):
    """Why a kernel cannot be written down as a module of its own."""


TYPES = {
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.uint16: "u16", torch.int16: "i16",
    torch.uint32: "u32", torch.int32: "i32", torch.uint64: "u64", torch.int64: "i64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip


class _Literal(str):
    """Text that stands for itself."""

    def __repr__(self) -> str:
        return str(self)


def constant(value: Any) -> Any:
    """A constant with a text that reads back to it."""
    import triton.language as tl

    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.dtype):
        name = str(value)
        for known in (name, *[k for k, v in vars(tl).items() if v is value]):
            if getattr(tl, known, None) is value:
                return _Literal(f"__import__('triton.language', fromlist=['x']).{known}")
        raise NotStandalone(f"a constant is the type {value}")
    if isinstance(value, torch.dtype) and value in TYPES:
        raise NotStandalone(f"a constant is PyTorch's {value}")
    if isinstance(value, float) and not math.isfinite(value):
        return _Literal(f"float({str(value)!r})")
    if value is None or type(value) in (int, float, bool, str):
        return value
    if type(value) in (tuple, list):
        return tuple(constant(v) for v in value)
    raise NotStandalone(f"a constant is a {type(value).__name__}")


@dataclass
class _Module:
    """A Python module under construction, with all that a kernel names."""

    lines: list[str] = field(default_factory=list)
    taken: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any, text: str) -> None:
        if name in self.taken:
            if self.taken[name] is not value:
                raise NotStandalone(f"`{name}` means two things")
            return
        self.taken[name] = value
        self.lines.append(text)

    def name(self, name: str, value: Any) -> None:
        """Makes ``name`` mean ``value``."""
        import triton.language as tl
        from triton.runtime.jit import JITFunction

        if name in self.taken and self.taken[name] is value:
            return
        home = getattr(value, "__module__", None) or ""
        own = getattr(value, "__name__", None)
        if isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] not in _LIBRARIES:
                raise NotStandalone(f"it names the module `{value.__name__}`")
            self.add(name, value, f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif isinstance(home, str) and home.split(".")[0] in _LIBRARIES and own and not isinstance(value, tl.constexpr):
            self.add(name, value, f"from {home} import {own} as {name}")
        elif isinstance(value, JITFunction):
            self.function(value)
            if name != value.__name__:
                self.add(name, value, f"{name} = {value.__name__}")
        elif isinstance(value, tl.constexpr):
            self.add(name, value, f"{name} = __import__('triton.language', fromlist=['x']).constexpr({constant(value)!r})")
        elif isinstance(value, tl.dtype):
            self.add(name, value, f"{name} = {constant(value)!r}")
        else:
            raise NotStandalone(f"it names `{name}`, a {type(value).__name__}")

    def function(self, kernel: Any) -> None:
        if self.taken.get(kernel.__name__) is kernel:
            return
        if getattr(kernel, "is_gluon", lambda: False)():
            raise NotStandalone("it is written in Gluon")
        scope = kernel.get_capture_scope()
        for name in sorted(_names(kernel.src)):
            if name in scope and scope[name] is not kernel:
                self.name(name, scope[name])
            elif name not in scope and not hasattr(builtins, name):
                raise NotStandalone(f"nothing says what `{name}` is")
        where = f"# {kernel.fn.__code__.co_filename}:{kernel.fn.__code__.co_firstlineno}"
        noinline = "(noinline=True)" if getattr(kernel, "noinline", None) else ""
        self.add("triton", __import__("triton"), "import triton")
        self.add(kernel.__name__, kernel, f"\n{where}\n@triton.jit{noinline}\n{kernel.src.rstrip()}\n")


def _names(text: str) -> set[str]:
    """Names of a function that are no names of its own."""
    tree = ast.parse(text)
    stored, loaded = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
    return loaded - stored


def source(kernel: Any) -> str:
    """A module that holds the function and all that it names."""
    module = _Module()
    module.function(kernel)
    return "\n".join(module.lines) + "\n"
