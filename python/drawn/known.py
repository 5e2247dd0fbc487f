"""Faults that are known and not mended yet: counted as `known`, never as right. An entry leaves with its fault."""

from __future__ import annotations

import re
from typing import Callable

from drawn.program import Program


def single_picture_normed(p: Program) -> bool:
    last = any(i.layout == "channels_last" and len(i.shape) == 4 and i.shape[0] == 1 for i in p.inputs)
    return last and any("GroupNorm" in m for m in p.modules)


def antialiased_to_a_column(p: Program) -> bool:
    return "antialias=True" in p.body() and any(len(i.shape) == 4 and i.shape[3] <= 3 for i in p.inputs)


def hardtanh_without_bound(p: Program) -> bool:
    return "hardtanh(" in p.body() and "float('nan')" in p.body()


def bytes_of_a_leaf_written(p: Program) -> bool:
    return p.trains and ".view(torch." in p.body()


# Faults of eager itself, by device: what inrush gives is right by float64.
THEIRS: list[tuple[str, str, str, Callable[[Program], bool]]] = [
    ("cpu", "eager's antialiased resampling to one column, of which it repeats the first row", r"result", antialiased_to_a_column),
    ("cpu", "eager's gradient of hardtanh with a bound that is no number, which is zero in vectors alone", r"gradient", hardtanh_without_bound),
    ("cuda", "eager's gradient of avg_pool2d with channels last", r"gradient", lambda p: "avg_pool2d(" in p.body()),
    ("cuda", "eager's batch norm of float64", r"(result|gradient|m\d)", lambda p: any("BatchNorm" in m for m in p.modules) and any(i.dtype == "float64" for i in p.inputs)),
]

# Of each the reason, the verdict's beginning, and what the program has.
KNOWN: list[tuple[str, str, Callable[[Program], bool]]] = [
    ("group norm of a single picture with channels last", r"strides of result", single_picture_normed),
    ("bytes of a leaf with gradients and another argument are written", r"RuntimeError: output with shape", bytes_of_a_leaf_written),
]


def known(program: Program, verdict: str, device: str) -> str | None:
    """The reason why a wrong verdict is expected, or None."""
    verdict = re.sub(r"^(second process: |call \d+: )*", "", verdict)
    for where, reason, begins, applies in THEIRS:
        if device == where and re.match(begins, verdict) and applies(program):
            return reason
    for reason, begins, applies in KNOWN:
        if re.match(begins, verdict) and applies(program):
            return reason
    return None
