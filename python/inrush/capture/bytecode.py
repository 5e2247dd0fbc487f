"""Rewrites of captured bytecode: names that Dynamo makes up, and globals among constants, differ between processes."""

from __future__ import annotations

import dis
import re
import sys
import types
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from torch._dynamo import bytecode_transformation

from inrush.capture import names
from inrush.capture.fingerprint import MADE_UP, NotPortable

# Names that Dynamo gives to objects that it makes global, by their address.
BY_ADDRESS = re.compile(r"\w*_\d{6,}_c\w+")


def is_by_address(name: str) -> bool:
    """Returns true if Dynamo made this name from an address."""
    # The numbers that Dynamo draws for graphs may look like an address.
    return bool(BY_ADDRESS.fullmatch(name)) and not MADE_UP.fullmatch(name)


def fresh_name(name: str) -> str:
    """Returns a global name that nothing else in the process has."""
    return bytecode_transformation.unique_id(f"{name}_restored")


@dataclass(frozen=True)
class Namespace:
    """Stands for the globals of a module among the constants of code that makes a function; None: those of the frame."""

    module: str | None


def without_namespaces(code: types.CodeType, scope: dict[str, Any]) -> types.CodeType:
    """Returns code whose constants name namespaces instead of holding them."""

    def stand_in(k: Any) -> Any:
        if not isinstance(k, dict):
            return k
        name = k.get("__name__")
        if k is not scope and getattr(sys.modules.get(name), "__dict__", None) is not k:
            raise NotPortable(f"a dictionary in the code of {code.co_name}")
        return Namespace(None if k is scope else name)

    return with_constants(code, stand_in)


def with_constants(code: types.CodeType, change: Callable[[Any], Any]) -> types.CodeType:
    """Returns code with other constants, in the code nested in it too."""
    consts = tuple(with_constants(k, change) if isinstance(k, types.CodeType) else change(k) for k in code.co_consts)
    return code.replace(co_consts=consts)


def renamed(code: types.CodeType, fresh: dict[str, str], scope: dict[str, Any]) -> types.CodeType:
    """Returns code that finds some globals under other names, and has namespaces of this process."""

    def here(k: Any) -> Any:
        if isinstance(k, types.CodeType):
            return renamed(k, fresh, scope)
        if isinstance(k, Namespace):
            return scope if k.module is None else vars(names.imported(k.module))
        return k

    return code.replace(co_names=tuple(fresh.get(n, n) for n in code.co_names), co_consts=tuple(map(here, code.co_consts)))


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yields the globals that code, and code nested in it, reads."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)
