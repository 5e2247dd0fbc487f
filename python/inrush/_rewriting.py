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


def _is_view(node: Any) -> bool:
    """Returns true if the node shows the memory of its first argument."""
    schema = getattr(node.target, "_schema", None)
    first = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
    return first is not None and not first.is_write and isinstance(node.args[0], torch.fx.Node)


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
        """Has `node` read values laid out as it was told."""
        self.read(node, lambda read: self.as_told(node, read))

    def restore_results(self) -> None:
        """Lays results out as those who read them were told. Results that share memory still do: views of one value are made again of its copy."""
        (out,) = self.graph.find_nodes(op="output")
        bases = self.bases()

        def root(node: Any) -> Any:
            while node in bases:
                node = bases[node]
            return node

        roots = [root(node) for node in out.all_input_nodes]
        copies: dict[Any, Any] = {}

        def laid_out(node: Any) -> Any:
            if node not in copies:
                shares = node in bases and roots.count(root(node)) > 1
                made = laid_out(bases[node]) if shares else self.as_told(out, node)
                if shares and made is node.args[0]:
                    made = node
                elif shares:
                    made = self.call(out, node.target, made, *node.args[1:], **node.kwargs)
                copies[node] = made
            return copies[node]

        self.read(out, laid_out)

    def bases(self) -> dict[Any, Any]:
        """Returns of each view the value that it showed before anything was copied for it."""
        arguments = {node: args for node, args, _ in reversed(self.arguments)}
        replaced = dict(self.replaced)
        views = (n for n in self.graph.nodes if n.op == "call_function" and _is_view(n))
        firsts = ((n, arguments.get(n, n.args)[0]) for n in views)
        return {n: replaced.get(first, first) for n, first in firsts}

    def read(self, node: Any, instead: Any) -> None:
        """Has `node` read `instead` of each value."""
        before = node.args, node.kwargs
        args, kwargs = torch.fx.map_arg(before, instead)
        self.arguments.append((node, *before))
        node.args, node.kwargs = args, kwargs

    def as_told(self, at: Any, read: Any) -> Any:
        """The value of `read` with the strides that it had, a copy ahead of `at` if they changed."""
        # What was replaced has to lie as that in whose stead it stands.
        told = self.before | {made: self.before[old] for old, made in self.replaced}
        want, have = told.get(read), read.meta.get("val")
        if not isinstance(want, torch.Tensor) or want.stride() == have.stride():
            return read
        if not want.is_contiguous():
            raise ValueError(f"{read} has strides {want.stride()}")
        return self.call(at, aten.clone.default, read, memory_format=torch.contiguous_format)

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
