"""Skips Dynamo work that cannot affect the result: unused log text, unused imports, frequent garbage collection."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import logging
import threading
from typing import Any, Callable, Iterator

import torch
from torch._dynamo import config, output_graph, symbolic_convert

# A capture makes hundreds of thousands of objects that stay: to look for garbage among them takes a tenth of the time.
PATIENT = (50_000, 20, 1000)
# What PyTorch pickles as anybody would, by the modules of classes and by class.
PLAIN_MODULES = frozenset(("torch._dynamo.source", "torch._guards"))
PLAIN_TYPES = frozenset((collections.OrderedDict, functools.partial))

_lock = threading.Lock()
_captures = 0
_thresholds: tuple[int, ...] = ()


@contextlib.contextmanager
def patient_collector() -> Iterator[None]:
    """Collects garbage rarely while this lasts."""
    global _captures, _thresholds
    with _lock:
        _captures += 1
        if _captures == 1:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < PATIENT[0]:
                gc.set_threshold(*PATIENT)
    try:
        yield
    finally:
        with _lock:
            _captures -= 1
            if _captures == 0 and gc.get_threshold() == PATIENT:
                gc.set_threshold(*_thresholds)


def no_marks() -> contextlib.AbstractContextManager[Any]:
    """Has captured code call the graph without marks for the profiler, unless it is on: they are two calls of Python in each call."""
    if not hasattr(config, "record_runtime_overhead") or torch.autograd.profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    return config.patch(record_runtime_overhead=False)


def pickles_as_usual(pickler: Any, obj: Any) -> bool:
    """Returns true if PyTorch pickles a part of a guard as anybody would, which it finds out after thirty other cases.

    Most of what is written is of this kind: it says where guarded values are found.
    """
    plain = type(obj).__module__ in PLAIN_MODULES or type(obj) in PLAIN_TYPES
    return plain and id(obj) not in pickler.missing_values and id(obj) not in pickler.empty_values


# Replacements of functions of Dynamo's, see `inrush.patches.table`.


def own_function_name(get_name: Callable[..., Any]) -> Callable[..., Any]:
    """Finds the names of functions for the log only if it is on: it takes whole files apart."""
    logs = (output_graph.trace_call_log, symbolic_convert.trace_call_log, symbolic_convert.trace_source_log)

    @functools.wraps(get_name)
    def own(filename: str, lineno: int) -> str | None:
        return get_name(filename, lineno) if any(log.isEnabledFor(logging.DEBUG) for log in logs) else None

    return own


def own_should_wrap(should_wrap: Callable[..., Any]) -> Callable[..., Any]:
    """Answers no at once while `local_map` is off: PyTorch imports much of `torch.distributed` to say so."""

    @functools.wraps(should_wrap)
    def own(cls: Any, value: Any) -> bool:
        return cls._enabled and should_wrap(cls, value)

    return own
