"""What differs between PyTorch releases, and PyTorch's internals that inrush leans on, in one place.

Written against 2.11; 2.15 is tried too. Everything else in the package uses documented interfaces of PyTorch or this module.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable

import torch
from torch._dynamo import disable as _disable
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext


def call_aot(gm: Any, example_inputs: Iterable[Any], **compilers: Any) -> Callable[..., Any]:
    """AOTAutograd on a graph that Dynamo captured."""
    return aot_module_simplified(gm, example_inputs, keep_inference_input_mutations=True, **compilers)


def partition(*args: Any, **kwargs: Any) -> Any:
    """Splits the joint graph: what is cheap is computed again in the backward pass."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(*args, **kwargs)


def disable(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """``fn``, which Dynamo does not look into."""
    return _disable(fn, reason=reason)


def flatten_inputs(gm: Any, example_inputs: Iterable[Any], compiler: Callable[..., Any]) -> Callable[..., Any]:
    """For graphs whose inputs are containers (compiled autograd's)."""
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, example_inputs, compiler)


def control_exceptions() -> tuple[type[BaseException], ...]:
    """Exceptions by which PyTorch's tracing talks to itself; they are nobody's failure."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    return (TensorifyScalarRestartAnalysis,)


def metadata() -> Any | None:
    """AOTAutograd's description of the graph that is being compiled: mutations, aliases, saved values."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def static_inputs(meta: Any) -> list[int]:
    """Positions of inputs that are the same tensor at every call: parameters and buffers."""
    return list(getattr(meta, "static_input_indices", None) or ())


def fakified_first_call() -> bool:
    context = TracingContext.try_get()
    return bool(context is not None and context.fakify_first_call)


def autocast_enabled() -> bool:
    return bool(torch._C._is_any_autocast_enabled())


def wrapper_is_idle(meta: Any, inputs: int) -> str | None:
    """Why calls of an inference graph must pass through AOTAutograd's wrappers, or None if these have nothing to do.

    The wrappers deduplicate inputs, make synthetic bases, replay mutations and views outside of the graph, wrap subclasses,
    thread effect tokens and random states, count versions of mutated inputs, mark dynamic outputs.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    if meta is None:
        return "no metadata"
    if meta.is_train:
        return "training"
    if len(meta.input_info) != inputs:
        return "inputs are merged"
    if any(i.mutates_data or i.mutates_metadata or i.mutates_storage_metadata for i in meta.input_info):
        return "inputs are mutated"
    own = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
    if meta.num_intermediate_bases or any(o.output_type not in own for o in meta.output_info):
        return "outputs alias"
    if meta.tokens or meta.num_graphsafe_rng_states or getattr(meta, "is_rng_op_functionalized", False):
        return "tokens or random states"
    plain = list(meta.subclass_inp_meta) + list(meta.subclass_fw_graph_out_meta)
    if any(not isinstance(m, (int, PlainTensorMeta)) for m in plain):
        return "tensor subclasses"
    if any(getattr(o, "dynamic_dims", None) for o in meta.output_info):
        return "outputs of dynamic size"
    if autocast_enabled():
        return "autocast"
    if fakified_first_call():
        return "the first call is fake"
    return None


def no_tracing() -> contextlib.AbstractContextManager[Any]:
    """No functionalisation, proxies or fake tensors while inrush works on real data at compile time."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
