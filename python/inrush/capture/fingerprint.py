"""Digests of what code, classes, files and operators do, which are the same in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import re
import time
import types
from typing import Any, Iterator

import torch

# Names that Dynamo makes up: they count up, and say nothing of what they stand for.
MADE_UP = re.compile(r"__(compiled_fn|resume_at)_\w+")
# How deep values are told.
DEEPEST = 8


class NotPortable(Exception):
    """Something that another process cannot find again, or that is not what it was."""


def digest_of(value: Any, known: dict[type, str] | None = None) -> str:
    """Returns a digest of what a Python function or class does."""
    if isinstance(value, type):
        return class_digest(value, known)
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        # What the closure holds has guards of its own, as far as the capture depends on it.
        return digest(function_parts(value, closure=is_generated(value.__code__)))
    return code_digest(value) if isinstance(value, types.CodeType) else ""


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def is_generated(code: types.CodeType) -> bool:
    """Returns true if code is in no file, as that of methods which `dataclasses` writes."""
    return code.co_filename.startswith("<")


Above = tuple[int, ...]


def function_parts(function: types.FunctionType, untold: list[str] | None = None, above: Above = (), closure: bool = True) -> list[Any]:
    """Returns what a function does, with its default arguments and what its closure holds: Dynamo reads these without a guard where
    it does not know from where it has the function, as for methods of classes."""
    parts: list[Any] = [code_digest(function.__code__)]
    for values in (function.__defaults__, function.__kwdefaults__):
        if values:
            parts.append(value_text(values, untold, above))
    if closure:
        parts += [value_text(value, untold, above) for value in closure_of(function)]
    return parts


def closure_of(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        # An empty cell has no contents.
        with contextlib.suppress(ValueError):
            yield cell.cell_contents


def value_text(value: Any, untold: list[str] | None = None, above: Above = ()) -> str:
    """Returns the text of a plain value; of others that of their kind, which is added to ``untold``. ``above``: values that it is a part of."""

    def text(part: Any) -> str:
        return value_text(part, untold, (*above, id(value)))

    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        own = getattr(value, "value", None) if isinstance(value, enum.Enum) else value
        return f"{type(value).__qualname__} {own!r}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, range)):
        return str(value)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (types.ModuleType, type(None))):
        return f"{value.__module__}.{value.__qualname__}"
    if any(value is s for s in SENTINELS):
        return f"the {kind}"
    if len(above) > DEEPEST or id(value) in above:
        if untold is not None:
            untold.append(f"{kind}, which is nested deeply")
        return "..."
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(text, value)))}}}"
    if isinstance(value, (dict, types.MappingProxyType)):
        return ",".join(f"{text(k)}:{text(v)}" for k, v in value.items())
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name} {text(value.value)}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {function_parts(value, untold, (*above, id(value)))}"
    if isinstance(value, functools.partial):
        return f"partial {text((value.func, value.args, value.keywords))}"
    if isinstance(value, dataclasses.Field):
        return f"field {text([getattr(value, name, None) for name in FIELD])}"
    if dataclasses.is_dataclass(value):
        return f"{kind} {text([(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)])}"
    if untold is not None:
        untold.append(kind)
    return f"a {kind}"


# What says in a dataclass that there is no default, or that a function makes it.
SENTINELS = tuple(getattr(dataclasses, n) for n in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY") if hasattr(dataclasses, n))
# What a field of a dataclass is, as far as its methods and `dataclasses.fields` tell.
FIELD = ("name", "default", "default_factory", "init", "repr", "compare", "kw_only", "metadata")


_digests: dict[types.CodeType, str] = {}


def code_digest(code: types.CodeType) -> str:
    # Equal code has one digest; the table is as large as the code that was ever asked about.
    known = _digests.get(code)
    if known is not None:
        return known
    text = hashlib.sha256(code.co_code)
    text.update(getattr(code, "co_exceptiontable", b""))
    names = [MADE_UP.sub(r"__\1", name) for name in code.co_names]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    own = getattr(code, "co_qualname", code.co_name)
    text.update(repr((names, code.co_varnames, code.co_freevars, code.co_cellvars, counts, own)).encode())
    for k in code.co_consts:
        text.update(constant_text(k).encode())
    _digests[code] = text.hexdigest()
    return _digests[code]


def constant_text(k: Any) -> str:
    if isinstance(k, types.CodeType):
        return code_digest(k)
    if isinstance(k, tuple):
        return f"({','.join(map(constant_text, k))})"
    if isinstance(k, frozenset):
        # In no order.
        return f"{{{','.join(sorted(map(constant_text, k)))}}}"
    return f"{type(k).__name__} {k!r}"


def functions_of(cls: type) -> Iterator[types.FunctionType]:
    """Yields the functions, written in Python, that a class has of its own."""
    for value in list(vars(cls).values()):
        yield from functions_in(value)


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    for part in (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,):
        part = getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType):
            yield part


# What the interpreter and the standard library keep in classes.
UNTOLD = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl")
)


def class_digest(cls: type, known: dict[type, str] | None = None) -> str:
    """Returns a digest of what the methods of a class do and its plain attributes are, inherited ones too: Dynamo reads both without a guard.
    ``known`` remembers for as long as nothing changes."""
    known = {} if known is None else known
    parts = []
    for base in cls.__mro__:
        if base.__module__ != "builtins" and base not in known:
            known[base] = digest([(name, attribute_text(v)) for name, v in sorted(vars(base).items()) if name not in UNTOLD])
        parts.append((base.__module__, base.__qualname__, known.get(base)))
    return digest(parts)


def attribute_text(value: Any) -> Any:
    functions = [function_parts(f) for f in functions_in(value)]
    return functions or (value_text(value) if not isinstance(value, type) else value.__qualname__)


def functions_told(value: Any) -> Iterator[types.FunctionType]:
    """Yields the functions of which the digest of ``value`` tells all: of a class its own methods, and those in their closures."""
    waiting = list(functions_of(value) if isinstance(value, type) else functions_in(value))
    known = set(waiting)
    while waiting:
        function = waiting.pop()
        yield function
        if isinstance(value, type) or is_generated(function.__code__):
            new = {v for v in closure_of(function) if isinstance(v, types.FunctionType)} - known
            known |= new
            waiting += new


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields code and what is nested in it: its change changes the digest."""
    yield code
    for k in code.co_consts:
        if isinstance(k, types.CodeType):
            yield from codes_of(k)


