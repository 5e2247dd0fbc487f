"""Triton kernels that users write.

In AOTAutograd's graphs each launch is a node of a higher-order operator that names the kernel by a number in a table of the
process. :func:`rewrite` puts calls of :func:`launch` in their place, which name the kernel itself, take its tensors and
numbers as arguments and give the tensors that it writes as a tuple. The native half builds a kernel that has one
configuration from its source and launches it itself; other kernels are launched here, by Triton.
"""

from __future__ import annotations

import hashlib
import operator
import os
from dataclasses import dataclass
from typing import Any, Iterator

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from inrush import torch_internals
from inrush.dynamo_graph.copies import copied, module
from inrush.triton import tuned_kernels
from inrush.triton.standalone import TYPES, NotStandalone, constant, source


@dataclass(frozen=True)
class Tensor:
    """An argument: the tensor at this position among a launch's tensors."""

    at: int


@dataclass(frozen=True)
class Number:
    """An argument: the number at this position among a launch's numbers."""

    at: int


@dataclass(frozen=True)
class Descriptor:
    """An argument: a descriptor that the host makes of the tensor at this position among a launch's tensors."""

    at: int
    block: tuple[int, ...]


class Kernel:
    """One launch: a kernel, what it is called with, and what of that it writes."""

    def __init__(self, kernel: Any, arguments: dict[str, Any], written: list[str], name: str) -> None:
        self.kernel = kernel
        self.arguments = arguments
        # Positions among the tensors.
        self.written = [arguments[n].at for n in written]
        self.name = name
        # What the native half builds and launches, or why it does not.
        self.native: Native | None = None
        self.reason = ""
        # By what Triton's choice of a configuration is kept: see `tuned_kernels`.
        self.tuning: str | None = None

    def __repr__(self) -> str:
        return f"<the Triton kernel {self.name}>"

    def __reduce__(self) -> Any:
        raise torch_internals.BypassCache("a Triton kernel that Python launches")

    def values(self, tensors: Any, numbers: Any) -> dict[str, Any]:
        """The arguments of one launch by name."""
        return values_of(self.arguments, tensors, numbers)


@dataclass
class Native:
    """A kernel with one configuration, as the native half takes it."""

    text: str
    function: str
    signature: list[tuple[str, str]]
    """Parameters that are passed at a launch, and their types."""
    arguments: list[Any]
    """For each of them a :class:`Tensor`, a :class:`Descriptor`, a :class:`Number` or a constant."""
    divisible: list[int]
    """Positions among all parameters of multiples of 16."""
    aligned: list[int]
    """Positions among the launch's tensors of those among them."""
    warps: int
    stages: int


def launch(kernel: Kernel, tensors: Any, numbers: Any, grid: Any) -> tuple[torch.Tensor, ...]:
    """Runs a kernel on copies of what it writes; gives these. A grid for each configuration, or one for all."""
    tensors = list(tensors)
    for at in kernel.written:
        tensors[at] = _clone(tensors[at])
    values = kernel.values(tensors, numbers)
    if tensors[0].device.type == "cpu" and os.environ.get("INRUSH_INTERPRET"):
        from inrush.triton import interpreter

        interpreter.run(kernel.kernel, grid, values)
    else:
        run(kernel.kernel, grid, values)
    if kernel.tuning is not None:
        tuned_kernels.record(kernel.tuning, kernel.kernel)
    return tuple(tensors[at] for at in kernel.written)


def run(kernel: Any, grid: Any, values: dict[str, Any]) -> None:
    """Has Triton launch a kernel."""
    # By position as far as possible: hooks of kernels count on it.
    names = list(kernel.arg_names)
    first = next((k for k, n in enumerate(names) if n not in values), len(names))
    rest = {n: v for n, v in values.items() if n not in names[:first]}
    kernel[choose(kernel, grid)](*(values[n] for n in names[:first]), **rest)


