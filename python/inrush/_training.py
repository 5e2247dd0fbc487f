"""Steps of training past AOTAutograd's wrappers.

One set of wrappers serves every training graph: on each call they look for inputs to detach, aliases to make anew, subclasses,
random states, dynamic sizes, and in the backward pass go through what they know of the graph once more to sort gradients. For most
graphs there is nothing to find, which is known once the graph is compiled, and for a small one the search takes the host longer
than the kernels. Such a graph gets an autograd function of its own, derived from AOTAutograd's, that saves the same on the same
context. Whatever comes otherwise than the graph was compiled for, such as a gradient of a subclass, a
backward pass that is recorded itself, or one that keeps its graph, is left to AOTAutograd's function, and so are the first call and
the first backward pass, which may be when the backward graph is compiled.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from inrush import _cache, _compat, _log, _native


def shorten(graph: _compat.TrainingGraph) -> Callable[[list[Any]], Any]:
    """The call of a training graph, as AOTAutograd made it or a shorter one."""
    why = graph.needs_wrappers() if isinstance(graph.code, _cache.Code) else "compiled by another backend"
    if why is not None:
        _log.compile.debug("steps of training pass AOTAutograd's wrappers: %s", why)
        return graph.call
    apply: Callable[..., Any] | None = None
    full = graph.call
    counted = graph.mutated

    @functools.wraps(full, assigned=())
    def call(args: list[Any]) -> Any:
        nonlocal apply
        if apply is None:
            tensors = all(isinstance(a, torch.Tensor) for a in args)
            out = full(args)
            if tensors:
                apply = _compat.apply_of(short_function(graph))
            return out
        if not torch.is_grad_enabled() or _compat.transforms_are_active():
            return full(args)
        if counted:
            torch.autograd.graph.increment_version([args[i] for i in counted])
        with _compat.Replay(graph.disable_amp):
            return list(apply(*map(_compat.unwrap_if_dead, args)))

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def native(compiled: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    """What a compiled graph runs, below all wrappers. ``traced``: Dynamo would look into what Python runs there."""
    code = _compat.below(compiled)
    if not isinstance(code, _cache.Code):
        return compiled
    plain = isinstance(code.function, _native.Compiled)
    return code.function if plain and not (traced and code.function.enters_python) else compiled


def short_function(graph: _compat.TrainingGraph) -> type[torch.autograd.Function]:
    """An autograd function in place of AOTAutograd's."""
    full = graph.function
    forward_graph = native(full.compiled_fw, traced=False)
    backward_graph: Callable[..., Any] | None = None
    donated = False
    results, saved = graph.results, graph.saved
    views, constants = graph.unsafe_views, graph.constants
    tangents, fixed, disable_amp = graph.tangents, graph.refuses_deterministic, graph.disable_amp
    tensor, unsafe_view = torch.Tensor, torch.ops.aten._unsafe_view

    class CompiledFunction(full):  # type: ignore[misc, valid-type]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            out = forward_graph(list(args))
            ctx.save_for_backward(*[x.detach() if x._is_view() else x for x in out[saved]])
            ctx._tensors_no_vc_check, ctx.symints, ctx.opaque_objects = [], [], []
            out = out[:results]
            if views:
                out = list(out)
                for k in views:
                    out[k] = unsafe_view(out[k], out[k].shape)
            if constants:
                ctx.mark_non_differentiable(*[out[k] for k in constants if isinstance(out[k], tensor)])
            ctx._materialize_non_diff_grads = False
            return tuple(out)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            nonlocal backward_graph, donated
            if backward_graph is None:
                out = full.backward(ctx, *grads)
                donated, backward_graph = graph.donates, native(full.compiled_bw, traced=True)
                return out
            if not _compat.is_plain_backward() or (fixed and torch.are_deterministic_algorithms_enabled()):
                return full.backward(ctx, *grads)
            if donated and _compat.graph_is_kept():
                return full.backward(ctx, *grads)
            args = []
            for k, layout in tangents:
                grad = grads[k]
                if type(grad) is not tensor:
                    return full.backward(ctx, *grads)
                args.append(grad if grad.is_contiguous(memory_format=layout) else grad.contiguous(memory_format=layout))
            # Nothing else may hold what was saved: the graph frees it on its way.
            args[:0] = ctx.saved_tensors
            ctx.maybe_clear_saved_tensors()
            if disable_amp:
                with _compat.no_autocast():
                    return tuple(backward_graph(args))
            return tuple(backward_graph(args))

    return CompiledFunction


_compat.on_training = shorten
