"""Values that several library calls read are computed once in a graph of a GPU.

What a library reads has to lie in memory, and a graph computes it as often as its model says so: a mask for each layer's
attention, a cast for each of three products. What kernels read among themselves is left to fusion, which may well compute a
value twice rather than store it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from inrush import _gpu, _native

# Results of their own at each call, though nobody draws or writes.
_FRESH = ("empty", "new_empty")
# Looks at its argument's memory without saying so.
_LOOKS = ("_unsafe_view",)


@functools.cache
def _kind(target: Any) -> str:
    """What may be done with calls of it: they are `equal` for equal arguments, or `look` at their first argument's memory as well;
    `own` are those that stay as they are, and `write` those across which nothing is shared."""
    if target is operator.getitem:
        return "look"
    if getattr(target, "__module__", None) in ("_operator", "math", "torch"):
        # Arithmetic of sizes.
        return "own"
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims") or target._schema.is_mutable:
        return "write"
    name = target._schema.name.split("::")[1]
    if torch.Tag.nondeterministic_seeded in target.tags or name.startswith(_FRESH):
        return "own"
    return "look" if target.is_view or name in _LOOKS else "equal"


def share(gm: Any) -> int:
    """Has calls of libraries read the first of equal values; gives the number of those that are not computed any more."""
    graph = gm.graph
    if not any(isinstance(v := n.meta.get("val"), torch.Tensor) and _gpu.is_device(v) for n in graph.find_nodes(op="placeholder")):
        return 0
    first: dict[Any, Any] = {}
    same: dict[Any, Any] = {}

    def key(x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return same.get(x, x)
        if isinstance(x, (list, tuple)):
            return tuple(map(key, x))
        # -0.0 is equal to 0.0, and True to 1, but they are not the same.
        return type(x), repr(x) if isinstance(x, float) else x

    for n in graph.nodes:
        if n.op != "call_function":
            continue
        kind = _kind(n.target)
        if kind == "write":
            first.clear()
        elif kind != "own":
            try:
                found = first.setdefault((n.target, key(n.args), key(sorted(n.kwargs.items()))), n)
            except TypeError:
                # An argument that cannot be compared.
                continue
            if found is not n:
                same[n] = found
    spared = []
    for n, found in same.items():
        if _kind(n.target) == "equal" and n.users and _is_read_by_library(n):
            n.replace_all_uses_with(found)
            spared.append(n)
    return sum(_erase(graph, n) for n in spared)


def _is_read_by_library(node: Any) -> bool:
    """Whether a library reads it, and it is no result of the graph, which must have memory of its own."""
    library = False
    open = [node]
    while open:
        for user in open.pop().users:
            if user.op != "call_function":
                return False
            if _kind(user.target) == "look":
                open.append(user)
            else:
                library |= _native.is_library(str(user.target))
    return library


def _erase(graph: Any, node: Any) -> int:
    """Takes out a node that nobody reads, and what only it read."""
    if node.users or node.op != "call_function" or _kind(node.target) not in ("equal", "look"):
        return 0
    reads = node.all_input_nodes
    graph.erase_node(node)
    return 1 + sum(_erase(graph, n) for n in reads)
