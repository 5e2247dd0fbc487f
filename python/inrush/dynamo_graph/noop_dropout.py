"""Calls that give back their argument in eager, where PyTorch's tracing makes a copy: what is written to one is seen in the other."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

# Of each function where it takes the probability and whether it trains, with the defaults of both.
_DROPOUTS: dict[Any, tuple[int, int, float, bool]] = {
    **{f: (1, 2, 0.5, True) for f in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)},
    **{f: (1, 2, 0.5, False) for f in (F.alpha_dropout, F.feature_alpha_dropout)},
    **{f: (1, 2, 0.5, True) for f in (torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)},
}


def take_out(gm: Any) -> None:
    """Replaces dropouts that drop nothing by what they are given, in a captured graph and those of operators around others."""
    for module in list(gm.modules()):
        if isinstance(module, torch.fx.GraphModule) and _take_out(module.graph):
            module.recompile()


def _take_out(graph: Any) -> bool:
    found = [n for n in graph.nodes if n.op == "call_function" and n.target in _DROPOUTS and _drops_nothing(n)]
    for node in found:
        given = node.args[0] if node.args else node.kwargs["input"]
        node.replace_all_uses_with(given)
        graph.erase_node(node)
    return bool(found)


def _drops_nothing(node: Any) -> bool:
    at_p, at_training, p, training = _DROPOUTS[node.target]

    def read(k: int, names: tuple[str, ...], default: Any) -> Any:
        if k < len(node.args):
            return node.args[k]
        return next((node.kwargs[name] for name in names if name in node.kwargs), default)

    training = read(at_training, ("training", "train"), training)
    p = read(at_p, ("p",), p)
    return training is False or isinstance(p, (int, float)) and p == 0
