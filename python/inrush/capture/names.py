"""Names of objects that hold in any process: a module and a path in it, with a digest of what the object does.

:func:`name_of` gives the name of an object, :func:`named` the object of a name, if it still does the same.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import re
import types
from typing import Any, Iterator

import torch

from inrush.capture.fingerprint import BUILT_IN, NotPortable, class_digest, digest_of, operator_digest, value_text

# Modules of functions written in C, which do not always say where they are.
NATIVE_HOMES = ("torch", "torch._C", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch.Tensor")
# Modules that give names to classes of the interpreter, which are in no module under their own.
BUILT_IN_CLASSES = ("types", "collections.abc")


def name_of(value: Any, known: dict[type, str] | None = None) -> tuple[str, ...]:
    """Returns what identifies ``value`` in any process. ``known`` remembers digests of classes for as long as nothing changes."""
    if value is None or isinstance(value, bool) or value is Ellipsis:
        return ("constant", repr(value))
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, OPERATORS):
        return ("operator", *operator_parts(value))
    paths = [p for p in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)) if isinstance(p, str)]
    owner = getattr(value, "__self__", None)
    homes = [getattr(value, "__module__", None), getattr(owner, "__name__", None), *NATIVE_HOMES]
    for home in (h for h in homes if isinstance(h, str)):
        for path in paths:
            if is_at(value, home, path):
                return ("attribute", home, path, digest_of(value, known))
    if isinstance(value, (types.FunctionType, types.CodeType)):
        # Nested in another, or wrapped by a decorator: what it does stands for it.
        return ("function", digest_of(value))
    if isinstance(value, enum.Enum):
        return ("member", *member_parts(value))
    if isinstance(value, type) and value.__module__ == "builtins":
        for home in BUILT_IN_CLASSES:
            for path, entry in vars(imported(home)).items():
                if entry is value:
                    return ("attribute", home, path, digest_of(value, known))
    raise NotPortable(described(value))


OPERATORS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)


def operator_parts(value: Any) -> tuple[str, str, str]:
    """Returns the name of an operator, which of its overloads it is, and what it does where it does not come with PyTorch."""
    packet = getattr(value, "_overloadpacket", value)
    name, overload = packet._qualified_op_name, "" if packet is value else value._overloadname
    if operator(name, overload) is not value:
        raise NotPortable(f"operator {name}, which is not there under its name")
    return (name, overload, "" if name.partition("::")[0] in BUILT_IN else operator_digest(name))


def operator(name: str, overload: str) -> Any:
    namespace, _, packet = name.partition("::")
    try:
        value = getattr(getattr(torch.ops, namespace), packet)
        return getattr(value, overload) if overload else value
    except AttributeError as error:
        raise NotPortable(f"operator {name}") from error


def name_of_wrapped(function: Any) -> tuple[str, str, str] | None:
    """Returns where a function is that decorators may have wrapped, and what it does; None where it is not there under its name."""
    if isinstance(function, types.FunctionType):
        name = (function.__module__, function.__qualname__, digest_of(function))
        with contextlib.suppress(NotPortable):
            if wrapped(name) is function:
                return name
    return None


def wrapped(name: tuple[str, str, str]) -> Any:
    """Returns the function of this name that does the same, out of what decorators made of it."""
    home, path, digest = name
    value = found(home, path)
    while value is not None:
        if isinstance(value, types.FunctionType) and value.__qualname__ == path and digest_of(value) == digest:
            return value
        value = getattr(value, "__wrapped__", None)
    raise NotPortable(f"{path}, which does something else")


def is_plain(value: Any) -> bool:
    """Returns true if a value is a constant that pickles to the same in any process."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def member_parts(value: enum.Enum) -> tuple[str, ...]:
    """Returns where a member of an enumeration is, and all that it and its class are."""
    cls = type(value)
    untold: list[str] = []
    text = value_text(value.value, untold=untold)
    if untold or not is_at(cls, cls.__module__, cls.__qualname__) or cls.__members__.get(value.name) is not value:
        raise NotPortable(described(value))
    return (cls.__module__, cls.__qualname__, value.name, text, class_digest(cls))


def described(value: Any) -> str:
    """Returns a value in words for the log."""
    if isinstance(value, (type, types.FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    cls = type(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(value, enum.Enum):
        name = value.name
    kind = f"{cls.__module__}.{cls.__qualname__}"
    return f"{name}, a {kind}" if isinstance(name, str) else f"a {kind}"


def named(name: tuple[str, ...]) -> Any:
    """Returns what has this name in this process."""
    kind, *rest = name
    if kind == "constant":
        return {"None": None, "True": True, "False": False, "Ellipsis": Ellipsis}[rest[0]]
    if kind == "module":
        return imported(rest[0])
    if kind == "member":
        value = getattr(found(rest[0], rest[1]), "__members__", {}).get(rest[2])
        if not isinstance(value, enum.Enum) or list(member_parts(value)) != rest:
            raise NotPortable(f"{rest[1]}.{rest[2]}, which is another here")
        return value
    if kind == "operator":
        value = operator(rest[0], rest[1])
        if list(operator_parts(value)) != rest:
            raise NotPortable(f"operator {rest[0]}, which has changed")
        return value
    if kind != "attribute":
        raise NotPortable(kind)
    value = found(rest[0], rest[1])
    if digest_of(value) != rest[2]:
        raise NotPortable(f"{rest[1]}, which does something else")
    return value


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotPortable(module) from error


@contextlib.contextmanager
def found_at(place: str) -> Iterator[None]:
    """Has what cannot be named say where it was found: by a guard's name, or by file and line."""
    try:
        yield
    except NotPortable as error:
        raise NotPortable(f"{error}, at {place_text(place)}") from error


# How guards write what is an attribute of an object, a part of a module, an argument, a global variable.
PLACES = (
    (re.compile(r"\.__dict__\['([A-Za-z_]\w*)'\]"), r".\1"),
    (re.compile(r"\._(?:modules|parameters|buffers)\['([A-Za-z_]\w*)'\]"), r".\1"),
    (re.compile(r"\._modules\['(\d+)'\]"), r"[\1]"),
    (re.compile(r"\b[LG]\['([A-Za-z_]\w*)'\]"), r"\1"),
)


def place_text(place: str) -> str:
    """Returns a guard's name as a path that users would write."""
    for pattern, text in PLACES:
        place = pattern.sub(text, place)
    return re.sub(r"\b__import_(\w+)", lambda m: m[1].replace("_dot_", "."), place)


def is_at(value: Any, home: str, path: str) -> bool:
    with contextlib.suppress(NotPortable):
        return found(home, path) is value
    return False


def class_named_by(method: types.FunctionType) -> type | None:
    """Returns the class in which a method is by its name. Something else may be there now, such as what a decorator made of it."""
    home, _, _ = method.__qualname__.rpartition(".")
    with contextlib.suppress(NotPortable):
        cls = found(method.__module__, home)
        return cls if isinstance(cls, type) else None
    return None


def found(home: str, path: str) -> Any:
    value = imported(home)
    try:
        for part in path.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        raise NotPortable(path) from error
    return value