def choose(kernel: Any, grid: Any) -> Any:
    """The grid as Triton takes it: a tuple, or a function of the configuration where these differ in their grids."""
    grids = [tuple(g) for g in grid]
    if len(set(grids)) == 1:
        return grids[0]
    cases = [(config.all_kwargs(), g) for config, g in zip(kernel.configs, grids, strict=True)]

    def of(meta: dict[str, Any]) -> Any:
        for wanted, g in cases:
            if all(meta.get(k) == v for k, v in wanted.items() if k in meta):
                return g
        raise RuntimeError(f"no grid is known for the configuration {meta}")

    return of


def values_of(arguments: dict[str, Any], tensors: Any, numbers: Any) -> dict[str, Any]:
    """The arguments of one launch by name."""
    return {name: _fill(a, tensors, numbers) for name, a in arguments.items()}


def _fill(argument: Any, tensors: Any, numbers: Any) -> Any:
    if isinstance(argument, Tensor):
        return tensors[argument.at]
    if isinstance(argument, Number):
        return numbers[argument.at]
    if isinstance(argument, Descriptor):
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(tensors[argument.at], list(argument.block))
    if type(argument) in (tuple, list):
        return type(argument)(_fill(a, tensors, numbers) for a in argument)
    return argument


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the strides of the tensor, whose elements may overlap."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    flat = tensor.as_strided((span,), (1,)).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def rewrite(gm: Any) -> Any:
    """The graph with its launches replaced; the given one stays as it is, since it may have to run by itself."""
    wrappers = [n for n in gm.graph.nodes if getattr(n.target, "_name", "") == "triton_kernel_wrapper_functional"]
    if not wrappers:
        return gm
    graph, copies = copied(gm)
    aligned = inputs_are_aligned(gm)
    for node in wrappers:
        _rewrite(graph, copies[node], aligned)
    graph.lint()
    return module(gm, graph)


def inputs_are_aligned(gm: Any) -> bool:
    """Returns true if all inputs of a graph begin at multiples of 16 bytes, if their storage does."""
    return all(_aligned(n.meta.get("val")) for n in gm.graph.nodes if n.op == "placeholder")


def _aligned(value: Any) -> bool:
    """Returns true if a tensor begins at a multiple of 16 bytes, if its storage does."""
    if not isinstance(value, torch.Tensor):
        return True
    offset = value.storage_offset()
    return isinstance(offset, int) and offset * value.element_size() % 16 == 0


