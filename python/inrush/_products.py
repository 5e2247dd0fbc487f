"""Small convolutions of a GPU's inference graph as matrix products, or as sums over the filter.

Over a picture or two cuDNN takes the host longer than the device, and in float32 its kernels leave most of the device idle: a
layer of ResNet-18 takes 57 us on an H200, its product 15. A convolution becomes the product of its windows, one a row, and its
filters; its result lies with channels last. One with a filter for each channel is a sum over the filter, which fuses like any
arithmetic. Results of the graph lie as they did.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inrush import _gpu, _log, _rewriting

# Elements of all windows, and multiplications, up to which a product is the faster one.
MOST_ELEMENTS = 1 << 21
MOST_WORK = 1 << 29

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def as_products(gm: Any) -> bool:
    """Rewrites the convolutions; false where one of them is large or of another kind, and the graph stays as it is."""
    nodes = list(gm.graph.nodes)
    chosen = [n for n in nodes if n.target is aten.convolution.default]
    if not chosen or not all(map(_rewriting.is_plain, nodes)) or not all(map(_is_small, chosen)):
        return False
    rewriting = _Products(gm)
    try:
        for n in nodes:
            rewriting.visit(n)
        rewriting.restore_results()
    except Exception as why:
        _log.compile.debug("convolutions stay: %s", why)
        rewriting.undo()
        return False
    for n in chosen:
        gm.graph.erase_node(n)
    gm.recompile()
    return True


def _is_small(node: Any) -> bool:
    picture, filters, out = node.args[0].meta["val"], node.args[1].meta["val"], node.meta["val"]
    if not _gpu.is_device(picture) or picture.dim() != 4 or picture.dtype not in _FLOATS or filters.dtype != picture.dtype:
        return False
    if node.args[2] is not None or node.args[6] or 0 in out.shape or 0 in filters.shape:
        return False
    taps = filters.shape[2] * filters.shape[3]
    if node.args[8] != 1:
        return _is_each(node) and out.numel() * taps <= MOST_ELEMENTS
    windows = out.numel() // out.shape[1] * filters.shape[1] * taps
    return windows <= MOST_ELEMENTS and windows * filters.shape[0] <= MOST_WORK


def _is_each(node: Any) -> bool:
    """One filter for each channel."""
    filters = node.args[1].meta["val"]
    return node.args[8] == filters.shape[0] == node.args[0].meta["val"].shape[1] and filters.shape[1] == 1


class _Products(_rewriting.Rewriting):
    def visit(self, node: Any) -> None:
        if node.target is aten.convolution.default:
            self.replace(node, self.each(node) if _is_each(node) and node.args[8] != 1 else self.product(node))
        else:
            self.follow(node)

    def product(self, node: Any) -> Any:
        picture, filters, _, stride, padding, dilation = node.args[:6]
        many, channels, *_ = picture.meta["val"].shape
        count, _, *size = filters.meta["val"].shape
        high, wide = node.meta["val"].shape[2:]
        if size == [1, 1] and not any(padding):
            rows = picture
            for k in (0, 1):
                if stride[k % len(stride)] != 1:
                    rows = self.call(node, aten.slice.Tensor, rows, 2 + k, 0, 2**63 - 1, stride[k % len(stride)])
            rows = self.call(node, aten.permute.default, rows, [0, 2, 3, 1])
        else:
            windows = self.call(node, aten.im2col.default, picture, size, _pair(dilation), _pair(padding), _pair(stride))
            rows = self.call(node, aten.permute.default, windows, [0, 2, 1])
        length = channels * math.prod(size)
        rows = self.call(node, aten.view.default, self.contiguous(node, rows), [many * high * wide, length])
        filters = self.call(node, aten.view.default, self.contiguous(node, filters), [count, length])
        out = self.call(node, aten.mm.default, rows, self.call(node, aten.t.default, filters))
        out = self.call(node, aten.view.default, out, [many, high, wide, count])
        return self.call(node, aten.permute.default, out, [0, 3, 1, 2])

    def each(self, node: Any) -> Any:
        picture, filters, _, stride, padding, dilation = node.args[:6]
        many, channels, *_ = picture.meta["val"].shape
        size, (high, wide) = list(filters.meta["val"].shape[2:]), node.meta["val"].shape[2:]
        taps, dtype = math.prod(size), picture.meta["val"].dtype
        # Sums of halves are made in float32, as the library makes them.
        exact = lambda n: n if dtype == torch.float32 else self.call(node, torch.ops.prims.convert_element_type.default, n, torch.float32)  # noqa: E731
        windows = self.call(node, aten.im2col.default, picture, size, _pair(dilation), _pair(padding), _pair(stride))
        windows = self.call(node, aten.view.default, windows, [many, channels, taps, high * wide])
        windows = exact(self.call(node, aten.permute.default, windows, [0, 3, 1, 2]))
        filters = exact(self.call(node, aten.view.default, self.contiguous(node, filters), [channels, taps]))
        out = self.call(node, aten.sum.dim_IntList, self.call(node, aten.mul.Tensor, windows, filters), [3])
        if dtype != torch.float32:
            out = self.call(node, torch.ops.prims.convert_element_type.default, out, dtype)
        out = self.call(node, aten.view.default, self.contiguous(node, out), [many, high, wide, channels])
        return self.call(node, aten.permute.default, out, [0, 3, 1, 2])


def _pair(of: Any) -> list[int]:
    return list(of) if len(of) == 2 else list(of) * 2
