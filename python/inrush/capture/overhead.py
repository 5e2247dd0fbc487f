"""What Dynamo does during a capture for nothing, left out. Nothing of what it finds changes."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import logging
import threading
from typing import Any, Iterator

import torch
from torch._dynamo import config, guards, output_graph, symbolic_convert
from torch._dynamo.variables import higher_order_ops

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
    """Garbage is collected rarely while this lasts."""
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
    """Captured code does not mark its way to the graph for the profiler, unless that is on: two calls through Python in each call."""
    if not hasattr(config, "record_runtime_overhead") or torch.autograd.profiler._is_profiler_enabled:
        return contextlib.nullcontext()
    return config.patch(record_runtime_overhead=False)


def install() -> None:
    """To be called once."""
    pickler = guards.GuardsStatePickler
    reduce = pickler.reducer_override

    @functools.wraps(reduce)
    def own_reduce(self: Any, obj: Any) -> Any:
        # Most of what is written says where guarded values are found: PyTorch goes through thirty other cases first.
        plain = type(obj).__module__ in PLAIN_MODULES or type(obj) in PLAIN_TYPES
        if plain and id(obj) not in self.missing_values and id(obj) not in self.empty_values:
            return NotImplemented
        return reduce(self, obj)

    pickler.reducer_override = own_reduce

    get_name = symbolic_convert.get_funcname
    logs = (output_graph.trace_call_log, symbolic_convert.trace_call_log, symbolic_convert.trace_source_log)

    @functools.wraps(get_name)
    def own_name(filename: str, line: int) -> str | None:
        # A word in these logs: to find it, whole files are taken apart.
        return get_name(filename, line) if any(log.isEnabledFor(logging.DEBUG) for log in logs) else None

    symbolic_convert.get_funcname = own_name

    local_map = getattr(higher_order_ops, "LocalMapWrappedHigherOrderVariable", None)
    if local_map is not None:
        should_wrap = local_map.should_wrap_in_hop.__func__

        @functools.wraps(should_wrap)
        def own_should_wrap(cls: Any, value: Any) -> bool:
            # The answer is no while this is not enabled; to say so, much of `torch.distributed` is imported.
            return cls._enabled and should_wrap(cls, value)

        local_map.should_wrap_in_hop = classmethod(own_should_wrap)