def collect(node: Any, constants: dict[str, Any]) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """The arguments of a launch by name, and the nodes of the tensors and numbers that they name by position."""
    tensors: list[Any] = []
    numbers: list[Any] = []

    def read(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            meta = value.meta.get("val")
            if isinstance(meta, torch.Tensor):
                tensors.append(value)
                return Tensor(len(tensors) - 1)
            numbers.append(value)
            return Number(len(numbers) - 1)
        if isinstance(value, (tuple, list)):
            return tuple(read(v) for v in value)
        return value

    arguments = {name: read(value) for name, value in {**constants, **node.kwargs["kwargs"]}.items()}
    for name, block in (blocks(node) or {}).items():
        arguments[name] = Descriptor(arguments[name].at, block)
    return arguments, tensors, numbers


def blocks(node: Any) -> dict[str, tuple[int, ...]] | None:
    """Returns the block of each descriptor that the host makes for a launch, by the parameter's name. None if one is made by the
    functions of older releases of Triton, or has a block that is not known."""
    found: dict[str, tuple[int, ...]] = {}
    for name, (kind, given) in node.kwargs["tma_descriptor_metadata"].items():
        if kind != "stable" or not all(isinstance(n, int) for n in given[0]):
            return None
        found[name] = tuple(given[0])
    return found


def _rewrite(graph: Any, node: Any, aligned: bool) -> None:
    kernel, constants = found(node.kwargs["kernel_idx"], node.kwargs["constant_args_idx"])
    described = blocks(node)
    if described is None:
        # The operator itself knows how.
        return
    arguments, tensors, numbers = collect(node, constants)
    written = [n for n in node.kwargs["tensors_to_clone"] if isinstance(arguments.get(n), (Tensor, Descriptor))]
    single, options, won, tuning = _single(kernel, {**constants, **described}, _values(arguments, tensors, numbers))
    made = Kernel(kernel, arguments, written, getattr(single, "__name__", "kernel"))
    made.tuning = tuning if won is None else None
    grid = [tuple(g) for g in node.kwargs["grid"]]
    every = grid = grid[:1] if len(set(grid)) == 1 else grid
    if won is not None and len(grid) > 1:
        grid = [grid[won]]
    try:
        if isinstance(options, str):
            raise NotStandalone(options)
        if len(grid) != 1:
            raise NotStandalone("its configurations have different grids")
        made.native = native_form(single, options, arguments, tensors, numbers, aligned)
    except NotStandalone as why:
        made.reason = str(why)
        # Triton chooses among all configurations.
        grid = every
    taken = without_fresh(node, made.written, tensors, written) if made.native else tensors
    with graph.inserting_before(node):
        new = graph.call_function(launch, (made, taken, numbers, grid))
    values = node.meta.get("val") or {}
    new.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")}
    new.meta["val"] = tuple(values.get(n, tensors[arguments[n].at].meta["val"]) for n in written)
    for user in list(node.users):
        # Names stand for positions now.
        with graph.inserting_before(user):
            item = graph.call_function(operator.getitem, (new, written.index(user.args[1])))
        item.meta = dict(user.meta)
        user.replace_all_uses_with(item)
        graph.erase_node(user)
    graph.erase_node(node)
    drop_fresh(graph, tensors)


def drop_fresh(graph: Any, tensors: list[Any]) -> None:
    """Removes nodes that make memory for nothing any more."""
    for tensor in dict.fromkeys(tensors):
        if str(tensor.target) in _FRESH and not tensor.users:
            graph.erase_node(tensor)


# Operators that give memory as it is.
_FRESH = ("aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_like.default", "aten.new_empty.default",
          "aten.new_empty_strided.default", "aten.empty_permuted.default")  # fmt: skip


def without_fresh(node: Any, positions: list[int], tensors: list[Any], written: list[str]) -> list[Any]:
    """The tensors, with None for memory that the kernel is the first and only one to see: nothing makes it before."""
    out = list(tensors)
    read = [user.args[1] for user in node.users]
    for name, at in zip(written, positions):
        new = tensors[at]
        fresh = str(new.target) in _FRESH and set(new.users) == {node} and tensors.count(new) == 1
        if fresh and name in read:
            out[at] = None
    return out


# What Triton's compiler takes beside a kernel's constants.
_OPTIONS = ("num_warps", "num_stages", "num_ctas")


def found(kernel: int, constants: int) -> tuple[Any, dict[str, Any]]:
    """A kernel of a graph with the constants of a launch, by their numbers. Options that heuristics below a tuner gave are put
    where Triton looks for them: Dynamo leaves them among the constants of the tuner that it makes, which has no keys."""
    launched, given = torch_internals.triton_kernel(kernel, constants)
    if not getattr(launched, "keys", True):
        for config in launched.configs:
            for name in _OPTIONS:
                setattr(config, name, config.kwargs.get(name, getattr(config, name)))
    return launched, given


def _values(arguments: dict[str, Any], tensors: list[Any], numbers: list[Any]) -> dict[str, Any]:
    """Fake tensors and numbers in the place of arguments; the tensors of descriptors."""
    arguments = {name: Tensor(a.at) if isinstance(a, Descriptor) else a for name, a in arguments.items()}
    return values_of(arguments, [_meta(t) for t in tensors], [_meta(n) for n in numbers])


def _meta(value: Any) -> Any:
    """What a node stands for, as AOTAutograd or Dynamo notes it; other values as they are."""
    return value.meta.get("val", value.meta.get("example_value")) if isinstance(value, torch.fx.Node) else value


def _single(kernel: Any, constants: dict[str, Any], values: dict[str, Any]) -> tuple[Any, dict[str, Any] | str, int | None, str | None]:
    """Returns the function of a kernel; the options and constants of the one configuration that it is launched in, or why there is
    not just one; the position of what won among several; and by what Triton's choice is kept. Hooks of tuning do nothing at other
    launches."""
    inner, all_options = configurations(kernel)
    if isinstance(all_options, str):
        return inner, all_options, None, None
    if len(all_options) == 1:
        return inner, all_options[0], None, None
    why = f"it is tuned by measurement: {len(all_options)} configurations"
    try:
        known = {k: constant(v) for k, v in constants.items()}
        tuning = tuned_kernels.key(kernel, source(inner), known, values)
    except NotStandalone as error:
        return inner, str(error), None, None
    if tuning is None:
        return inner, f"{why}, for each size", None, None
    won = tuned_kernels.winner(tuning, len(all_options))
    return inner, why if won is None else all_options[won], won, tuning


def is_tuned_by(gm: Any) -> bool:
    """Returns true if a call of a rewritten graph has Triton choose configurations that a later compile can take."""
    launches = (n.args[0] for n in gm.graph.nodes if n.op == "call_function" and n.target is launch)
    return any(kernel.tuning is not None and kernel.native is None for kernel in launches)


_HOOKS = "its configuration has hooks"


def configurations(kernel: Any) -> tuple[Any, list[dict[str, Any]] | str]:
    """Returns the function of a kernel; the options and constants of each of its configurations, or why they are not known."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    if isinstance(kernel, JITFunction):
        return kernel, [{"num_warps": 4, "num_stages": 3}]
    inner = kernel
    while not isinstance(inner, JITFunction) and hasattr(inner, "fn"):
        inner = inner.fn
    if isinstance(kernel, Heuristics) or not isinstance(kernel, Autotuner):
        return inner, "its constants are found at each launch"
    if not isinstance(kernel.fn, JITFunction):
        return inner, "it has several decorators"
    found_options = []
    for config in kernel.configs:
        if config.pre_hook is not None:
            return inner, _HOOKS
        # A parameter of the kernel may have an option's name: its value is the option's too.
        options = {k: v for k, v in config.all_kwargs().items() if k in _OPTIONS or k not in kernel.fn.arg_names}
        constants = {k: v for k, v in config.all_kwargs().items() if k in kernel.fn.arg_names}
        if options.pop("num_ctas", 1) != 1 or set(options) - {"num_warps", "num_stages"}:
            return inner, "its configuration asks for more than warps and stages"
        found_options.append({**options, "constants": constants})
    return inner, found_options


# Numbers that the native half passes.
_NUMBERS = ("i1", "i32", "u32", "i64", "u64", "fp32")


def native_form(kernel: Any, options: dict[str, Any], arguments: dict[str, Any], tensors: Any, numbers: Any, aligned: bool) -> Native:
    arguments = {**arguments, **options.get("constants", {})}
    signature, passed, divisible, at_multiples = [], [], [], []
    constants: dict[str, Any] = {}
    for at, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in arguments:
            value = arguments[name]
        elif parameter.has_default:
            value = parameter.default
        else:
            raise NotStandalone(f"its parameter `{name}` has no value")
        if isinstance(value, tuple) and _has_values(value):
            raise NotStandalone(f"`{name}` is a tuple of values")
        if parameter.is_constexpr or value is None:
            if isinstance(value, (Tensor, Number, Descriptor)):
                raise NotStandalone(f"the constant `{name}` is no constant")
            constants[name] = value
            continue
        if isinstance(value, Tensor):
            fake = tensors[value.at].meta["val"]
            if fake.dtype not in TYPES:
                raise NotStandalone(f"`{name}` has the dtype {fake.dtype}")
            signature.append((name, "*" + TYPES[fake.dtype]))
            passed.append(value)
            if aligned and _aligned(fake) and not parameter.do_not_specialize_on_alignment:
                divisible.append(at)
                at_multiples.append(value.at)
            continue
        if isinstance(value, Descriptor):
            signature.append((name, described(name, tensors[value.at].meta["val"], value.block)))
            passed.append(value)
            at_multiples.append(value.at)
            continue
        kind = _number(parameter, value, numbers)
        if type(value) is int and not parameter.do_not_specialize and not parameter.annotation_type:
            if value == 1:
                constants[name] = 1
                continue
            if value % 16 == 0 and not parameter.do_not_specialize_on_alignment:
                divisible.append(at)
        signature.append((name, kind))
        passed.append(value)
    text = source(kernel)
    if "tensormap" in text:
        raise NotStandalone("it makes descriptors by hand")
    text += f"CONSTANTS = { {k: constant(v) for k, v in constants.items()} !r}\n"
    # The build's digest leaves out what it takes for comments; of a user's text nothing is left out.
    text += f"DIGEST = {hashlib.sha256(text.encode()).hexdigest()!r}\n"
    return Native(text, kernel.__name__, signature, passed, divisible, at_multiples, options["num_warps"], options["num_stages"])


# What the copy engine wants: bytes that strides are multiples of, and dimensions at most.
_ENGINE_ALIGNMENT = 16
_ENGINE_DIMENSIONS = 5


def described(name: str, fake: torch.Tensor, block: tuple[int, ...]) -> str:
    """The type of a descriptor, as Triton spells it. Where sizes are symbols, the rules become guards of the graph."""

    def need(holds: Any, rule: str) -> None:
        if not guard_or_false(holds):
            raise NotStandalone(f"the descriptor of `{name}`: {rule}")

    if fake.dtype not in TYPES or fake.dtype == torch.bool:
        raise NotStandalone(f"the descriptor of `{name}` has the dtype {fake.dtype}")
    need(0 < fake.dim() <= _ENGINE_DIMENSIONS and fake.dim() == len(block), f"a block of {len(block)} dimensions for a tensor of {fake.dim()}")
    need(all(n > 0 and n & (n - 1) == 0 for n in block), f"the block {list(block)} is not of powers of two")
    need(block[-1] * fake.element_size() >= _ENGINE_ALIGNMENT, f"rows of the block {list(block)} have fewer than {_ENGINE_ALIGNMENT} bytes")
    if not _aligned(fake):
        raise NotStandalone(f"the descriptor of `{name}`: the tensor does not begin at a multiple of {_ENGINE_ALIGNMENT} bytes")
    *others, last = fake.stride()
    need(last == 1, "the last stride is not 1")
    for stride in others:
        need(stride * fake.element_size() % _ENGINE_ALIGNMENT == 0, f"a stride is no multiple of {_ENGINE_ALIGNMENT} bytes")
    for size in fake.shape:
        need(size > 0, "a size is 0")
    return f"tensordesc<{TYPES[fake.dtype]}{list(block)}>"


def _has_values(value: Any) -> bool:
    return isinstance(value, (Tensor, Number, Descriptor)) or isinstance(value, tuple) and any(map(_has_values, value))


def _number(parameter: Any, value: Any, numbers: Any) -> str:
    """The type by which a number is passed, as Triton itself would choose it."""
    name = parameter.name
    if isinstance(value, Number):
        value = numbers[value.at].meta.get("val")
    if isinstance(value, torch.SymInt):
        # One that data decide has no hint.
        hint = getattr(value.node, "hint", 0)
        kind = "i32" if isinstance(hint, int) and -(2**31) <= hint < 2**31 else "i64"
    elif isinstance(value, bool):
        kind = "i1"
    elif isinstance(value, int):
        kind = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    elif isinstance(value, float):
        kind = "fp32"
    else:
        raise NotStandalone(f"`{name}` is a {type(value).__name__}")
    kind = parameter.annotation_type or kind
    if kind not in _NUMBERS:
        raise NotStandalone(f"`{name}` is passed as {kind}")
    return kind


def identities(gm: Any) -> Iterator[str]:
    """Yields what launches in a graph of Dynamo's depend on in addition to the graph, for keys of caches."""
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if getattr(node.target, "_name", "") in ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"):
                kernel, constants = found(node.kwargs["kernel_idx"], node.kwargs["constant_args_idx"])
                arguments = {**constants, **node.kwargs["kwargs"]}
                described = blocks(node)
                known = {**constants, **(described or {})}
                single, options, _, _ = _single(kernel, known, {k: _meta(v) for k, v in arguments.items()})
                try:
                    if described is None:
                        raise NotStandalone("it takes descriptors that the host makes in an older way")
                    if isinstance(options, str):
                        raise NotStandalone(options)
                    known = {k: constant(v) for k, v in {**known, **options.get("constants", {})}.items()}
                    yield repr((source(single), sorted(options.items(), key=str), sorted(known.items())))
                except NotStandalone as why:
                    raise torch_internals.BypassCache(f"a Triton kernel of the user: {why}") from None

