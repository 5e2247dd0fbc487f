"""Splits joint graphs of AOTAutograd into a forward and a backward pass."""

from __future__ import annotations

from typing import Any

import torch

from inrush import torch_internals

aten = torch.ops.aten


def partition(*args: Any, **kwargs: Any) -> Any:
    """Splits the joint graph: what is cheap is computed again in the backward pass."""
    graph = args[0].graph
    _pass_detached(graph)
    _keep_results_of_mutated(graph)
    if torch_internals.keeps_random_numbers():
        _place_draws(graph)
    return torch_internals.min_cut_partition(*args, **kwargs)


def _pass_detached(graph: Any) -> None:
    """Has nodes read what was detached, not what ``detach`` gave, which means nothing below autograd. The partitioner never
    computes a ``detach`` again and would keep its operand, such as each ``tanh``, for the backward pass.

    This rewrite is not in ``inrush-passes``: the joint graph of both passes exists in AOTAutograd only, before its partitioner
    decides what is kept, and the compiler gets the parts."""
    for node in graph.find_nodes(op="call_function", target=aten.detach.default):
        node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            graph.erase_node(node)


def _keep_results_of_mutated(graph: Any) -> None:
    """Has the forward pass keep what is computed from arguments before it mutates them, as eager does: the backward pass finds
    them mutated. The partitioner would compute it again from the arguments, with wrong gradients and no error."""
    from torch.utils.checkpoint import CheckpointPolicy

    written = [n.args[0] for n in graph.find_nodes(op="call_function", target=aten.copy_.default)]
    # Of what a caller writes back, AOTAutograd tells by descriptions of the results.
    described = [d.mutated_input for d in graph.output_node().meta.get("desc", ()) if hasattr(d, "mutated_input")]
    returned = [n for n in graph.find_nodes(op="placeholder") if n.meta.get("desc") in described]
    same_memory = list(dict.fromkeys(written + returned))
    for node in same_memory:
        for user in node.users:
            if isinstance(user.target, torch._ops.OpOverload) and user.target.is_view:
                same_memory.append(user)
            elif user.op == "call_function" and not _only_updates(user):
                user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _only_updates(node: Any) -> bool:
    """Returns true for an operator whose results, but for new contents of what is mutated, do not depend on that."""
    if node.target is aten._native_batch_norm_legit_functional.default:
        return bool(node.args[5])
    return node.target is aten.copy_.default


def _place_draws(graph: Any) -> None:
    """Has draws that nothing reads take place once: to the partitioner, those that need no gradient fit both passes. In a backward
    pass of the user's own these go to the forward pass, as draws do there that are read."""
    for node in graph.nodes:
        if node.op == "call_function" and not node.users and torch_internals.draws(node):
            backward = node.meta.get("partitioner_tag") == "is_backward"
            node.meta["partitioner_tag"] = "must_be_in_backward" if backward else "must_be_in_forward"
