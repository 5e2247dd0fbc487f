"""Results of graphs of AOTAutograd that are views of inputs."""

from __future__ import annotations

from typing import Any

import torch

from inrush import torch_internals

aten = torch.ops.aten


def view_inputs(gm: Any, meta: Any) -> None:
    """Has results that are views of mutated inputs be views of the inputs in the graph, not of what is written there.

    With symbolic sizes AOTAutograd makes such a result of the input by sizes, strides and the storage offset that the graph gives.
    What is written there is a fresh tensor: its offset is zero, and its strides may be others.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    output = gm.graph.output_node()
    results = list(output.args[0])
    written = {node.args[1]: node.args[0] for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default)}
    tokens = len(getattr(meta, "tokens", ()))
    mutated = getattr(meta, "mutated_inp_runtime_indices", ())
    # What AOTAutograd writes to inputs comes first.
    written |= {results[tokens + k]: inputs[tokens + at] for k, at in enumerate(mutated)}
    for k, info in enumerate(getattr(meta, "output_info", ()), tokens + len(mutated)):
        if torch_internals.is_made_by_sizes(info):
            results[k] = _view_again(gm.graph, output, results[k], inputs[tokens + info.base_idx], written) or results[k]
    output.args = (type(output.args[0])(results),)


def _view_again(graph: Any, output: Any, result: Any, of: Any, written: dict[Any, Any]) -> Any:
    """Repeats on an input the views that lead to a result from what is written to the input; None if none lead there."""
    chain = []
    while written.get(result) is not of:
        if not isinstance(getattr(result, "target", None), torch._ops.OpOverload) or not result.target.is_view:
            return None
        chain.append(result)
        result = result.args[0]
    value = lambda a: a.meta["val"] if isinstance(a, torch.fx.Node) else a  # noqa: E731
    node = of
    for view in reversed(chain):
        args = (node, *view.args[1:])
        with graph.inserting_before(output):
            node = graph.call_function(view.target, args, view.kwargs)
        node.meta = dict(view.meta)
        with torch_internals.fake_mode_of(of.meta["val"]):
            node.meta["val"] = view.target(*torch.fx.node.map_aggregate(args, value), **view.kwargs)
    return node
