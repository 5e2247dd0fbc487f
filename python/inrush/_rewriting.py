"""Graphs whose tensors come to lie otherwise: what follows a change is given its layout anew, and results lie as they did."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

aten = torch.ops.aten


def is_plain(node: Any) -> bool:
    """An operator of PyTorch's on values without symbols that changes nothing."""
    if node.op not in ("placeholder", "output", "call_function"):
        return False
    values = node.meta.get("val")
    for v in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
        if isinstance(v, torch.Tensor) and not all(isinstance(s, int) for s in (*v.shape, *v.stride())):
            return False
    if node.op != "call_function":
        return True
    name = getattr(node.target, "__name__", "")
    return name == "getitem" or isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


# Operators that count in elements of memory.
_OF_MEMORY = {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}


def looks_at_memory(node: Any) -> bool:
    """Whether how its operands lie is more than a matter of speed: custom operators may rely on it."""
    return node.target in _OF_MEMORY or getattr(node.target, "namespace", "aten") not in ("aten", "prims")


class Rewriting:
    """Changes to a graph of plain nodes, made from its first node to its last; all of them can be undone."""

    def __init__(self, gm: Any) -> None:
        self.graph = gm.graph
        self.before = {n: n.meta.get("val") for n in gm.graph.nodes}
        fakes = (v.fake_mode for v in self.before.values() if isinstance(v, torch._subclasses.FakeTensor))
        self.mode = next(fakes, None) or contextlib.nullcontext()
        self.added: list[Any] = []
        self.replaced: list[tuple[Any, Any]] = []
        self.arguments: list[tuple[Any, tuple, dict]] = []
        # Nodes whose values may lie otherwise than they did.
        self.moved: set[Any] = set()

    def call(self, at: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A new node ahead of `at`."""
        with self.graph.inserting_before(at):
            made = self.graph.call_function(target, args, kwargs)
        self.added.append(made)
        made.meta = {k: v for k, v in at.meta.items() if k == "stack_trace"}
        made.meta["val"] = self.value(made)
        return made

    def contiguous(self, at: Any, node: Any) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.is_contiguous():
            return node
        return self.call(at, aten.clone.default, node, memory_format=torch.contiguous_format)

    def replace(self, node: Any, made: Any) -> None:
        """Has all that reads `node` read `made`."""
        node.replace_all_uses_with(made)
        self.replaced.append((node, made))
        self.moved.add(made)

    def feed(self, node: Any, k: int, made: Any) -> None:
        """Has `node` take `made` as its argument `k`."""
        self.arguments.append((node, node.args, node.kwargs))
        node.update_arg(k, made)
        self.moved.add(made)

    def follow(self, node: Any) -> None:
        """Finds how the value of a node lies where what it reads was moved."""
        if node.op != "call_function" or not any(n in self.moved for n in node.all_input_nodes):
            return
        if looks_at_memory(node):
            self.restore(node)
            return
        try:
            node.meta["val"] = self.value(node)
        except (RuntimeError, ValueError):
            # A view that the other layout does not allow, most often.
            self.arguments.append((node, node.args, node.kwargs))
            copy = lambda n: self.contiguous(node, n) if n in self.moved else n  # noqa: E731
            node.args, node.kwargs = torch.fx.map_arg((node.args, node.kwargs), copy)
            node.meta["val"] = self.value(node)
        self.moved.add(node)

    def restore(self, node: Any) -> None:
        """What `node` reads lies as it did."""
        # What was replaced has to lie as that in whose stead it stands.
        told = self.before | {made: self.before[old] for old, made in self.replaced}

        def as_told(read: Any) -> Any:
            want, have = told.get(read), read.meta.get("val")
            if not isinstance(want, torch.Tensor) or want.stride() == have.stride():
                return read
            if not want.is_contiguous():
                raise ValueError(f"{read} has strides {want.stride()}")
            return self.call(node, aten.clone.default, read, memory_format=torch.contiguous_format)

        before = node.args, node.kwargs
        args, kwargs = torch.fx.map_arg(before, as_told)
        self.arguments.append((node, *before))
        node.args, node.kwargs = args, kwargs

    def restore_results(self) -> None:
        """Results lie as those who read them were told."""
        (out,) = self.graph.find_nodes(op="output")
        self.restore(out)

    def undo(self) -> None:
        for node, args, kwargs in reversed(self.arguments):
            node.args, node.kwargs = args, kwargs
        for node, made in reversed(self.replaced):
            made.replace_all_uses_with(node)
        for node in reversed(self.added):
            self.graph.erase_node(node)
        for node, value in self.before.items():
            if value is not None:
                node.meta["val"] = value

    def value(self, node: Any) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode:
            return node.target(*args, **kwargs)
