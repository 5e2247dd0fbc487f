"""Inference graphs straight from what Dynamo captured: its graph runs once over fake tensors, and the operators below autograd
are written down.

AOTAutograd runs a graph twice, through tensors that make it functional: once to learn what is mutated and what aliases what,
once to write it down. Where no input is mutated and no result shares memory with anything, unless it is an input itself, all
that comes of it is the list of operators, and one plain run gives the same list in a quarter of the time. Everything else
raises :class:`NeedsAOTAutograd` and goes through AOTAutograd: gradients, sizes that depend on data, subclasses, operators with effects or
of higher order. Integers that follow from sizes stand in the list as they are: their expressions say all that the compiler asks.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Any

import sympy
import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from inrush import _native, gpu, torch_internals
from inrush.autograd import gradients

aten = torch.ops.aten

# Whose schemas do not say that training changes the running statistics; the sixth argument of each is `training`.
_BATCH_NORMS = (aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default)

# Methods and functions of a captured graph that change more than data.
_STATE = ("requires_grad_", "_set_grad_enabled", "_enter_", "_exit_", "_saved_tensors", "_functorch", "inference_mode", "set_")

# Functions of sizes that make integers of real numbers.
_ROUNDED = frozenset(("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"))


class NeedsAOTAutograd(Exception):
    """A graph that takes AOTAutograd to capture, by its reason."""


def eligible(gm: Any) -> str | None:
    """Returns why a captured graph needs AOTAutograd, or None if :func:`record` may try. Looks at the graph alone."""
    if torch.is_inference_mode_enabled() or torch_internals.autocast_enabled() or torch_internals.modes_are_active():
        return "a mode of the thread"
    grad = torch.is_grad_enabled()
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("example_value")
            if not (_is_plain(value) or _is_size(value)):
                return f"input `{node.target}`"
            if grad and isinstance(value, torch.Tensor) and value.requires_grad:
                return "gradients"
        elif node.op in ("call_function", "call_method"):
            target = node.target
            if isinstance(target, torch._ops.OperatorBase) and getattr(target, "namespace", "") != "aten":
                return f"operator `{target}`"
            name = target if isinstance(target, str) else f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"
            if isinstance(target, torch._ops.OpOverloadPacket) or any(part in name for part in _STATE):
                return f"`{name}`"
            if not _is_known(node.meta.get("example_value")):
                return f"the type of `{node}`"
        elif node.op != "output":
            return f"a node `{node.op}`"
    return None


def record(gm: Any, keep_draws: bool = False) -> Any:
    """Returns the graph of ATen operators of a captured graph, as a module of FX like those AOTAutograd makes. ``keep_draws``: random
    operators stay where nothing reads what they draw."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    graph = torch.fx.Graph()
    recorder = Recorder(graph)
    values: dict[Any, Any] = {}
    for k, node in enumerate(inputs):
        values[node] = value = node.meta["example_value"]
        recorder.given_value(value, graph.placeholder(f"arg{k}_1"))
    recorder.inputs = frozenset(recorder.tensors_of)
    recorder.given = frozenset(recorder.nodes)
    fake = next((v.fake_mode for v in values.values() if isinstance(v, torch.Tensor)), None)
    if fake is None:
        raise NeedsAOTAutograd("no inputs")
    read = values.__getitem__
    results: Any = ()
    # Composite operators in C++ would ask for the values of sizes; those of Python keep them symbols.
    recorder.symbolic = symbolic = any(isinstance(n, torch.SymInt) for v in values.values() for n in _integers(v))
    on_gpu = any(isinstance(v, FakeTensor) and v.fake_device.type == gpu.torch_name() for v in values.values())
    if symbolic and (on_gpu or "interpret" in gpu.settings()):
        raise NeedsAOTAutograd("sizes that are not known on a GPU")
    dispatcher = torch_internals.python_dispatcher() if symbolic else contextlib.nullcontext()
    with gradients.own_operators(), dispatcher, fake, recorder:
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                continue
            args = torch.fx.map_arg(node.args, read)
            if node.op == "output":
                results = args[0]
                break
            kwargs = torch.fx.map_arg(node.kwargs, read)
            recorder.stack_trace = node.meta.get("stack_trace")
            if node.op == "call_method":
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)
    graph.output(recorder.results(results))
    for node in reversed(graph.nodes):
        dead = node.op == "call_function" and not node.users
        if dead and (not node.is_impure() or (torch_internals.draws(node) and not keep_draws)):
            graph.erase_node(node)
    return torch_internals.module_of(graph)


