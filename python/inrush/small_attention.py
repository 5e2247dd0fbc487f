"""Small attentions on GPUs: kernels of the compiler's own in the place of PyTorch's library.

A library's attention costs the CPU 20 to 60 us a call, and cuts what is recorded around it in two. Where the device needs a few
microseconds, a kernel that is launched with all others is faster as a whole. :func:`rewrite` turns such calls back into
``scaled_dot_product_attention``, of which the compiler makes a kernel with an online softmax. What it refuses is PyTorch's own
again.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from inrush import gpu
from inrush.dynamo_graph.copies import copied, module
from inrush.traced_sizes import traced

aten = torch.ops.aten

# Scores of a call up to which it is small: a billion operations with heads of 64, which tensor cores do in some microseconds.
SCORES = 1 << 22

_LIBRARY = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)


def rewrite(gm: Any, of_traced_sizes: bool = False) -> Any:
    """Replaces small attentions of an inference graph in a copy of it; the given graph is not changed.

    ``of_traced_sizes``: the graph will run with the sizes of the traced call alone. Otherwise attentions of symbolic sizes are the library's,
    because they may become large.
    """
    if not any(_is_small(n, of_traced_sizes) for n in gm.graph.nodes):
        return gm
    graph, copies = copied(gm)
    for node in gm.graph.nodes:
        if _is_small(node, of_traced_sizes):
            _replace(graph, copies[node])
    return module(gm, graph)


def _arguments(node: Any) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    schema = node.target._schema
    given = dict(zip((a.name for a in schema.arguments), node.args))
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def _is_small(node: Any, of_traced_sizes: bool) -> bool:
    """Returns true for a library's attention over few scores, of which only the result is read."""
    if node.op != "call_function" or node.target not in _LIBRARY:
        return False
    read = [user.target is operator.getitem and user.args[1] == 0 for user in node.users]
    arguments = _arguments(node)
    if not read or not all(read) or arguments["dropout_p"] != 0.0 or arguments.get("return_debug_mask"):
        return False
    q, k, v = (arguments[name].meta["val"] for name in ("query", "key", "value"))
    if not gpu.is_device(q) or q.dtype not in (torch.float16, torch.bfloat16):
        return False
    if not of_traced_sizes and not all(isinstance(n, int) for n in (*q.shape, *k.shape, *v.shape)):
        return False
    sizes = [traced(n) for n in (*q.shape, *k.shape, *v.shape)]
    if any(n is None for n in sizes):
        return False
    return 0 < math.prod(sizes[:3]) * sizes[q.dim() + 2] <= SCORES


def _replace(graph: Any, node: Any) -> None:
    """Puts `scaled_dot_product_attention` in the place of one call."""
    arguments = _arguments(node)
    q, k, v = (arguments[name] for name in ("query", "key", "value"))
    grouped = traced(q.meta["val"].shape[1]) != traced(k.meta["val"].shape[1])
    args = (q, k, v, arguments.get("attn_bias"), 0.0, arguments["is_causal"])
    for user in list(node.users):
        with graph.inserting_before(user):
            new = graph.call_function(aten.scaled_dot_product_attention.default, args, {"scale": arguments["scale"], "enable_gqa": grouped})
        new.meta = dict(user.meta)
        user.replace_all_uses_with(new)
        graph.erase_node(user)
    graph.erase_node(node)
