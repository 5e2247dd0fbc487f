"""Steps of training past AOTAutograd's wrappers.

One set of wrappers serves every training graph: on each call they look for inputs to detach, aliases to make anew, subclasses,
random states, dynamic sizes, and in the backward pass go through what they know of the graph once more to sort gradients. For most
graphs there is nothing to find, which is known once the graph is compiled, and for a small one the search takes the host longer
than the kernels. Such a graph gets an autograd function of its own, derived from AOTAutograd's, that saves the same on the same
context. Dynamo calls it through one function instead of AOTAutograd's three. Gradients of results that nothing used are zeros; small
ones are made once, not in every step. Whatever comes otherwise than the graph was compiled for, such as a gradient of a subclass, a
backward pass that is recorded itself, or one that keeps its graph, is left to AOTAutograd's function, and so are the first call and
the first backward pass, which may be when the backward graph is compiled.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import torch

from inrush import _native, log, torch_internals
from inrush.autograd import aot_cache


def shorten(graph: torch_internals.TrainingGraph) -> Callable[[list[Any]], Any]:
    """The call of a training graph, as AOTAutograd made it or a shorter one."""
    why = graph.needs_wrappers() if isinstance(graph.code, aot_cache.Code) else "compiled by another backend"
    if why is not None:
        log.compile.debug("steps of training pass AOTAutograd's wrappers: %s", why)
        return graph.call
    apply: Callable[..., Any] | None = None
    full = graph.call
    counted, inputs = graph.mutated, len(graph.meta.input_info)
    no_autocast = torch_internals.no_autocast if graph.disable_amp else None

    def short(args: Any) -> Any:
        """The graph's results, or None where AOTAutograd's call is to give them."""
        if apply is None or not torch.is_grad_enabled() or torch_internals.transforms_are_active():
            return None
        if len(args) != inputs:
            # Wrappers above merge arguments: one that comes twice, or overlapping ones of which one is written.
            return None
        if counted:
            torch.autograd.graph.increment_version([args[i] for i in counted])
        before = torch_internals.replays_views()
        torch_internals.replay_views(True)
        try:
            if no_autocast is None:
                return list(apply(*map(torch_internals.unwrap_if_dead, args)))
            with no_autocast():
                return list(apply(*map(torch_internals.unwrap_if_dead, args)))
        finally:
            torch_internals.replay_views(before)

    @functools.wraps(full, assigned=())
    def call(args: list[Any]) -> Any:
        nonlocal apply
        if apply is None:
            tensors = all(isinstance(a, torch.Tensor) for a in args)
            out = full(args)
            if tensors:
                apply = torch_internals.apply_of(short_function(graph))
            return out
        out = short(args)
        return full(args) if out is None else out

    call._boxed_call = True  # type: ignore[attr-defined]
    call._short = short  # type: ignore[attr-defined]
    return call


def direct(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what Dynamo calls in place of ``compiled``, AOTAutograd's function of flat arguments: the call of :func:`shorten`
    itself, if the graph has one."""
    below = compiled
    while not hasattr(below, "_short"):
        below = getattr(below, "__wrapped__", None)
        if below is None:
            return compiled
    short = below._short

    def call(*args: Any) -> Any:
        out = short(args)
        return compiled(*args) if out is None else out

    return call


