"""One row of the table: a function of PyTorch's that is replaced."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Callable

from inrush.patches.places import Place


@dataclass(frozen=True)
class Patch:
    """A function of PyTorch's, its replacement and the reason."""

    place: Place
    replacement: str
    """`module:function` of this package, which makes the replacement of the original."""
    feature: str
    """The feature that is off without it."""
    why: str
    releases: str
    """Releases of PyTorch that are known to have the place."""
    parameters: tuple[str, ...] = ()
    """Parameters of the original that the replacement uses."""
    optional: bool = False
    """Releases without this place need no replacement."""

    def make(self) -> Callable[..., Any] | None:
        """Returns the replacement; None if the release has no such place and needs none. Raises if the place is not as expected."""
        try:
            original = self.place.read()
        except (ImportError, AttributeError, LookupError) as error:
            if self.optional:
                return None
            raise LookupError(f"{self.place.text} is not there") from error
        missing = missing_parameters(original, self.parameters)
        if missing:
            raise LookupError(f"{self.place.text} has no parameter {', '.join(missing)}")
        module, _, name = self.replacement.partition(":")
        return getattr(importlib.import_module(module), name)(original)


def missing_parameters(function: Any, names: tuple[str, ...]) -> list[str]:
    """Returns the names that are no parameters of a function."""
    if not names:
        return []
    known = inspect.signature(function).parameters
    return [n for n in names if n not in known]
