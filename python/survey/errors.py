"""How far results are from a run in float64."""

from __future__ import annotations

import contextlib
import copy
import unittest.mock
from typing import Any, Iterator

import torch
from torch.utils._pytree import tree_map_only

# An error beyond this many times eager's is marked.
FAR = 3.0


def widened(model: torch.nn.Module) -> torch.nn.Module:
    model = copy.deepcopy(model).double()
    for part in model.modules():
        if hasattr(part, "set_experts_implementation"):
            # The grouped product has no float64.
            part.set_experts_implementation("eager")
    return model


def widen(inputs: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs)


@contextlib.contextmanager
def float64_everywhere() -> Iterator[None]:
    """Models convert to float32 in places: here they do not."""
    with unittest.mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def error(values: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest error of a tensor, relative to its norm."""
    want = [w.double() for w in want]
    scale = max((float(w.norm()) for w in want), default=0.0)
    errors = [0.0]
    for v, w in zip(values, want, strict=True):
        v = v.double()
        # What is not finite has to be equal; the rest is measured.
        same = (v == w) | (v.isnan() & w.isnan())
        v, w = v.masked_fill(same & ~w.isfinite(), 0.0), w.masked_fill(same & ~w.isfinite(), 0.0)
        distance = float((v - w).norm() / max(float(w.norm()), 1e-3 * scale, 1e-30))
        errors.append(float("inf") if distance != distance else distance)
    return max(errors)
