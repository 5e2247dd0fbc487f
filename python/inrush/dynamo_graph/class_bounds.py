"""`one_hot` as eager has it: numbers of classes that are none are refused.

PyTorch looks at them in its kernel for tensors with values; of tensors without, which a graph is traced with, it compares the
numbers with all classes, and a number that is none gives a row of zeros. Here the numbers are first read out of a list of all
classes, and reading refuses what is not there; nothing is left of that but the check.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses import FakeTensor


def check_classes(gm: Any) -> None:
    """Spells `one_hot` in a captured graph so that numbers of classes are checked."""
    # Graphs of compiled autograd come in a wrapper that takes their inputs flat.
    gm = getattr(gm, "gm", gm)
    found = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is torch.nn.functional.one_hot]
    for node in found:
        numbers = node.args[0] if node.args else node.kwargs["self"]
        classes = node.args[1] if len(node.args) > 1 else node.kwargs.get("num_classes", -1)
        value = numbers.meta.get("example_value") if isinstance(numbers, torch.fx.Node) else None
        # Subclasses have operators of their own.
        if type(value) is FakeTensor and (isinstance(classes, torch.fx.Node) or classes > 0):
            _spell(gm.graph, node, numbers, classes, value)
    if found:
        gm.recompile()


def _spell(graph: torch.fx.Graph, node: torch.fx.Node, numbers: torch.fx.Node, classes: Any, value: FakeTensor) -> None:
    def add(target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        kind = "call_method" if isinstance(target, str) else "call_function"
        new = graph.create_node(kind, target, args, kwargs)
        new.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
        read = lambda n: n.meta["example_value"]  # noqa: E731
        given, named = torch.fx.map_arg(args, read), torch.fx.map_arg(kwargs, read)
        with value.fake_mode, torch.no_grad():
            result = getattr(given[0], target)(*given[1:], **named) if kind == "call_method" else target(*given, **named)
        new.meta["example_value"] = result
        return new

    with graph.inserting_before(node):
        all_classes = add(torch.arange, classes, device=value.device)
        flat = add("reshape", numbers, -1)
        read = add("index_select", all_classes, 0, flat)
        shaped = add("view_as", read, numbers)
        column = add("unsqueeze", shaped, -1)
        hit = add(operator.eq, column, all_classes)
        out = add("to", hit, torch.int64)
    node.replace_all_uses_with(out)
    graph.erase_node(node)
