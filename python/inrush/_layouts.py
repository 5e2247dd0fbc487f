"""How pictures lie in a graph of a GPU: with channels last, where convolutions are faster so.

cuDNN computes convolutions of half types over tensors whose channels lie next to each other; others it transposes before and
after. The first convolution's input is laid out so, and what follows keeps it as eager would. Filters are laid out by kernels
of the graph, all of them beside each other. Results of the graph lie as they did.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from inrush import _gpu, _log

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
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    nodes = list(gm.graph.nodes)
    all_of_them = [n for n in nodes if n.target is aten.convolution.default]
    if not all_of_them or len(nodes) > _SHARE * len(all_of_them) or not all(map(is_plain, nodes)):
        return False
    chosen = [n for n in all_of_them if _gains(n)]
    if len(chosen) != len(all_of_them):
        return False
    before = {n: n.meta.get("val") for n in nodes}
    mode = next((v.fake_mode for v in before.values() if isinstance(v, torch._subclasses.FakeTensor)), None)
    if mode is None:
        return False
    added = []
    # All beside each other, ahead of what needs them.
    start = next(n for n in nodes if n.op != "placeholder")
    for n in chosen:
        for k in (0, 1):
            value = n.args[k].meta["val"]
            # What a convolution gives lies so already when its turn comes.
            if n.args[k].op != "placeholder" or value.is_contiguous(memory_format=torch.channels_last):
                continue
            with gm.graph.inserting_before(start):
                copy = gm.graph.call_function(aten.clone.default, (n.args[k],), {"memory_format": torch.channels_last})
            copy.meta = {k: v for k, v in n.meta.items() if k == "stack_trace"}
            n.update_arg(k, copy)
            added.append((n, k, copy))
    try:
        FakeTensorProp(gm, mode).propagate(*[n.meta["val"] for n in nodes if n.op == "placeholder"])
        restore_results(gm, before)
    except Exception as why:
        # A view that the other layout does not allow, most often.
        _log.compile.debug("channels stay first: %s", why)
        for n, k, copy in added:
            n.update_arg(k, copy.args[0])
        for _, _, copy in added:
            gm.graph.erase_node(copy)
        for n, value in before.items():
            if value is not None:
                n.meta["val"] = value
        return False
    gm.recompile()
    return True


def is_plain(node: Any) -> bool:
    """An operator of PyTorch's on values without symbols that changes nothing."""
    if node.op not in ("placeholder", "output", "call_function"):
        return False
    values = node.meta.get("val")
    for v in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return False
        if isinstance(v, torch.Tensor) and not all(isinstance(s, int) for s in (*v.shape, *v.stride())):
            return False
    if node.op != "call_function":
        return True
    name = getattr(node.target, "__name__", "")
    return name == "getitem" or isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _gains(node: Any) -> bool:
    """Whether a convolution is faster so. Graphs with grouped ones are not: cuDNN's depthwise kernels for this layout are the
    slower ones."""
    picture, filters = node.args[0].meta["val"], node.args[1].meta["val"]
    if node.args[8] != 1:
        return False
    return _gpu.is_device(picture) and picture.dim() == 4 and picture.dtype in _HALVES and filters.dtype == picture.dtype and not node.args[6]


def restore_results(gm: Any, before: dict[Any, Any]) -> None:
    """Results lie as those who read them were told."""
    (out,) = gm.graph.find_nodes(op="output")

    def result(node: Any) -> Any:
        want, have = before.get(node), node.meta.get("val")
        if not isinstance(want, torch.Tensor) or want.stride() == have.stride():
            return node
        if not want.is_contiguous():
            raise ValueError(f"the result {node} has strides {want.stride()}")
        with gm.graph.inserting_before(out):
            copy = gm.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
        copy.meta = {**node.meta, "val": want}
        return copy

    out.args = torch.fx.map_arg(out.args, result)
