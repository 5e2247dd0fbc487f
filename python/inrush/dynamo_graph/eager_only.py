"""Captured graphs that are left to eager before anything is traced, since PyTorch's tracing computes something else.

Functionalisation turns a write through a view into a new value of the tensor that the view looks at. Of ``unfold`` it makes zeros
of what is between the windows, and adds up where these overlap, as it does where ``expand`` repeats elements. ``as_strided`` counts from the start of the memory, and a new value
of a view has other memory than the view. Results that look at arguments which overlap and are written are made anew from the
memory of all of these, but by the views of one. Inputs whose elements share memory are written by a copy, which is refused.
Writes into inference tensors, which eager refuses, are done.
:func:`reason` runs a graph that may hold such a thing once over fake tensors and looks at each operator.

Tangents of ``torch.autograd.forward_ad`` hang on tensors below what a compiled graph sees. Dynamo compares the level with a guard,
which it makes on request only: :func:`guard_level` requests it, so that a graph compiled outside of levels is not called in one.
"""

from __future__ import annotations

import operator
from typing import Any, Iterator

import torch
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from inrush import fake_strides, torch_internals
from inrush.traced_sizes import traced

aten = torch.ops.aten

# Operators that copy a tensor with its strides, so that elements of the copy share places where those of the tensor do.
_COPIES = (aten.as_strided_scatter.default, aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default)

# Functions that leave the thread in another state, by parts of their names.
_STATE = ("_functorch", "inference_mode", "dual_level", "saved_tensors_hooks")


def reason(gm: Any, example_inputs: list[Any]) -> str | None:
    """Why a captured graph runs eagerly, or None. ``example_inputs`` are those of the call that it was captured for."""
    if forward_ad._current_level >= 0:
        return "inputs may carry tangents of `torch.autograd.forward_ad`"
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    if any(t.is_mkldnn for t in tensors):
        return "an input has the layout of MKL-DNN, which PyTorch's tracing does not know"
    if any(torch._is_zerotensor(t) for t in tensors):
        return "an input is a tensor of zeros without memory"
    frozen = not torch.is_inference_mode_enabled() and any(t.is_inference() for t in tensors)
    shared = _shared(tensors)
    if not (frozen or shared or any(_repeats(t) for t in tensors) or _has_windows(gm)):
        return None
    inputs = [(n, x) for n, x in zip(gm.graph.find_nodes(op="placeholder"), example_inputs) if isinstance(x, torch.Tensor)]
    fixed = {n for n, x in inputs if frozen and x.is_inference()}
    try:
        return _found_by_running(gm, fixed, {n for n, x in inputs if id(x) in shared})
    except Exception as error:
        if any(_may_write(n) for g in _graphs(gm) for n in g.nodes):
            return f"what it writes cannot be found out: {type(error).__name__}: {error}"
        return None


def guard_level() -> None:
    """Has the frame that is being captured be captured again at another level of ``forward_ad``."""
    torch_internals.guard_dual_level()


def _graphs(gm: Any) -> Iterator[Any]:
    """The graph, and those of operators around others."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield module.graph


def _shared(tensors: list[torch.Tensor]) -> set[int]:
    """Identities of the tensors whose memory another one looks at too."""
    users: dict[int, set[int]] = {}
    for t in tensors:
        if t.layout == torch.strided and not t.is_nested:
            users.setdefault(t.untyped_storage()._cdata, set()).add(id(t))
    return {t for same in users.values() if len(same) > 1 for t in same}


# Views that tracing may lose: of any graph, and of graphs that write.
_WINDOWS = {"unfold", "as_strided"}
_REPEATS = {"expand", "expand_as", "broadcast_to", "broadcast_tensors", "meshgrid"}


def _has_windows(gm: Any) -> bool:
    """Returns true if a graph may write through a view that tracing does not follow, by its looks."""
    names = {_name(n) for g in _graphs(gm) for n in g.nodes}
    if names & _WINDOWS:
        return True
    return bool(names & _REPEATS) and any(_may_write(n) for g in _graphs(gm) for n in g.nodes)


def _name(node: Any) -> str:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return name.split(".")[0]


def _repeats(tensor: torch.Tensor) -> bool:
    """Returns true if two elements of a tensor may be in one place: a step that does not pass what the smaller ones span."""
    if tensor.layout != torch.strided:
        return False
    steps = [(traced(stride), traced(size)) for stride, size in zip(tensor.stride(), tensor.shape)]
    if any(n is None for step in steps for n in step):
        return fake_strides.overlaps(tensor.shape, tensor.stride())
    if any(size == 0 for _, size in steps):
        return False
    span = 0
    for stride, size in sorted(step for step in steps if step[1] > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False


def _may_write(node: Any) -> bool:
    """Returns true if a node could change what it is given, by its looks."""
    if node.op == "call_method":
        if node.target.startswith("__"):
            return node.target.strip("_") in _OPERATORS
        return node.target.endswith("_")
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", "") == "_operator":
        # Not those that end like them, such as `and_`.
        return name in _OPERATORS
    writes = name.endswith("_") or _is_in_place(node) or node.kwargs.get("out") is not None
    return writes or isinstance(node.target, torch._ops.HigherOrderOperator)


# Functions of the module `operator` that write.
_OPERATORS = {"setitem", "delitem", "iconcat"} | {f"i{n}" for n in "add and floordiv lshift matmul mod mul or pow rshift sub truediv xor".split()}


def _is_in_place(node: Any) -> bool:
    """Returns true if a function takes an argument `inplace`, by name or by position, that is not False."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return given.get("inplace", False) is not False


