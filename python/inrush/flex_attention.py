"""`flex_attention` on GPUs: its score and mask functions become pointwise operators of the graph.

The higher-order operator holds two graphs over numbers: a score, a batch, a head, a query and a key. :func:`rewrite` traces
them over all scores at once and puts three nodes in the operator's place:

    product = inrush.attention_product(query, key)
    scores, keep = pointwise operators on product and on positions
    out, logsumexp, max = inrush.attention(query, key, value, product, scores, keep, blocks ..)

The compiler moves the pointwise operators into the kernel of the attention, so that product, scores and mask are never in
memory. The operators below compute the same from tensors; they run where the compiler refuses one of them.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable

import torch

from inrush import gpu, torch_internals

aten = torch.ops.aten

# Blocks that are as long as any sequence: no list is worth looking at.
_WHOLE = 1 << 24

_library = torch.library.Library("inrush", "DEF")
_library.define("attention_product(Tensor query, Tensor key) -> Tensor")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor product, Tensor scores, Tensor? keep, Tensor? kv_num_blocks, "
    "Tensor? kv_indices, Tensor? full_kv_num_blocks, Tensor? full_kv_indices, int rows, int keys) -> (Tensor, Tensor, Tensor)"
)


class Refused(Exception):
    """Why a `flex_attention` stays a call of PyTorch."""


def _heads(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head and batch of the queries."""
    x = torch.repeat_interleave(x, query.shape[1] // x.shape[1], dim=1)
    return x.expand(query.shape[0], *x.shape[1:])


def _product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query.float() @ _heads(key, query).float().transpose(-2, -1)


def _listed(count: torch.Tensor, index: torch.Tensor, shape: torch.Size, rows: int, keys: int) -> torch.Tensor:
    """Which scores are in one of the listed blocks."""
    used = torch.arange(index.shape[-1], device=index.device) < count[..., None]
    blocks = torch.zeros(*index.shape[:-1], -(-shape[3] // keys) + 1, dtype=torch.bool, device=index.device)
    # What is not used goes to a column of its own.
    blocks.scatter_(-1, torch.where(used, index, blocks.shape[-1] - 1).long(), True)
    wide = blocks[..., :-1].repeat_interleave(rows, -2)[..., : shape[2], :]
    return wide.repeat_interleave(keys, -1)[..., : shape[3]]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    product: torch.Tensor,
    scores: torch.Tensor,
    keep: torch.Tensor | None,
    kv_num_blocks: torch.Tensor | None,
    kv_indices: torch.Tensor | None,
    full_kv_num_blocks: torch.Tensor | None,
    full_kv_indices: torch.Tensor | None,
    rows: int,
    keys: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = product.shape
    if kv_num_blocks is not None and kv_indices is not None:
        partial = _listed(kv_num_blocks, kv_indices, shape, rows, keys)
        keep = partial if keep is None else partial & keep
        if full_kv_num_blocks is not None and full_kv_indices is not None:
            keep = keep | _listed(full_kv_num_blocks, full_kv_indices, shape, rows, keys)
    scores = scores.float().expand(shape)
    if keep is not None:
        scores = torch.where(keep, scores, -math.inf)
    logsumexp, greatest = scores.logsumexp(-1), scores.amax(-1)
    weights = torch.where(greatest[..., None] == -math.inf, 0.0, torch.softmax(scores, -1))
    out = weights.to(query.dtype) @ _heads(value, query)
    order = sorted(range(4), key=lambda d: query.stride(d), reverse=True)
    out = out.permute(order).contiguous().permute([order.index(d) for d in range(4)])
    return out, logsumexp / math.log(2), greatest / math.log(2)


_library.impl("attention_product", _product, "CompositeExplicitAutograd")
_library.impl("attention", _attention, "CompositeExplicitAutograd")


def rewrite(gm: Any) -> tuple[Any, str | None]:
    """Replaces each `flex_attention` in a copy of the graph. Returns the copy, and the reason if one stays. The given graph is
    not changed: it may be called as it is."""
    found = [n for n in gm.graph.nodes if n.op == "call_function" and getattr(n.target, "_name", "") == "flex_attention"]
    found = [n for n in found if gpu.is_device(n.args[0].meta["val"])]
    if not found:
        return gm, None
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    why = None
    for node in found:
        try:
            _replace(gm, graph, copies[node])
        except Refused as error:
            why = str(error)
        except Exception as error:
            why = f"its functions are not traced: {error}"
    graph.eliminate_dead_code()
    new = torch.nn.Module()
    new.__dict__.update(gm.__dict__)
    object.__setattr__(new, "graph", graph)
    return new, why


def _replace(gm: Any, graph: Any, node: Any) -> None:
    """Puts operators in the place of one call."""
    query, key, value, score_mod, block_mask, scale, _options, of_score, of_mask = node.args
    q, k = query.meta["val"], key.meta["val"]
    shape = (*q.shape[:3], k.shape[2])
    if not all(isinstance(n, int) for n in (*shape, *key.meta["val"].shape, *value.meta["val"].shape)):
        raise Refused("sizes that are not known")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise Refused(f"queries of {q.dtype}")
    others = [*of_score, *of_mask]
    if not all(isinstance(x, torch.fx.Node) and isinstance(x.meta.get("val"), torch.Tensor) for x in others):
        raise Refused("numbers that its functions read")
    rows, keys = block_mask[-3], block_mask[-2]
    lists = [None if rows >= _WHOLE and keys >= _WHOLE else x for x in block_mask[2:6]]
    score, mask = (_module(gm, x) for x in (score_mod, block_mask[-1]))
    traced = _trace(q, shape, scale, score, mask, [x.meta["val"] for x in of_score], [x.meta["val"] for x in of_mask])
    with graph.inserting_before(node):
        product = _add(graph, node, torch.ops.inrush.attention_product.default, (query, key), q.new_empty(shape, dtype=torch.float32))
        places = [n for n in traced.graph.nodes if n.op == "placeholder"]
        values = dict(zip(places, [product, *others], strict=True))
        scores, keep = graph.graph_copy(traced.graph, values)
        for old in traced.graph.nodes:
            if old.op not in ("placeholder", "output") and "stack_trace" in node.meta:
                values[old].meta["stack_trace"] = node.meta["stack_trace"]
        keep = None if _is_true(mask) else keep
        args = (query, key, value, product, scores, keep, *lists, rows, keys)
        out = _add(graph, node, torch.ops.inrush.attention.default, args, node.meta["val"])
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _add(graph: Any, like: Any, target: Any, args: Any, value: Any) -> Any:
    new = graph.call_function(target, args)
    new.meta["val"] = value
    if "stack_trace" in like.meta:
        new.meta["stack_trace"] = like.meta["stack_trace"]
    return new


def _module(gm: Any, node: Any) -> Any:
    """The graph of a function, which a node stands for."""
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        raise Refused("a function that is no graph")
    return operator.attrgetter(node.target)(gm)


def _trace(q: Any, shape: Any, scale: float, score: Any, mask: Any, of_score: list[Any], of_mask: list[Any]) -> Any:
    """The graph of scores and mask over all positions, of the product and what the functions read."""

    def functions(product: Any, *others: Any) -> tuple[Any, Any]:
        positions = [torch.arange(n, device=q.device) for n in shape]
        given, masks = others[: len(of_score)], others[len(of_score) :]
        scores = _everywhere(score, (0,), len(given))(product * scale, *positions, *given)
        return scores.float(), _everywhere(mask, (), len(masks))(*positions, *masks)

    with torch_internals.fake_mode_of(q), torch.no_grad():
        product = q.new_empty(shape, dtype=torch.float32)
        traced = torch_internals.trace(functions, product, *of_score, *of_mask)
    if any(n.op == "get_attr" for n in traced.graph.nodes):
        raise Refused("a tensor that its functions make")
    _unwrap_numbers(traced.graph)
    return traced


def _unwrap_numbers(graph: Any) -> None:
    """Passes numbers on as they are, of which tracing makes tensors without dimensions."""
    for node in list(graph.nodes):
        if node.target is not aten._to_copy.default or not isinstance(node.args[0], (bool, int, float)):
            continue
        number = float(node.args[0]) if node.meta["val"].is_floating_point() else node.args[0]
        readers = list(node.users)
        if any(n.op == "output" for n in readers):
            continue
        for reader in readers:
            given = lambda x, node=node, number=number: number if x is node else x
            reader.args = torch.fx.map_arg(reader.args, given)
            reader.kwargs = torch.fx.map_arg(reader.kwargs, given)
        graph.erase_node(node)


def _everywhere(function: Callable[..., Any], first: tuple[int, ...], others: int) -> Callable[..., Any]:
    """``function`` of numbers as one of vectors of batches, heads, queries and keys: a result for each of their points."""
    for axis in (3, 2, 1, 0):
        dims = tuple(0 if k == axis else None for k in range(4))
        function = torch.vmap(function, in_dims=(*first, *dims, *(None,) * others))
    return function


def _is_true(mask: Any) -> bool:
    """Returns true if a mask keeps everything."""
    (result,) = next(n for n in mask.graph.nodes if n.op == "output").all_input_nodes or (None,)
    if result is None:
        return False
    filled = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
    ones = (aten.ones.default, aten.new_ones.default, aten.ones_like.default)
    at = filled.get(result.target)
    return result.target in ones or (at is not None and result.args[at] is True)
