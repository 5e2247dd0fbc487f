"""Replacements in AOTAutograd for inputs that overlap, of which one is written to."""

from __future__ import annotations

import functools
from itertools import combinations
from typing import Any, Callable

import torch

from inrush.traced_sizes import traced


def own_overlapping(overlapping: Callable[..., set[int]]) -> Callable[..., set[int]]:
    """Adds to the inputs that overlap by PyTorch's test those of which it says wrongly that they do not.

    Of two matrices with the same step between rows it asks if a row of the later one reaches the next row of the other, and not if
    it begins within a row of the other. Places in the storage it counts in elements, also where these have other widths.
    What is added needs no guard of AOTAutograd's, since :mod:`inrush.dynamo_graph.aliasing` guards how inputs overlap.
    """

    @functools.wraps(overlapping)
    def own(aot_config: Any, fwd_inputs: list[Any], aliased_input_indices: list[int]) -> set[int]:
        found = overlapping(aot_config, fwd_inputs, aliased_input_indices)
        if len(found) == len(aliased_input_indices):
            return found
        places = [(k, _Place(fwd_inputs[k])) for k in aliased_input_indices]
        missed = (pair for pair in combinations(places, 2) if not found.issuperset((pair[0][0], pair[1][0])))
        return found.union(*({i, j} for (i, x), (j, y) in missed if _is_missed(x, y)))

    return own


def own_merge(merge: Callable[..., Any]) -> Callable[..., Any]:
    """Has a synthetic base end where the last of its views ends.

    PyTorch makes one of a whole storage, whose size no guard checks: fake storages are smaller than real ones. Where views are in
    it, :mod:`inrush.dynamo_graph.aliasing` guards.
    """

    @functools.wraps(merge)
    def own(*args: Any, **kwargs: Any) -> Any:
        inputs, descriptions, convention = merge(*args, **kwargs)
        views: dict[int, list[torch.Tensor]] = {}
        for entry in convention or ():
            if not isinstance(entry, int):
                views.setdefault(entry[0], []).append(entry[1])
        for k, of_base in views.items():
            if all(view._base is None and view is not inputs[k] for view in of_base):
                places = [_Place(view) for view in of_base]
                if all(place.known for place in places):
                    inputs[k].set_(inputs[k].untyped_storage(), 0, (max(place.end() for place in places),), (1,))
        return inputs, descriptions, convention

    return own


def set_to_storage(_: None) -> Callable[..., Any]:
    """Makes a fake tensor of all elements of a storage, whose size may be symbolic."""

    def kernel(fake_mode: Any, func: Any, x: Any, storage: Any) -> Any:
        with fake_mode:
            return x.set_(storage, 0, (storage.nbytes() // x.itemsize,), (1,))

    return kernel


class _Place:
    """Where a tensor is in its storage, in numbers: symbols have the sizes of the call that is captured."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = [traced(n) for n in tensor.shape]
        self.strides = [traced(s) for s in tensor.stride()]
        self.start = traced(tensor.storage_offset())
        self.width = tensor.itemsize
        self.known = None not in (*self.shape, *self.strides, self.start)

    def end(self) -> int:
        """The position after that of the last element."""
        return 0 if 0 in self.shape else self.start + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + 1


def _is_missed(x: _Place, y: _Place) -> bool:
    """Returns true for two tensors that overlap though PyTorch's test may say that they do not."""
    if not (x.known and y.known) or 0 in x.shape or 0 in y.shape:
        return False
    if x.width != y.width:
        (x_start, x_end), (y_start, y_end) = _bytes(x), _bytes(y)
        return x_start < y_end and y_start < x_end
    first, second = sorted((x, y), key=lambda place: place.start)
    if len(first.shape) != 2 or len(second.shape) != 2 or first.strides != second.strides:
        return False
    step, one = first.strides
    ahead = second.start - first.start
    # The row of the first in which the second begins, and the place in it.
    return one == 1 and step > 0 and ahead // step < first.shape[0] and ahead % step < first.shape[1]


def _bytes(place: _Place) -> tuple[int, int]:
    return place.start * place.width, place.end() * place.width
