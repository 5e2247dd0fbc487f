"""Tuning at the first call, on the memory and the values that it brings (option ``tune="first call"``).

The native half compiles with the tiles that it has rules for, or that won before, and measures the others while the first
call runs, each kernel when its turn comes. Then the graph is compiled once more, with what won.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

from inrush import log, torch_internals


class FirstCall:
    """A compiled graph whose first call tunes it."""

    _boxed_call = True

    def __init__(self, compiled: Any, again: Callable[[], Any], told: Callable[[Any], None]) -> None:
        self.compiled = compiled
        self.again: Callable[[], Any] | None = again
        self.told = told
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        out = self.compiled(*args)
        if self.again is not None:
            self.compile_again()
        return out

    def compile_again(self) -> None:
        with self.lock:
            again, self.again = self.again, None
        # A thread that comes second goes on with what there is.
        if again is None:
            return
        measured = self.compiled.report()["tuned"]
        try:
            compiled = again()
        except Exception as error:
            # What runs is right, if slower.
            log.compile.warning("tuned tiles are not used: %s", error)
            return
        self.compiled = compiled
        self.told(measured)

    def report(self) -> Any:
        return self.compiled.report()

    def __reduce__(self) -> Any:
        raise torch_internals.BypassCache("a graph that its first call tunes")
