"""Guards on how the inputs of a graph overlap.

AOTAutograd compiles a graph that changes its inputs for the way in which these share memory, but neither guards it nor has it in
the keys of its cache: with tensors apart at first and overlapping ones later it would give wrong values. Here the way is part of
the key, and a graph that changes inputs gets a guard that compares it in each call, so that another way is captured anew. Inputs
that only are read may overlap as they like, and views of one storage that do not overlap count as apart.
"""

from __future__ import annotations

import functools
from typing import Any, Iterable

import torch

from inrush import _native, torch_internals
from inrush.capture import fingerprint

Pattern = tuple[Any, ...]


class Foreign(Exception):
    """Inputs that share memory in a way that AOTAutograd does not see."""


def has_memory(value: Any) -> bool:
    """Returns true if a tensor has an address: it is strided, and neither fake nor a wrapper."""
    return (
        isinstance(value, torch.Tensor)
        and type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and value.layout == torch.strided
        and value.device.type != "meta"
    )


def pattern(tensors: tuple[torch.Tensor, ...], changed: Iterable[int]) -> Pattern | None:
    """How tensors overlap, as far as that matters where those at the places ``changed`` are written to. None: they do not.

    AOTAutograd makes one input of all tensors of a storage where any two of them overlap and one is changed, and writes down where
    in the storage each of them was."""
    if len(tensors) < 2 or not _native.overlaps(tensors):
        return None
    written = frozenset(changed)
    groups: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(place)
    shared = [tuple(g) for g in groups.values() if written.intersection(g) and _native.overlaps(tuple(tensors[k] for k in g))]
    apart = _foreign(tensors, list(groups.values()), written)
    if not shared and not apart:
        return None
    return (*(tuple((k, *_place(tensors, group, k)) for k in group) for group in shared), *(("foreign", *pair) for pair in apart))


def _place(tensors: tuple[torch.Tensor, ...], group: tuple[int, ...], k: int) -> tuple[Any, ...]:
    """Where a tensor is in its storage, and of which tensor it is a view."""
    tensor = tensors[k]
    base = tensor._base
    parent: Any = None
    if base is not None:
        first = next(i for i in group if tensors[i]._base is base)
        parent = (first, [i for i in group if tensors[i] is base], *_layout(base))
    return (*_layout(tensor), parent)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad)


def _foreign(tensors: tuple[torch.Tensor, ...], groups: list[list[int]], written: frozenset[int]) -> list[tuple[int, int]]:
    """Storages, by their first tensors, that are written to and overlap another storage, as arrays of NumPy may."""
    out = []
    for at, group in enumerate(groups):
        for other in groups[at + 1 :]:
            if written.intersection(group) or written.intersection(other):
                pairs = ((tensors[i], tensors[j]) for i in group for j in other)
                if any(_native.overlaps(pair) for pair in pairs):
                    out.append((group[0], other[0]))
    return out


def key(inputs: list[Any]) -> Pattern | None:
    """Of the inputs of a graph that was not traced yet, for keys of caches: any of them may be changed."""
    places = [k for k, value in enumerate(inputs) if has_memory(value)]
    found = pattern(tuple(inputs[k] for k in places), range(len(places)))
    return None if found is None else (tuple(places), found)


def changed_inputs(inputs: int) -> frozenset[int]:
    """Which inputs the graph changes that AOTAutograd has just compiled; all of them where that is not known."""
    info = getattr(torch_internals.metadata(), "input_info", None)
    if info is None:
        return frozenset(range(inputs))
    changed = frozenset(k for k, i in enumerate(info) if i.mutates_data or i.mutates_storage_metadata)
    if changed and len(info) != inputs:
        # The description is of inputs that were merged.
        return frozenset(range(inputs))
    return changed


def refuse_foreign(aliases: Pattern | None, changed: frozenset[int]) -> None:
    """Raises where a graph changes inputs and AOTAutograd cannot know what else that changes."""
    if changed and aliases is not None and any(entry[0] == "foreign" for entry in aliases[1]):
        raise Foreign("they share memory under different storages")


def not_kept() -> dict[str, str]:
    """Refuses to name the operators of a graph, as :func:`inrush.capture.fingerprint.operators_of` does: the capture would hold AOTAutograd's code."""
    raise fingerprint.NotPortable("inputs that are changed overlap, which runs eagerly")


def guard_inputs(gm: Any, inputs: list[Any], changed: frozenset[int]) -> None:
    """Has Dynamo guard the frame that it is capturing on how the inputs of this graph overlap."""
    # Graphs of compiled autograd come in a wrapper, and have no frame of the user's.
    graph = getattr(gm, "graph", None)
    sources = [] if graph is None else [torch_internals.source_of(node) for node in graph.nodes if node.op == "placeholder"]
    places = [k for k, (value, source) in enumerate(zip(inputs, sources)) if source is not None and has_memory(value)]
    written = tuple(n for n, k in enumerate(places) if k in changed)
    if len(places) < 2 or not written:
        return
    wanted = pattern(tuple(inputs[k] for k in places), written)
    torch_internals.add_guard(functools.partial(aliasing, sources=tuple(sources[k] for k in places), written=written, wanted=wanted))


def aliasing(builder: Any, guard: Any, sources: tuple[Any, ...], written: tuple[int, ...], wanted: Pattern | None) -> None:
    """Adds the guard to those of a frame; a method of PyTorch's builder, as it were."""

    def holds(*tensors: Any) -> bool:
        return pattern(tensors, written) == wanted

    arguments = ", ".join(source.name for source in sources)
    torch_internals.add_python_guard(builder, f"___inrush_aliasing({arguments})", "___inrush_aliasing", holds)
