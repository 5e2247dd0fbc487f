"""How pictures lie in a graph of a GPU: with channels last, where convolutions are faster so.

cuDNN computes convolutions of half types over tensors whose channels lie next to each other; others it transposes before and
after. The first convolution's input is laid out so, and what follows keeps it as eager would. Filters are laid out by kernels
of the graph, all of them beside each other. Results of the graph lie as they did.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from inrush import _gpu, _log, _rewriting

_HALVES = (torch.bfloat16, torch.float16)
# A graph with fewer convolutions among its nodes is about something else.
_SHARE = 60

aten = torch.ops.aten


def split_biases(gm: Any) -> None:
    """Has convolutions leave the addition of their biases to the kernels behind them: cuDNN's would be a launch of its own."""
    for n in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        bias, out = n.args[2], n.meta.get("val")
        if bias is None or not isinstance(out, torch.Tensor) or not _gpu.is_device(out) or not out.is_floating_point():
            continue
        value = bias.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype != out.dtype or value.dim() != 1:
            continue
        sizes = [1, -1] + [1] * (out.dim() - 2)
        with gm.graph.inserting_after(n):
            spread = gm.graph.call_function(aten.view.default, (bias, sizes))
        with gm.graph.inserting_after(spread):
            total = gm.graph.call_function(aten.add.Tensor, (n, spread))
        with out.fake_mode if isinstance(out, torch._subclasses.FakeTensor) else contextlib.nullcontext():
            spread.meta["val"] = aten.view.default(value, sizes)
        for new in (spread, total):
            new.meta |= {k: v for k, v in n.meta.items() if k != "val"}
        total.meta["val"] = out
        n.replace_all_uses_with(total, delete_user_cb=lambda user, total=total: user is not total)
        n.update_arg(2, None)


def channels_last(gm: Any) -> bool:
    """Lays an inference graph out anew; false where it stays as it is."""
    nodes = list(gm.graph.nodes)
    all_of_them = [n for n in nodes if n.target is aten.convolution.default]
    if not all_of_them or len(nodes) > _SHARE * len(all_of_them) or not all(map(_rewriting.is_plain, nodes)):
        return False
    chosen = [n for n in all_of_them if _gains(n)]
    if len(chosen) != len(all_of_them):
        return False
    rewriting = _rewriting.Rewriting(gm)
    # All beside each other, ahead of what needs them.
    start = next(n for n in nodes if n.op != "placeholder")
    try:
        for n in chosen:
            for k in (0, 1):
                # What a convolution gives lies so already when its turn comes.
                if n.args[k].op == "placeholder" and not n.args[k].meta["val"].is_contiguous(memory_format=torch.channels_last):
                    rewriting.feed(n, k, rewriting.call(start, aten.clone.default, n.args[k], memory_format=torch.channels_last))
        for n in nodes:
            rewriting.follow(n)
        rewriting.restore_results()
    except Exception as why:
        _log.compile.debug("channels stay first: %s", why)
        rewriting.undo()
        return False
    gm.recompile()
    return True


def _gains(node: Any) -> bool:
    """Whether a convolution is faster so. Graphs with grouped ones are not: cuDNN's depthwise kernels for this layout are the
    slower ones."""
    picture, filters = node.args[0].meta["val"], node.args[1].meta["val"]
    if node.args[8] != 1:
        return False
    return _gpu.is_device(picture) and picture.dim() == 4 and picture.dtype in _HALVES and filters.dtype == picture.dtype and not node.args[6]
