"""The options of ``torch.compile(..., backend="inrush", options={...})``: named, typed, checked."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from typing import Any, Mapping

from inrush._native import InputError

# What `torch.compile(mode=...)` may say. They differ in what GPUs do; a CPU has one mode.
PRODUCTS = ("auto", "library", "kernel")
POINTERS = ("plain", "block", "descriptor", "map")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Options:
    """All options with their defaults."""

    strict: bool = False
    """Raise where inrush would otherwise warn and run the graph eagerly."""
    fallback_random: bool = False
    """Draw random numbers as eager PyTorch does, number for number, instead of with generators fused into kernels."""
    trace: str | None = None
    """A folder that gets the text of every stage of every graph."""
    threads: int | None = None
    """Threads of compiled kernels; by default as many as ``torch.get_num_threads()`` says at each call."""
    cache: bool = True
    """Keep compiled graphs on disk and look for them there, so that another process need not trace and build again."""
    warm_start: bool = True
    """Keep what Dynamo captures on disk too, so that another process need not capture it again."""
    cudagraphs: bool = False
    """Capture calls on CUDA devices as graphs and replay them: less work for the host, memory kept for each shape. What a
    call returns is the caller's: later calls do not write it. The modes `reduce-overhead` and `max-autotune` turn it on."""
    tune: bool | str = False
    """Measure which tiles the kernels for a CUDA device run fastest with, and keep the winners on disk: while compiling, or, with
    ``"first call"``, in that call, over its own memory and values, after which the graph is compiled once more, or in the
    ``"background"``, by a thread, while calls go on (:func:`inrush.wait_for_tuning` waits for it); graphs are then not kept. A first
    compile takes longer, unless it is in the background. The modes `max-autotune` and `max-autotune-no-cudagraphs` turn it on."""
    pointers: str = "plain"
    """How kernels for a GPU name the elements of strided tiles: by plain pointers, by ``"block"`` pointers, which Triton has up
    to 3.8, by tensor ``"descriptor"`` s that each program makes, which go through the copy engine of Hopper and later, or by
    tensor ``"map"`` s: such descriptors, made once for a launch (before Hopper as ``"descriptor"``). Tuning tries all of them."""

    products: str = "auto"
    """What multiplies matrices of half types on a GPU: ``"auto"`` takes kernels, in which what follows the product is fused, where
    they are as fast as the vendor's library, ``"library"`` never, and ``"kernel"`` wherever the copy engine of Hopper takes the
    operands. Few rows are kernels in any case."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def options() -> dict[str, Any]:
    """The names of all options with their defaults."""
    return Options().as_dict()


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"option `{name}` takes True or False, not {value!r}")
    return value


def _folder(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        return os.path.abspath(os.fspath(value))
    except TypeError:
        raise InputError(f"option `{name}` takes the path of a folder, not {value!r}") from None


def _count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
        raise InputError(f"option `{name}` takes a number from 1 to 4096, not {value!r}")
    return value


def _tune(name: str, value: Any) -> bool | str:
    if not isinstance(value, bool) and value not in ("first call", "background"):
        raise InputError(f"option `{name}` takes True, False, 'first call' or 'background', not {value!r}")
    return value


def _pointers(name: str, value: Any) -> str:
    if value not in POINTERS:
        raise InputError(f"option `{name}` takes one of {', '.join(map(repr, POINTERS))}, not {value!r}")
    return str(value)


def _products(name: str, value: Any) -> str:
    if value not in PRODUCTS:
        raise InputError(f"option `{name}` takes one of {', '.join(map(repr, PRODUCTS))}, not {value!r}")
    return str(value)


_CHECKS = {
    "strict": _flag,
    "fallback_random": _flag,
    "trace": _folder,
    "threads": _count,
    "cache": _flag,
    "warm_start": _flag,
    "cudagraphs": _flag,
    "tune": _tune,
    "pointers": _pointers,
    "products": _products,
}


def check(given: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """The options that were given; an unknown name or a bad value is an ``InputError``."""
    if mode is not None and mode not in MODES:
        raise InputError(f"there is no mode `{mode}`; known: {', '.join(MODES)}")
    known = [f.name for f in fields(Options)]
    unknown = [name for name in given or {} if name not in known]
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        raise InputError(f"unknown option {names}; known: {', '.join(known)}")
    chosen = {name: _CHECKS[name](name, value) for name, value in (given or {}).items()}
    if mode in ("reduce-overhead", "max-autotune"):
        chosen.setdefault("cudagraphs", True)
    if mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        chosen.setdefault("tune", True)
    if chosen.get("tune") in ("first call", "background"):
        # What is kept would not have been tuned yet; the winners are.
        chosen |= {"cache": False, "warm_start": False}
    return Options(**chosen)