def _process_start() -> float:
    """Returns when this process began, in seconds since the epoch; a little too early rather than late."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        # Unknown: as if everything had changed since.
        return 0.0


_start = _process_start()
_contents: dict[str, tuple[tuple[int, ...], str]] = {}


def file_digest(path: str) -> str:
    """Returns a digest of a source file. One that changed while this process ran may not be what the process has loaded."""
    try:
        status = os.stat(path)
        if max(status.st_mtime, status.st_ctime) >= _start:
            raise NotPortable(f"{path}, which changed since the process began")
        version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = _contents.get(path)
        if known is None or known[0] != version:
            with open(path, "rb") as file:
                _contents[path] = known = (version, hashlib.sha256(file.read()).hexdigest())
        return known[1]
    except OSError as error:
        raise NotPortable(path) from error


# Namespaces of operators that come with PyTorch.
BUILT_IN = frozenset(("aten", "prims", "prim", "_c10d_functional", "inductor", "mkldnn", "quantized", "quantized_decomposed", "sparse"))


def operators_of(gm: Any) -> dict[str, str]:
    """Returns the operators of a graph that do not come with PyTorch, with digests of what is known of them."""
    out = {}
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = getattr(node.target, "_overloadpacket", node.target)
            name = getattr(target, "_qualified_op_name", None)
            if isinstance(name, str) and name.partition("::")[0] not in BUILT_IN:
                out[name] = operator_digest(name)
    return out


def operator_digest(name: str) -> str:
    """Returns a digest of the Python functions that define an operator, and of their files. For one that is written in
    another language, the libraries that the process has loaded for operators."""
    from torch._library.custom_ops import OPDEFS

    parts: list[Any] = []
    definition = OPDEFS.get(name)
    if definition is not None:
        values = [v for value in vars(definition).values() for v in (value.values() if isinstance(value, dict) else [value])]
        functions = {v for v in values if isinstance(v, types.FunctionType)}
        mine = [f for f in functions if not (f.__module__ or "").startswith("torch._library")]
        parts = sorted((f.__qualname__, code_digest(f.__code__), file_digest(f.__code__.co_filename)) for f in mine)
    else:
        if any(key.startswith(name.replace("::", "/")) for key in torch.library._impls):
            raise NotPortable(f"operator {name}, which Python functions implement")
        for library in sorted(torch.ops.loaded_libraries):
            status = os.stat(library)
            parts.append((library, status.st_size, status.st_mtime_ns))
    namespace, _, packet = name.partition("::")
    overloads = getattr(getattr(torch.ops, namespace), packet)
    parts += [str(getattr(overloads, o)._schema) for o in overloads.overloads()]
    return digest(parts)
