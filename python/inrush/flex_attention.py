"""`flex_attention` and its gradients on GPUs: score and mask functions become pointwise operators of the graph.

The higher-order operator holds two graphs over numbers: a score, a batch, a head, a query and a key. :func:`rewrite` traces
them over all scores at once and puts three nodes in the operator's place:

    product = inrush.attention_product(query, key)
    scores, keep = pointwise operators on product and on positions
    out, logsumexp, max = inrush.attention(query, key, value, product, scores, keep, blocks ..)

Gradients compute the scores again, from the logarithms of sums that the forward pass kept, and their own gradients by the
graph that AOTAutograd made of the score function:

    grad_product = inrush.attention_product(grad, value)
    p = exp2(scores * log2(e) - logsumexp);  weights = gradient of the score function at p * (grad_product - delta), times scale
    d_query = inrush.attention_grad_query(.., weights, keep, blocks of keys ..)
    d_key, d_value = inrush.attention_grad_key_value(.., weights, p, keep, blocks of queries ..)

``delta`` is the sum of the result times its gradient along a row. Keys that several heads or batches share get a gradient
from each of them in float32, which operators add up.

The compiler moves the pointwise operators into the kernels of the attentions, so that products, scores and mask are never in
memory. The operators below compute the same from tensors; they run where the compiler refuses one of them.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable

import torch

from inrush import gpu, torch_internals
from inrush.dynamo_graph.copies import copied, module

aten = torch.ops.aten

# Blocks that are as long as any sequence: no list is worth looking at.
_WHOLE = 1 << 24

_library = torch.library.Library("inrush", "DEF")
_library.define("attention_product(Tensor query, Tensor key) -> Tensor")
_GRADIENTS = "Tensor query, Tensor key, Tensor value, Tensor grad, Tensor product, Tensor grad_product, Tensor weights"
_library.define(
    f"attention_grad_query({_GRADIENTS}, Tensor? keep, Tensor? kv_num_blocks, Tensor? kv_indices, Tensor? full_kv_num_blocks, "
    "Tensor? full_kv_indices, int rows, int keys) -> Tensor"
)
_library.define(
    f"attention_grad_key_value({_GRADIENTS}, Tensor value_weights, Tensor? keep, Tensor? q_num_blocks, Tensor? q_indices, "
    "Tensor? full_q_num_blocks, Tensor? full_q_indices, int rows, int keys) -> (Tensor, Tensor)"
)
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor product, Tensor scores, Tensor? keep, Tensor? kv_num_blocks, "
    "Tensor? kv_indices, Tensor? full_kv_num_blocks, Tensor? full_kv_indices, int rows, int keys) -> (Tensor, Tensor, Tensor)"
)


class Refused(Exception):
    """Why a `flex_attention` or its gradient stays a call of PyTorch."""


def _heads(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head and batch of the queries."""
    x = torch.repeat_interleave(x, query.shape[1] // x.shape[1], dim=1)
    return x.expand(query.shape[0], *x.shape[1:])


def _product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query.float() @ _heads(key, query).float().transpose(-2, -1)


def _listed(count: torch.Tensor, index: torch.Tensor, shape: tuple[int, ...], rows: int, keys: int) -> torch.Tensor:
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
    keep = _kept(keep, (kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices), shape, rows, keys)
    scores = scores.float().expand(shape)
    if keep is not None:
        scores = torch.where(keep, scores, -math.inf)
    logsumexp, greatest = scores.logsumexp(-1), scores.amax(-1)
    weights = torch.where(greatest[..., None] == -math.inf, 0.0, torch.softmax(scores, -1))
    out = weights.to(query.dtype) @ _heads(value, query)
    return _laid_out(out, query.stride()), logsumexp / math.log(2), greatest / math.log(2)


def _laid_out(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A dense tensor with its dimensions in the order of ``strides``."""
    order = sorted(range(4), key=lambda d: strides[d], reverse=True)
    return x.permute(order).contiguous().permute([order.index(d) for d in range(4)])


def _kept(keep: torch.Tensor | None, lists: Any, shape: Any, rows: int, keys: int) -> torch.Tensor | None:
    """The mask of scores with the blocks that are listed: partial ones, then those that are kept whole."""
    count, index, full_count, full_index = lists
    if count is None or index is None:
        return keep
    partial = _listed(count, index, shape, rows, keys)
    keep = partial if keep is None else partial & keep
    if full_count is not None and full_index is not None:
        keep = keep | _listed(full_count, full_index, shape, rows, keys)
    return keep


def _weights(weights: torch.Tensor, keep: torch.Tensor | None, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Weights of all points in the dtype of the operands, 0 where a key is not kept."""
    weights = weights.expand(shape)
    return (weights if keep is None else torch.where(keep, weights, 0.0)).to(dtype)


def _grad_query(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    product: torch.Tensor,
    grad_product: torch.Tensor,
    weights: torch.Tensor,
    keep: torch.Tensor | None,
    kv_num_blocks: torch.Tensor | None,
    kv_indices: torch.Tensor | None,
    full_kv_num_blocks: torch.Tensor | None,
    full_kv_indices: torch.Tensor | None,
    rows: int,
    keys: int,
) -> torch.Tensor:
    shape = product.shape
    keep = _kept(keep, (kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices), shape, rows, keys)
    out = _weights(weights, keep, shape, query.dtype) @ _heads(key, query)
    return _laid_out(out, query.stride())


def _grad_key_value(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    product: torch.Tensor,
    grad_product: torch.Tensor,
    weights: torch.Tensor,
    value_weights: torch.Tensor,
    keep: torch.Tensor | None,
    q_num_blocks: torch.Tensor | None,
    q_indices: torch.Tensor | None,
    full_q_num_blocks: torch.Tensor | None,
    full_q_indices: torch.Tensor | None,
    rows: int,
    keys: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = product.shape
    turned = (*shape[:2], shape[3], shape[2])
    keep = None if keep is None else keep.transpose(-2, -1)
    keep = _kept(keep, (q_num_blocks, q_indices, full_q_num_blocks, full_q_indices), turned, keys, rows)
    dtype = query.dtype if key.shape[:2] == query.shape[:2] else torch.float32

    def total(weights: torch.Tensor, operand: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        weights = _weights(weights.expand(shape).transpose(-2, -1), keep, turned, query.dtype)
        return _laid_out(weights.to(dtype) @ operand.to(dtype), like.stride())

    return total(weights, query, key), total(value_weights, grad, value)


_library.impl("attention_product", _product, "CompositeExplicitAutograd")
_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention_grad_query", _grad_query, "CompositeExplicitAutograd")
_library.impl("attention_grad_key_value", _grad_key_value, "CompositeExplicitAutograd")


def rewrite(gm: Any) -> tuple[Any, dict[str, str]]:
    """Replaces each `flex_attention` and `flex_attention_backward` in a copy of the graph. Returns the copy, and the reason for
    each operator that stays. The given graph is not changed: it may be called as it is."""
    replace = {"flex_attention": _replace, "flex_attention_backward": _replace_gradients}
    found = [n for n in gm.graph.nodes if n.op == "call_function" and getattr(n.target, "_name", "") in replace]
    found = [n for n in found if gpu.is_device(n.args[0].meta["val"])]
    if not found:
        return gm, {}
    graph, copies = copied(gm)
    why = {}
    for node in found:
        name = node.target._name
        try:
            replace[name](gm, graph, copies[node])
        except Refused as error:
            why[f"higher_order.{name}"] = str(error)
        except Exception as error:
            why[f"higher_order.{name}"] = f"its functions are not traced: {error}"
    graph.eliminate_dead_code()
    return module(gm, graph), why


def _replace(gm: Any, graph: Any, node: Any) -> None:
    """Puts operators in the place of one call."""
    query, key, value, score_mod, block_mask, scale, _options, of_score, of_mask = node.args
    q = query.meta["val"]
    shape = _points(query, key, value)
    others = _tensors(of_score, of_mask)
    rows, keys = block_mask[-3], block_mask[-2]
    lists = _lists(block_mask, 2)
    score, mask = (_module(gm, x) for x in (score_mod, block_mask[-1]))
    traced = _trace(q, shape, scale, score, mask, [x.meta["val"] for x in of_score], [x.meta["val"] for x in of_mask])
    with graph.inserting_before(node):
        product = _add(graph, node, torch.ops.inrush.attention_product.default, (query, key), q.new_empty(shape, dtype=torch.float32))
        scores, keep = _insert(graph, node, traced, [product, *others])
        keep = None if _is_true(mask) else keep
        args = (query, key, value, product, scores, keep, *lists, rows, keys)
        out = _add(graph, node, torch.ops.inrush.attention.default, args, node.meta["val"])
    node.replace_all_uses_with(out)
    graph.erase_node(node)


def _replace_gradients(gm: Any, graph: Any, node: Any) -> None:
    """Puts operators in the place of the gradients of one call."""
    query, key, value, out, logsumexp, grad, grad_logsumexp, score_mod, joint, block_mask, scale, _options, of_score, of_mask = node.args
    q, k, v = (x.meta["val"] for x in (query, key, value))
    results = {n: [u for u in node.users if u.args[1] == n] for n in range(4)}
    if any(u.users for u in results[3]):
        raise Refused("gradients of what its score function reads")
    if grad is None:
        # Only the logarithms of sums have one.
        with graph.inserting_before(node):
            grad = _add(graph, node, aten.zeros_like.default, (out,), out.meta["val"])
    if not q.dtype == k.dtype == v.dtype == grad.meta["val"].dtype:
        raise Refused("gradients of another dtype")
    shape = _points(query, key, value)
    others = _tensors(of_score, of_mask)
    rows, keys = block_mask[-3], block_mask[-2]
    score, gradient, mask = (_module(gm, x) for x in (score_mod, joint, block_mask[-1]))
    read = [out, logsumexp, grad, *([] if grad_logsumexp is None else [grad_logsumexp])]
    metas = [[x.meta["val"] for x in of] for of in (read, of_score, of_mask)]
    traced = _trace_gradients(q, shape, scale, (score, gradient, mask), *metas)
    shared = k.shape[:2] != q.shape[:2]
    with graph.inserting_before(node):
        points = q.new_empty(shape, dtype=torch.float32)
        products = [_add(graph, node, torch.ops.inrush.attention_product.default, x, points) for x in ((query, key), (grad, value))]
        weights, value_weights, keep = _insert(graph, node, traced, [*products, *read, *others])
        keep = None if _is_true(mask) else keep
        operands = (query, key, value, grad, *products, weights)
        values = node.meta["val"]
        args = (*operands, keep, *_lists(block_mask, 2), rows, keys)
        made = [_add(graph, node, torch.ops.inrush.attention_grad_query.default, args, values[0])]
        args = (*operands, value_weights, keep, *_lists(block_mask, 6), rows, keys)
        own = [q.new_empty((*shape[:2], *x.shape[2:]), dtype=torch.float32) for x in (k, v)] if shared else values[1:3]
        pair = _add(graph, node, torch.ops.inrush.attention_grad_key_value.default, args, tuple(own))
        for n, x in enumerate((k, v)):
            one = _add(graph, node, operator.getitem, (pair, n), own[n])
            if shared:
                (one,) = _insert(graph, node, _trace_sum(own[n], x, values[1 + n].stride()), [one])
            made.append(one)
    for n, users in results.items():
        for user in users:
            if n < 3:
                user.replace_all_uses_with(made[n])
            graph.erase_node(user)
    graph.erase_node(node)


def _points(query: Any, key: Any, value: Any) -> tuple[int, ...]:
    """The sizes of all scores."""
    q, k, v = (x.meta["val"] for x in (query, key, value))
    if not all(isinstance(n, int) for x in (q, k, v) for n in x.shape):
        raise Refused("sizes that are not known")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise Refused(f"queries of {q.dtype}")
    return (*q.shape[:3], k.shape[2])


def _tensors(of_score: Any, of_mask: Any) -> list[Any]:
    """What both functions read."""
    others = [*of_score, *of_mask]
    if not all(isinstance(x, torch.fx.Node) and isinstance(x.meta.get("val"), torch.Tensor) for x in others):
        raise Refused("numbers that its functions read")
    return others


def _lists(block_mask: Any, first: int) -> list[Any]:
    """The four lists of a block mask from ``first`` on, unless its blocks are as long as any sequence."""
    whole = block_mask[-3] >= _WHOLE and block_mask[-2] >= _WHOLE
    return [None if whole else x for x in block_mask[first : first + 4]]


def _insert(graph: Any, like: Any, traced: Any, inputs: list[Any]) -> Any:
    """Copies a traced function into the graph. Returns its results."""
    places = [n for n in traced.graph.nodes if n.op == "placeholder"]
    values = dict(zip(places, inputs, strict=True))
    results = graph.graph_copy(traced.graph, values)
    for old in traced.graph.nodes:
        if old.op not in ("placeholder", "output") and "stack_trace" in like.meta:
            values[old].meta["stack_trace"] = like.meta["stack_trace"]
    return results


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

    return _traced(q, functions, [shape], [*of_score, *of_mask])


def _trace_gradients(q: Any, shape: Any, scale: float, modules: Any, read: list[Any], of_score: list[Any], of_mask: list[Any]) -> Any:
    """The graph of the weights of keys, those of values, and the mask, of both products, what the gradient reads, and what the
    functions read. ``modules`` are the score function, its gradient and the mask function."""
    score, gradient, mask = modules

    def functions(product: Any, grad_product: Any, *others: Any) -> tuple[Any, Any, Any]:
        (out, logsumexp, grad, *grad_logsumexp), others = others[: len(read)], others[len(read) :]
        positions = [torch.arange(n, device=q.device) for n in shape]
        given, masks = others[: len(of_score)], others[len(of_score) :]
        delta = (out.float() * grad.float()).sum(-1)
        if grad_logsumexp:
            delta = delta - grad_logsumexp[0] / math.log(2)
        # A row without keys has no weights.
        shift = torch.where(logsumexp == -math.inf, math.inf, logsumexp)
        product = product * scale
        scores = _everywhere(score, (0,), len(given))(product, *positions, *given).float()
        weights = torch.exp2(scores * math.log2(math.e) - shift[..., None])
        of_scores = weights * (grad_product - delta[..., None])

        def joint(product: Any, of_score: Any, b: Any, h: Any, i: Any, j: Any, *given: Any) -> Any:
            return gradient(product, b, h, i, j, of_score, *given)[0]

        of_product = _everywhere(joint, (0, 0), len(given))(product, of_scores, *positions, *given)
        return (of_product * scale).float(), weights, _everywhere(mask, (), len(masks))(*positions, *masks)

    if next(n for n in gradient.graph.nodes if n.op == "output").args[0][0] is None:
        raise Refused("a score that does not depend on queries and keys")
    return _traced(q, functions, [shape, shape], [*read, *of_score, *of_mask])


def _trace_sum(of: Any, like: Any, strides: tuple[int, ...]) -> Any:
    """The graph of the sum of all gradients of keys or values that are ``like`` these, with ``strides``."""

    def total(x: Any) -> Any:
        groups = x.unflatten(1, (like.shape[1], -1)).sum(2)
        groups = groups.sum(0, keepdim=True) if like.shape[0] != groups.shape[0] else groups
        return (_laid_out(groups.to(like.dtype), strides),)

    with torch_internals.fake_mode_of(of), torch.no_grad():
        return torch_internals.trace(total, of)


def _traced(q: Any, functions: Any, shapes: list[Any], others: list[Any]) -> Any:
    """The graph of functions of tensors of these shapes in float32, and of others."""
    with torch_internals.fake_mode_of(q), torch.no_grad():
        products = [q.new_empty(shape, dtype=torch.float32) for shape in shapes]
        traced = torch_internals.trace(functions, *products, *others)
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