def _found_by_running(gm: Any, fixed: set[Any], shared: set[Any]) -> str | None:
    """Runs the graph over fake tensors that look at those of the capture. ``fixed``: inputs that may not be written; ``shared``:
    those that overlap others."""
    values: dict[Any, Any] = {}
    looks = _Looks()
    fake = None
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor):
            fake = fake or value.fake_mode
            # What the run does to the tensor itself, such as giving it a gradient, ends with it.
            value = value.detach()
            if node in fixed:
                looks.fixed.add(_storage(value))
            if node in shared:
                looks.shared.add(_storage(value))
            if _repeats(value):
                looks.repeated.add(_storage(value))
        values[node] = value
    if fake is None:
        return None
    with torch_internals.fresh_symbols_ignored(fake), torch.no_grad(), fake, looks:
        results = _run(gm, values)
    if looks.why is None and looks.written & looks.shared & {_storage(t) for t in _tensors(results)}:
        return "arguments overlap and are written, and results look at them"
    return looks.why


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _run(gm: Any, values: dict[Any, Any]) -> Any:
    read = values.__getitem__
    casts: list[Any] = []
    try:
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                continue
            args, kwargs = torch.fx.map_arg(node.args, read), torch.fx.map_arg(node.kwargs, read)
            if node.op == "output":
                return args[0]
            if node.op == "get_attr":
                values[node] = operator.attrgetter(node.target)(gm)
            elif node.op == "call_method":
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            elif node.op != "call_function" or any(part in f"{node.target}" for part in _STATE):
                raise TypeError(f"a node `{node.target}`")
            else:
                values[node] = value = node.target(*args, **kwargs)
                if node.target is _enter_autocast:
                    casts.append(value)
                elif node.target is _exit_autocast:
                    casts.remove(args[0])
    finally:
        for cast in reversed(casts):
            _exit_autocast(cast)


class _Looks(TorchDispatchMode):
    """Notes the first operator that writes where tracing goes wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.why: str | None = None
        # Storages that may not be written, those of arguments whose elements share places, those that arguments share, and those that
        # were written.
        self.fixed: set[int] = set()
        self.repeated: set[int] = set()
        self.shared: set[int] = set()
        self.written: set[int] = set()
        # Storages that `as_strided` looks at past a view.
        self.past: set[int] = set()
        # Views through `unfold`, by identity; what is held keeps its address.
        self.windows: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        looked_at = func is aten.unfold.default
        if func is aten.as_strided.default and not _is_whole(args[0]):
            self.past.add(_storage(args[0]))
        for given, value in _given(func, args, kwargs):
            if given.alias_info is None:
                continue
            for tensor in _tensors(value):
                looked_at |= id(tensor) in self.windows
                if not given.alias_info.is_write:
                    continue
                self.written.add(_storage(tensor))
                if id(tensor) in self.windows:
                    self.why = self.why or f"`{func}` writes through a view by `unfold`, which PyTorch's tracing does not follow"
                if _repeats(tensor) or _storage(tensor) in self.repeated:
                    self.why = self.why or f"`{func}` writes into a tensor whose elements share memory, which PyTorch's tracing does not follow"
                if _storage(tensor) in self.fixed:
                    self.why = self.why or f"`{func}` writes into an inference tensor"
        if self.why is None and self.past & self.written:
            self.why = f"memory is written at which `as_strided` looks past a view, which PyTorch's tracing does not follow (`{func}`)"
        out = func(*args, **kwargs)
        if func in _COPIES and _repeats(out):
            self.repeated.add(_storage(out))
        if looked_at:
            for tensor in _tensors(out):
                self.windows[id(tensor)] = tensor
        return out


def _is_whole(tensor: torch.Tensor) -> bool:
    """Returns true if a tensor is all of its memory, in order."""
    size = tensor.untyped_storage().nbytes()
    return tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.numel() * tensor.itemsize == size


def _given(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Parameters of an operator with what they are given."""
    for k, parameter in enumerate(func._schema.arguments):
        if k < len(args):
            yield parameter, args[k]
        elif parameter.name in kwargs:
            yield parameter, kwargs[parameter.name]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)

