"""Attentions on GPUs that PyTorch composes of two products and a softmax: one operator again.

PyTorch's fused attentions refuse some arguments, such as a mask that is expanded along the keys, which models make of no padding at
all. Then ``scaled_dot_product_attention`` of halves is computed in ``float32``, and all scores pass through memory several times.
:func:`rewrite` finds such a composition in an inference graph by its ``_safe_softmax``, and puts the operator in its place, of which
the compiler makes a kernel with an online softmax. Where the user turned all fused attentions off, the composition stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from inrush import gpu
from inrush.dynamo_graph.copies import copied, module
from inrush.traced_sizes import traced

aten = torch.ops.aten

OPERATOR = "scaled_dot_product_attention"

# The largest head of a kernel, and of fewer rows than fill its tile the most keys (`inrush-passes/src/online_attention.rs`).
HEAD, ROWS, KEYS = 256, 16, 512

_SAME_ORDER = (aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.clone.default)


def chosen_by_user(gm: Any) -> str | None:
    """Returns why attentions stay composed in a graph of Dynamo's, or None."""
    fused = (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.cudnn_sdp_enabled)
    if not any(enabled() for enabled in fused):
        return "fused attentions are turned off"
    # Where inputs are lists, PyTorch wraps the module that has the graph.
    nodes = getattr(getattr(getattr(gm, "gm", gm), "graph", None), "nodes", ())
    names = (getattr(node.target, "__name__", "") for node in nodes if node.op == "call_function")
    return "`sdpa_kernel` chooses the attention" if any("sdpa_kernel" in name for name in names) else None


def rewrite(gm: Any, of_traced_sizes: bool = False) -> Any:
    """Replaces composed attentions in a copy of a graph; the given graph is not changed.

    ``of_traced_sizes``: the graph will run with the sizes of the traced call alone. Otherwise those of symbolic sizes stay.
    """
    targets = [n for n in gm.graph.nodes if n.target is aten._safe_softmax.default]
    found = [f for n in targets if (f := _Composition.of(n)) is not None and f.is_known(of_traced_sizes)]
    if not found:
        return gm
    graph, copies = copied(gm)
    for one in found:
        one.replace(graph, copies)
    return module(gm, graph)


@dataclass
class _Composition:
    """An attention as its parts."""

    query: Any
    key: Any
    value: Any
    mask: Any
    # By which queries and keys are multiplied.
    factor: float
    # The result, in the dtype of the operands.
    result: Any

    @staticmethod
    def of(softmax: Any) -> _Composition | None:
        """Returns the attention around a softmax, or None for anything else."""
        try:
            return _read(softmax)
        except _Other:
            return None

    def is_known(self, of_traced_sizes: bool) -> bool:
        """Returns true if a kernel takes it: operands are halves of known sizes on a GPU."""
        operands = [node.meta["val"] for node in (self.query, self.key, self.value)]
        q = operands[0]
        if not gpu.is_device(q) or q.dtype not in (torch.float16, torch.bfloat16) or any(x.dtype != q.dtype for x in operands):
            return False
        sizes = [traced(n) for x in operands for n in x.shape]
        if not all(sizes) or not (of_traced_sizes or all(isinstance(n, int) for x in operands for n in x.shape)):
            return False
        rows, keys = sizes[q.dim() - 2], sizes[2 * q.dim() - 2]
        return q.dim() in (3, 4) and max(sizes[q.dim() - 1], sizes[-1]) <= HEAD and (rows >= ROWS or keys <= KEYS)

    def scale(self) -> float | None:
        """Returns what scores are multiplied by, None for the usual inverse of a root."""
        usual = 1 / math.sqrt(traced(self.query.meta["val"].shape[-1]))
        return None if math.isclose(self.factor**2, usual, rel_tol=1e-12) else self.factor**2

    def replace(self, graph: Any, copies: dict[Any, Any]) -> None:
        """Puts the operator in the place of the copies of the parts."""
        given = [None if node is None else copies[node] for node in (self.query, self.key, self.value, self.mask)]
        grouped = traced(self.query.meta["val"].shape[-3]) != traced(self.key.meta["val"].shape[-3])
        old = copies[self.result]
        with graph.inserting_before(old):
            new = graph.call_function(
                aten.scaled_dot_product_attention.default, (*given, 0.0, False), {"scale": self.scale(), "enable_gqa": grouped}
            )
        new.meta = dict(self.result.meta)
        self._lay_out(new, copies)
        old.replace_all_uses_with(new)
        _erase_unread(graph, old)

    def _lay_out(self, new: Any, copies: dict[Any, Any]) -> None:
        """Gives the result the layout of fused attentions, rows before heads, where it is copied to that anyway."""
        value = self.result.meta["val"]
        same, turned = [self.result], []
        for node in same:
            for user in node.users:
                if user.target is aten.view.default and user.meta["val"].shape == value.shape:
                    same.append(user)
                elif user.target is aten.transpose.int and user.args[1:] in ((1, 2), (2, 1)):
                    turned.append(user)
                else:
                    return
        clones = [user for node in turned for user in node.users]
        if value.dim() != 4 or not all(_is_inner_copy(c) for c in clones):
            return
        _, heads, rows, columns = value.shape
        laid = value.new_empty_strided(value.shape, (rows * heads * columns, columns, heads * columns, 1))
        for node in same[1:]:
            copies[node].meta["val"] = laid
        for node in turned:
            copies[node].meta["val"] = laid.transpose(1, 2)
        for node in clones:
            copies[node].replace_all_uses_with(copies[node.args[0]])
            copies[node].graph.erase_node(copies[node])
        new.meta["val"] = laid