def _is_plain(tensor: Any) -> bool:
    """A strided tensor of the CPU or of an NVIDIA GPU with sizes that are known or follow from inputs."""
    return (
        tensor.__class__ is FakeTensor
        # The property `device` takes a round through the dispatcher.
        and tensor.fake_device.type in ("cpu", gpu.torch_name())
        and tensor.layout == torch.strided
        and all(type(n) is int or _is_size(n) for n in _integers(tensor))
        and tensor.pytype in (None, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _is_size(value: Any) -> bool:
    """An integer that an expression of sizes and integer inputs says; one that data decides has no value to go by."""
    if not isinstance(value, torch.SymInt) or not value.node.has_hint():
        return False
    return not _is_rounded(value.node.expr) or _native.expressible(value)


@functools.lru_cache(1 << 12)
def _is_rounded(expr: Any) -> bool:
    """Returns true if floating point takes part."""
    return not expr.is_Symbol and any(f.func.__name__ in _ROUNDED for f in expr.atoms(sympy.Function))


def _integers(value: Any) -> tuple[Any, ...]:
    """Returns what may be symbolic in a value: sizes, strides and offset of a tensor, anything else itself."""
    return (*value.shape, *value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else (value,)


def _is_known(value: Any) -> bool:
    """Returns true if a node of a captured graph gives plain tensors, sizes and constants only."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_known, value))
    return value is None or isinstance(value, (bool, int, float, str)) or _is_plain(value) or _is_size(value)


class Recorder(TorchDispatchMode):
    """Writes down what runs under it."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph
        # By identity; what is held stays alive, so that no other tensor gets its address.
        self.nodes: dict[int, Any] = {}
        self.held: list[torch.Tensor] = []
        # How many tensors lie in each storage.
        self.tensors_of: dict[int, int] = {}
        # Storages and identities of the inputs.
        self.inputs: frozenset[int] = frozenset()
        self.given: frozenset[int] = frozenset()
        self.stack_trace: str | None = None
        self.symbolic = False

    def given_value(self, value: Any, node: Any) -> None:
        """Has ``node`` stand for an input."""
        if isinstance(value, torch.Tensor):
            self.hold(value, node)
        else:
            node.meta["val"] = value

    def hold(self, tensor: torch.Tensor, node: Any) -> None:
        """Has ``node`` stand for a tensor: a node of FX, or one of an operator with a list of results and a place there."""
        if not isinstance(node, tuple):
            node.meta["val"] = tensor
        self.nodes[id(tensor)] = node
        self.held.append(tensor)
        storage = _storage(tensor)
        self.tensors_of[storage] = self.tensors_of.get(storage, 0) + 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if func.namespace != "aten":
            raise NeedsAOTAutograd(f"operator `{func}`")
        if func._schema.is_mutable:
            return self.in_place(func, args, kwargs)
        rest: tuple[Any, ...] = ()
        if func in _BATCH_NORMS:
            if args[5]:
                raise NeedsAOTAutograd("statistics of batches, which the operator's schema hides")
            # cuDNN gives what its backward pass wants as well, which nothing reads here.
            rest = (args[0].new_empty(0, dtype=torch.uint8),) if func is aten.cudnn_batch_norm.default else ()
            func, args = aten._native_batch_norm_legit_no_training.default, (*args[:5], *args[6:])
        out = func(*args, **kwargs)
        if out.__class__ is FakeTensor:
            if id(out) not in self.nodes:
                self.hold(out, self.add(func, args, kwargs))
        elif isinstance(out, (tuple, list)):
            self.several(func, args, kwargs, out)
        else:
            raise NeedsAOTAutograd(f"the result of `{func}`")
        return (*out, *rest) if rest else out

    def add(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = tuple([self.read(a) for a in args])
        named = {k: self.read(v) for k, v in kwargs.items()}
        if self.symbolic:
            # Sizes that are given to `create_node` make later releases of PyTorch warn.
            node = self.graph.create_node("call_function", func)
            node.args, node.kwargs = given, named
        else:
            node = self.graph.create_node("call_function", func, given, named)
        if self.stack_trace is not None:
            node.meta["stack_trace"] = self.stack_trace
        return node

    def several(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator with a list of results."""
        node = self.add(func, args, kwargs)
        node.meta["val"] = out
        for k, value in enumerate(out):
            if value.__class__ is FakeTensor and id(value) not in self.nodes:
                self.hold(value, (node, k))
            # Attention on a GPU gives lengths as well, which are constants here.
            elif value is not None and type(value) not in (bool, int, float):
                raise NeedsAOTAutograd(f"a result of `{func}`")

    def in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Makes a new value of what is changed in place, if nothing else sees the change."""
        name, out = func._opname, args[0] if args else None
        functional = getattr(getattr(aten, name[:-1], None), func._overloadname, None) if name.endswith("_") else None
        if functional is None or functional._schema.is_mutable or torch.Tag.inplace_view in func.tags or _is_composite(functional):
            raise NeedsAOTAutograd(f"`{func}`")
        if not isinstance(out, torch.Tensor) or id(out) not in self.nodes:
            raise NeedsAOTAutograd(f"`{func}` of an unknown tensor")
        storage = _storage(out)
        if storage in self.inputs or self.tensors_of[storage] > 1:
            raise NeedsAOTAutograd("what is mutated has aliases")
        new = functional(*args, **kwargs)
        if not isinstance(new, torch.Tensor) or (new.dtype, new.shape, new.stride()) != (out.dtype, out.shape, out.stride()):
            raise NeedsAOTAutograd(f"`{func}` converts")
        node = self.add(functional, args, kwargs)
        node.meta["val"] = new
        self.held.append(new)
        self.nodes[id(out)] = node
        return out

    def read(self, value: Any) -> Any:
        """An argument as a node holds it."""
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if value.__class__ in (tuple, list):
            return [self.read(v) for v in value]
        if isinstance(value, torch.SymInt) and _is_size(value):
            return value
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, torch.Generator, torch.ScriptObject)):
            raise NeedsAOTAutograd(f"an argument of type {type(value).__name__}")
        return value

    def node_of(self, tensor: torch.Tensor) -> Any:
        node = self.nodes.get(id(tensor))
        if node is None:
            raise NeedsAOTAutograd("a constant tensor")
        if isinstance(node, tuple):
            # Somebody reads this one of several results.
            node = self.graph.create_node("call_function", operator.getitem, node, {})
            node.meta["val"] = tensor
            self.nodes[id(tensor)] = node
        return node

    def results(self, out: Any) -> tuple[Any, ...]:
        """The nodes of what the graph gives: tensors of their own, and inputs as they came."""
        storages = set(self.inputs)
        nodes = []
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if not isinstance(value, torch.Tensor) or id(value) not in self.nodes:
                raise NeedsAOTAutograd("a result that is no tensor")
            if id(value) in self.given and not value.requires_grad:
                nodes.append(self.node_of(value))
                continue
            storage = _storage(value)
            if storage in storages or value.requires_grad:
                raise NeedsAOTAutograd("a result that aliases")
            storages.add(storage)
            nodes.append(self.node_of(value))
        return tuple(nodes)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_composite(operator: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), torch._C.DispatchKey.CompositeImplicitAutograd)
