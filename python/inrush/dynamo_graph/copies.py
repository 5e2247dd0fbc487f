"""Copies FX graphs before passes rewrite them: the caller may still run the original."""

from __future__ import annotations

from typing import Any

import torch


def copied(gm: Any) -> tuple[Any, dict[Any, Any]]:
    """Returns a copy of a module's graph, and the copies of its nodes."""
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    return graph, copies


def module(gm: Any, graph: Any) -> Any:
    """Returns a module with what ``gm`` has, and another graph."""
    # No module of FX: that would want to write the graph as Python code.
    new = torch.nn.Module()
    new.__dict__.update(gm.__dict__)
    object.__setattr__(new, "graph", graph)
    return new