class _Other(Exception):
    """A node is no part of a composed attention."""


def _read(softmax: Any) -> _Composition:
    """Returns the attention around a softmax, whose parts raise :class:`_Other` if they are anything else."""
    if softmax.args[1] != -1 or len(softmax.args) > 2 or softmax.kwargs:
        raise _Other
    scores, mask = softmax.args[0], None
    if scores.target is aten.add.Tensor and not scores.kwargs:
        scores, mask = scores.args
        mask = _condition(mask)
    product = _expect(_plain(scores), aten.bmm.default)
    query, key = (_expect(_plain(operand), aten.mul.Scalar) for operand in product.args)
    factor = query.args[1]
    turned = _expect(key.args[0], aten.transpose.int)
    if not isinstance(factor, float) or key.args[1] != factor or turned.args[1:] != (-2, -1):
        raise _Other
    weighted = _expect(_reader(softmax), aten.bmm.default)
    if _plain(weighted.args[0]) is not softmax:
        raise _Other
    result = _expect(_reader(weighted), aten._to_copy.default)
    q, k, v = _half(query.args[0]), _half(turned.args[0]), _half(weighted.args[1])
    given, made = q.meta["val"], result.meta["val"]
    if tuple(made.shape) != (*given.shape[:-1], v.meta["val"].shape[-1]) or made.dtype != given.dtype or not made.is_contiguous():
        raise _Other
    if mask is not None and mask.meta["val"].dtype not in (torch.bool, given.dtype):
        raise _Other
    return _Composition(q, k, v, mask, factor, result)


def _expect(node: Any, operator: Any) -> Any:
    """Returns a node that calls an operator."""
    if node.target is not operator:
        raise _Other
    return node


def _plain(node: Any) -> Any:
    """Goes back to what a product's operand has the elements of, in the same order and without repetition."""
    shape = node.meta["val"].shape
    while node.target in _SAME_ORDER and _count(node.args[0]) == _count(node):
        node = node.args[0]
    if _count(node) != traced(shape.numel()) or node.meta["val"].shape[-2:] != shape[-2:]:
        raise _Other
    return node


def _half(node: Any) -> Any:
    """Goes back to what was converted, for grouped heads before each was repeated for its queries."""
    node = _plain(node)
    if node.target is aten.expand.default:
        one = _expect(node.args[0], aten.unsqueeze.default)
        heads, each = one.args[0].meta["val"].shape, node.meta["val"].shape
        if one.args[1] not in (len(heads) - 2, -3) or each[: len(heads) - 2] != heads[:-2] or each[-2:] != heads[-2:]:
            raise _Other
        node = one.args[0]
    return _expect(node, aten._to_copy.default).args[0]


def _reader(node: Any) -> Any:
    """Returns the only operator that reads a node, past those that change the form alone."""
    while True:
        if len(node.users) != 1:
            raise _Other
        (node,) = node.users
        if node.target not in _SAME_ORDER:
            return node


def _erase_unread(graph: Any, node: Any) -> None:
    """Erases an operator that nothing reads, and what is read by nothing else."""
    unread = [node]
    while unread:
        node = unread.pop()
        read = node.all_input_nodes
        graph.erase_node(node)
        unread += [n for n in read if n.op == "call_function" and not n.users]


def _is_inner_copy(node: Any) -> bool:
    """Returns true for a row-major copy that is no result of the graph."""
    row_major = node.target is aten.clone.default and node.kwargs.get("memory_format") is torch.contiguous_format
    return row_major and all(user.op != "output" for user in node.users)


def _count(node: Any) -> int | None:
    """Returns how many elements a tensor has in the traced call."""
    return traced(node.meta["val"].numel())


def _condition(mask: Any) -> Any:
    """Returns the condition of which PyTorch made a mask of zeros and infinities, or the mask itself."""
    if not isinstance(mask, torch.fx.Node):
        raise _Other
    if mask.target is not aten.where.self:
        return mask
    where, kept, left = mask.args
    numbers = [n.args[0] if getattr(n, "target", None) is aten.scalar_tensor.default else None for n in (kept, left)]
    return where if numbers == [0.0, -torch.inf] else mask
