"""Triton kernels of users in exported programs.

An archive of PyTorch holds no source of kernels. :func:`prepare` puts calls of an operator in the place of launches, which name the
kernel by a number, and gives the kernels along. The native half builds them into packages.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from inrush import gpu, log, torch_internals
from inrush._native import UnsupportedError
from inrush.triton import user_kernels
from inrush.triton.user_kernels import Descriptor, Native, NotStandalone, Number, Tensor

# `inrush-aten/src/user_kernel.rs` has the same.
_SCHEMA = "triton_kernel(Tensor?[] tensors, SymInt[] numbers, SymInt[] grid, int kernel, str name, SymInt[]? strides=None) -> Tensor[]"


@functools.cache
def _operator() -> Any:
    """The operator that stands for a launch. Nothing ever calls it."""
    library = torch.library.Library("inrush", "FRAGMENT")
    library.define(_SCHEMA)
    # It is gone with the library.
    return library, torch.ops.inrush.triton_kernel.default


@dataclass
class Exported:
    """The kernel of one launch, as the native half takes it."""

    name: str
    written: list[int]
    """Positions among the launch's tensors."""
    configurations: list[tuple[Native, str]]
    """Each with its constants and options as text."""
    measured: tuple[str, str, int] | None
    """Back end and architecture of the GPU here, and the position of the configuration that was the fastest there."""


def prepare(program: Any) -> tuple[Any, list[Exported]]:
    """The program with its launches replaced, and their kernels; the given program stays as it is."""
    if not torch_internals.launches_triton(program):
        return program, []
    program = torch_internals.with_triton_launches(program)
    kernels: list[Exported] = []
    aligned = user_kernels.inputs_are_aligned(program.graph_module)
    for gm in program.graph_module.modules():
        if not isinstance(gm, torch.fx.GraphModule):
            continue
        for node in list(gm.graph.nodes):
            if getattr(node.target, "_name", "") == "triton_kernel_wrapper_functional":
                _replace(gm.graph, node, kernels, aligned)
        gm.recompile()
    return program, kernels


def _replace(graph: Any, node: Any, kernels: list[Exported], aligned: bool) -> None:
    kernel, constants = user_kernels.found(node.kwargs["kernel_idx"], node.kwargs["constant_args_idx"])
    function, options = user_kernels.configurations(kernel)
    name = getattr(function, "__name__", "kernel")
    arguments, tensors, numbers = user_kernels.collect(node, constants)
    names = list(node.kwargs["tensors_to_clone"])
    try:
        if isinstance(options, str):
            raise NotStandalone(options)
        if user_kernels.blocks(node) is None:
            raise NotStandalone("it takes descriptors that the host makes in an older way")
        if not all(isinstance(arguments[n], (Tensor, Descriptor)) for n in names):
            raise NotStandalone("it writes tensors of a tuple")
        for at, number in enumerate(numbers):
            if not isinstance(number.meta.get("val"), (int, torch.SymInt)):
                raise NotStandalone(f"`{_name_of(arguments, at)}` is a number that is computed during the call and no integer")
        forms = [
            (user_kernels.native_form(function, o, arguments, tensors, numbers, aligned), _title(o)) for o in options
        ]
        grids = _grids(node.kwargs["grid"], len(options))
    except NotStandalone as why:
        line = _line(node)
        raise UnsupportedError(f"the Triton kernel `{name}`{line} cannot be packaged: {why}") from None
    written = [arguments[n].at for n in names]
    measured = _measure(kernel, node.kwargs["grid"], arguments, tensors, numbers) if len(forms) > 1 else None
    taken = user_kernels.without_fresh(node, written, tensors, names)
    flat = [size for grid in grids for size in grid]
    with graph.inserting_before(node):
        new = graph.call_function(_operator()[1], (taken, numbers, flat, len(kernels), name))
    kernels.append(Exported(name, written, forms, measured))
    values = node.meta.get("val") or {}
    new.meta = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack", "source_fn_stack")}
    new.meta["val"] = [values.get(n, tensors[at].meta["val"]) for n, at in zip(names, written)]
    for user in list(node.users):
        # Names stand for positions now. The program's signature names these nodes: they stay.
        user.args = (new, names.index(user.args[1]))
    graph.erase_node(node)
    user_kernels.drop_fresh(graph, tensors)


def _grids(given: Any, count: int) -> list[tuple[Any, ...]]:
    """Three sizes for each configuration."""
    grids = [(*g, *[1] * (3 - len(g))) for g in given]
    if len(grids) == 1:
        return grids * count
    if len(grids) != count:
        raise NotStandalone(f"it has {len(grids)} grids for {count} configurations")
    return grids


def _title(options: dict[str, Any]) -> str:
    values = {**options.get("constants", {}), **{k: v for k, v in options.items() if k != "constants"}}
    return ", ".join(f"{k}: {v}" for k, v in values.items())


def _name_of(arguments: dict[str, Any], at: int) -> str:
    return next((n for n, a in arguments.items() if isinstance(a, Number) and a.at == at), "a number")


def _line(node: Any) -> str:
    trace = [text.strip() for text in (node.meta.get("stack_trace") or "").splitlines() if text.strip().startswith("File ")]
    return f" ({trace[-1]})" if trace else ""


def _measure(kernel: Any, grid: Any, arguments: dict[str, Any], tensors: list[Any], numbers: list[Any]) -> tuple[str, str, int] | None:
    """Has Triton measure the configurations on the GPU here, with sizes as the program was exported; None without a GPU. Tensors
    are drawn by chance, integers among them are zero."""
    if not torch.cuda.is_available():
        return None
    size = lambda n: torch_internals.hint(n.meta["val"] if isinstance(n, torch.fx.Node) else n)  # noqa: E731
    with torch_internals.no_tracing():
        try:
            values = user_kernels.values_of(arguments, [_drawn(t.meta["val"]) for t in tensors], [size(n) for n in numbers])
            user_kernels.run(kernel, [tuple(size(n) for n in g) for g in grid], values)
        except Exception as error:  # Too little memory, or whatever Triton raises: the package takes another configuration.
            log.package.warning("the Triton kernel `%s` could not be measured: %s", getattr(kernel, "__name__", "kernel"), error)
            return None
    best = [at for at, config in enumerate(kernel.configs) if config is kernel.best_config]
    return (*gpu.triton_target(), best[0]) if best else None


def _drawn(fake: torch.Tensor) -> torch.Tensor:
    sizes, strides = ([torch_internals.hint(n) for n in values] for values in (fake.shape, fake.stride()))
    tensor = torch.empty_strided(sizes, strides, dtype=fake.dtype, device=gpu.torch_name())
    return tensor.normal_() if fake.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) else tensor.zero_()