def native(compiled: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    """Returns the function that a compiled graph runs, below all wrappers. ``traced``: Dynamo would look into what Python runs there."""
    code = torch_internals.below(compiled)
    if not isinstance(code, aot_cache.Code):
        return compiled
    plain = isinstance(code.function, _native.Compiled)
    return code.function if plain and not (traced and code.function.enters_python) else compiled


class Zeros:
    """Gradients of results that nothing used. To make one takes an allocation and a launch in every step, so that small ones are
    kept, where no gradient that the graph gives can be the same memory, which others may change."""

    LARGEST = 1 << 20

    def __init__(self, places: list[int]) -> None:
        self.places = places
        # Size, dtype and device of each; known after the first call.
        self.likes: dict[int, tuple[Any, Any, Any]] | None = None
        self.kept: dict[int, torch.Tensor] = {}
        self.get = self.kept.get

    def learn(self, results: Any) -> None:
        self.likes = {k: (results[k].shape, results[k].dtype, results[k].device) for k in self.places}

    def make(self, place: int) -> torch.Tensor:
        assert self.likes is not None
        size, dtype, device = self.likes[place]
        return torch.zeros(size, dtype=dtype, device=device)

    def fill(self, grads: tuple[Any, ...]) -> list[Any]:
        """``grads`` as autograd would have made them."""
        missing = [k for k in self.places if grads[k] is None]
        out = list(grads)
        for k in missing:
            out[k] = self.make(k)
        return out

    def keep(self, made: list[tuple[int, torch.Tensor]], given: tuple[Any, ...]) -> None:
        shared = {g.untyped_storage().data_ptr() for g in given if isinstance(g, torch.Tensor)}
        for k, zero in made:
            if zero.nbytes > self.LARGEST or zero.untyped_storage().data_ptr() in shared:
                continue
            if zero.is_cuda:
                if torch.cuda.is_current_stream_capturing():
                    continue
                # Later steps may run on other streams.
                torch.cuda.current_stream(zero.device).synchronize()
            self.kept[k] = zero


def short_function(graph: torch_internals.TrainingGraph) -> type[torch.autograd.Function]:
    """An autograd function in place of AOTAutograd's."""
    full = graph.function
    forward_graph = native(full.compiled_fw, traced=False)
    backward_graph: Callable[..., Any] | None = None
    donated = False
    results, saved = graph.results, graph.saved
    views, constants = graph.unsafe_views, graph.constants
    tangents, fixed, disable_amp = graph.tangents, graph.refuses_deterministic, graph.disable_amp
    tensor, unsafe_view = torch.Tensor, torch.ops.aten._unsafe_view
    zeros = Zeros([k for k, _ in tangents])

    class CompiledFunction(full):  # type: ignore[misc, valid-type]
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            out = forward_graph(list(args))
            if zeros.likes is None:
                zeros.learn(out)
            ctx.set_materialize_grads(False)
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
                out = full.backward(ctx, *zeros.fill(grads))
                donated, backward_graph = graph.donates, native(full.compiled_bw, traced=True)
                return out
            if not torch_internals.is_plain_backward() or (fixed and torch.are_deterministic_algorithms_enabled()):
                return full.backward(ctx, *zeros.fill(grads))
            if donated and torch_internals.graph_is_kept():
                return full.backward(ctx, *zeros.fill(grads))
            args, made = [], None
            for k, layout in tangents:
                grad = grads[k]
                if grad is None:
                    grad = zeros.get(k)
                    if grad is None:
                        grad = zeros.make(k)
                        made = [] if made is None else made
                        made.append((k, grad))
                elif type(grad) is not tensor:
                    return full.backward(ctx, *zeros.fill(grads))
                args.append(grad if grad.is_contiguous(memory_format=layout) else grad.contiguous(memory_format=layout))
            # Nothing else may hold what was saved: the graph frees it on its way.
            args[:0] = ctx.saved_tensors
            ctx.maybe_clear_saved_tensors()
            if disable_amp:
                with torch_internals.no_autocast():
                    out = tuple(backward_graph(args))
            else:
                out = tuple(backward_graph(args))
            if made is not None:
                zeros.keep(made, out)
            return out

    return CompiledFunction



def own_post_compile(finish: Callable[..., Any]) -> Callable[..., Any]:
    """Shortens what AOTAutograd makes of training graphs, traced or read from its cache; see :mod:`inrush.patches.table`."""
    signature = inspect.signature(finish)

    @functools.wraps(finish)
    def own(*args: Any, **named: Any) -> Any:
        call = finish(*args, **named)
        try:
            return shorten(torch_internals.TrainingGraph(call, signature.bind(*args, **named).arguments))
        except Exception as error:
            # Another release's metadata, say: what AOTAutograd made is right as it is.
            log.compile.debug("steps of training pass AOTAutograd's wrappers: %s", error)
            return call

    return own
