"""PyTorch's internals that inrush uses, and what differs between releases, in one place.

Written against 2.11; 2.15 is tried too. The rest of the package uses documented interfaces of PyTorch or this module, except for
:mod:`inrush.patches` and :mod:`inrush.capture`, whose subject is PyTorch's internals. `tests/test_patches.py` holds this.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Iterable, Iterator

import torch
from torch._dynamo import compiled_autograd
from torch._dynamo import disable as _disable
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache as BypassCache
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler, aot_module_simplified
from torch._guards import TracingContext
from torch._inductor.output_code import OutputCode
from torch.autograd import forward_ad

__all__ = ["BypassCache", "OutputCode"]

check_cacheable = autograd_cache.check_cacheable


def in_compiled_autograd() -> bool:
    """Returns true while a graph of compiled autograd runs or is compiled, which takes its arguments over."""
    return bool(getattr(compiled_autograd, "in_compiled_autograd_region", False))


def name_of_graph(gm: Any) -> str | None:
    """Returns the name under which captured code calls a graph of Dynamo's."""
    return getattr(gm, "_backend_id", None)


def name_in_code(gm: Any) -> str | None:
    """Returns that name of a graph of which no capture is kept, too."""
    # What stands for a graph module, as in compiled autograd, may have no notes.
    return name_of_graph(gm) or getattr(gm, "meta", {}).get("backend_id")


def names_of_graphs(compiled: Any) -> list[str]:
    """Returns the names under which the captured code of a function or module calls graphs, those after graph breaks too."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list, innermost_fn

    module = getattr(compiled, "_orig_mod", compiled)
    starts = [compiled]
    if isinstance(module, torch.nn.Module):
        # Dynamo calls the forward of PyTorch's own classes through a function that all of them share.
        starts = [module.forward, compiled.forward]
    waiting = [getattr(f, "__func__", f) for f in map(innermost_fn, starts)]
    names: list[str] = []
    seen: set[Any] = set()
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        for entry in _debug_get_cache_entry_list(code):
            for name in entry.code.co_names:
                if name.startswith("__resume_at"):
                    waiting.append(function.__globals__.get(name))
                elif name.startswith("__compiled_fn"):
                    names.append(name)
    return names


@contextlib.contextmanager
def bundled_cache(enabled: bool) -> Iterator[None]:
    """Has AOTAutograd keep whole entries, if its cache is on at all, or none while this lasts."""
    import torch._functorch.config as config

    enabled = enabled and config.enable_autograd_cache
    with config.patch(enable_autograd_cache=enabled, bundled_autograd_cache=enabled, enable_remote_autograd_cache=False):
        yield


def call_aot(gm: Any, example_inputs: Iterable[Any], keep_draws: bool, **compilers: Any) -> Callable[..., Any]:
    """AOTAutograd on a graph that Dynamo captured. ``keep_draws``: random operators are no dead code where nothing reads them."""
    from torch._inductor import config

    compilers["fw_compiler"] = SerializableAOTDispatchCompiler(OutputCode, compilers["fw_compiler"])
    with config.patch(fallback_random=keep_draws):
        return aot_module_simplified(gm, example_inputs, keep_inference_input_mutations=True, **compilers)


def has_wrappers_of_aot() -> None:
    """Counts a graph whose calls pass AOTAutograd's wrappers. Dynamo's splitter of graphs for DistributedDataParallel looks there
    whether it may call what was compiled with fake tensors, and only then notes which part of the model it was."""
    from torch._dynamo.utils import counters

    for name in ("total", "ok"):
        counters["aot_autograd"][name] += 1


def modes_are_active() -> bool:
    """Returns true if something looks at each operator that this thread runs."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def python_dispatcher() -> Any:
    """Operators that are written in Python go before those of C++, as AOTAutograd has it."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def module_of(graph: Any) -> Any:
    """A module around a graph, which becomes Python code only if somebody calls it."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(torch.nn.Module(), graph)


def keeps_random_numbers() -> bool:
    """Returns true if the graphs that are traced draw eager's random numbers."""
    from torch._inductor import config

    return bool(config.fallback_random)


def min_cut_partition(*args: Any, **kwargs: Any) -> Any:
    """Splits a joint graph so that little is kept for the backward pass."""
    import torch._functorch.config as config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    # The partitioner's own search for common subexpressions has all of Inductor imported, a second or two, for a helper.
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(*args, **kwargs)


def draws(node: Any) -> bool:
    """Returns true if a node advances a generator."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def fresh_symbols_ignored(fake_mode: Any) -> contextlib.AbstractContextManager[Any]:
    """Sizes that depend on data may become known once more, in a run whose results nothing reads."""
    env = fake_mode.shape_env
    return contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()


def backend_failed(backend: Any, error: Exception) -> Exception:
    """A backend's error as Dynamo raises it."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(backend, error, None)


def disable(fn: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Returns ``fn`` so that Dynamo does not look into it."""
    return _disable(fn, reason=reason)


def flatten_inputs(gm: Any, example_inputs: Iterable[Any], compiler: Callable[..., Any]) -> Callable[..., Any]:
    """For graphs whose inputs are containers (compiled autograd's)."""
    from torch._dynamo.utils import flatten_graph_inputs

    return flatten_graph_inputs(gm, example_inputs, compiler)


def control_exceptions() -> tuple[type[BaseException], ...]:
    """Exceptions by which PyTorch's tracing talks to itself; they are no failures."""
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    return (TensorifyScalarRestartAnalysis,)


def source_of(node: Any) -> Any | None:
    """Where Dynamo finds the tensor that a placeholder of its graph stands for; None for one that it makes itself."""
    given = node.meta.get("grapharg")
    if given is None or not getattr(given, "is_tensor", False) or getattr(given, "pass_arg_as_tensor", False):
        return None
    source = getattr(given, "source", None)
    try:
        return source if source is not None and source.name else None
    except NotImplementedError:
        # What is made during the capture has no name.
        return None


def add_guard(create: Callable[[Any, Any], None]) -> None:
    """Adds a guard of our own to the frame that Dynamo is capturing, if it is capturing one."""
    from torch._dynamo.source import GlobalStateSource
    from torch._guards import Guard

    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), create))


def guard_dual_level() -> None:
    """Guards the frame that Dynamo is capturing on the level of ``forward_ad``, which Dynamo does on request only."""
    from torch._dynamo.guards import GuardBuilder

    add_guard(GuardBuilder.DUAL_LEVEL)


def add_python_guard(builder: Any, code: str, name: str, function: Callable[..., bool]) -> None:
    """Has a guard hold where an expression is true, in which ``name`` is a function. It is evaluated after all other guards."""
    from torch._dynamo.guards import _get_closure_vars

    builder.add_python_lambda_leaf_guard_to_root([code], [code], closure_vars={**_get_closure_vars(), name: function})


def metadata() -> Any | None:
    """AOTAutograd's description of the graph that is being compiled: mutations, aliases, saved values."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def fakified_first_call() -> bool:
    context = TracingContext.try_get()
    return bool(context is not None and context.fakify_first_call)


def autocast_enabled() -> bool:
    return bool(torch._C._is_any_autocast_enabled())


def autocast_state() -> list[tuple[str, torch.dtype]]:
    """The devices whose operators are cast while a graph is traced, and to what."""
    devices = torch._C._autocast_supported_devices()
    return [(d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d)]


def wrapper_is_idle(meta: Any, inputs: int) -> str | None:
    """Why calls of an inference graph must pass through AOTAutograd's wrappers, or None if these have nothing to do.

    The wrappers deduplicate inputs, make synthetic bases, replay mutations and views outside of the graph, wrap subclasses,
    thread effect tokens and random states, count versions of mutated inputs. They also mark outputs of dynamic sizes, which only
    spares the frame after a graph break a compilation for its first sizes.
    """
    from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta

    if meta is None:
        return "no metadata"
    if getattr(meta, "is_train", False):
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
    if autocast_enabled():
        return "autocast"
    if fakified_first_call():
        return "the first call is fake"
    return None


def correct_aliases(meta: Any) -> None:
    """Has results that are detached aliases of other results be made of these as they are.

    For a function that gives a view and the same view detached, AOTAutograd makes the second of the first, but notes the views
    that lead there from the tensor that both are views of. Replayed on the first, they raise or read other elements.
    """
    from torch._functorch._aot_autograd.schemas import OutputType

    for k, info in enumerate(getattr(meta, "output_info", ())):
        of_result = info.output_type is OutputType.alias_of_intermediate_base_is_user_output
        if of_result and not info.requires_grad and getattr(info, "view_meta_sequence", None) is not None:
            meta.output_info[k] = dataclasses.replace(info, view_meta_sequence=None)


def is_made_by_sizes(info: Any) -> bool:
    """Returns true for a result that AOTAutograd makes of an input by sizes, strides and a storage offset, not by repeating views."""
    from torch._functorch._aot_autograd.schemas import OutputType

    sequence = getattr(info, "view_meta_sequence", None)
    symbolic = sequence is None or any(view.has_symbolic_inputs for view in sequence.sequence)
    return info.output_type is OutputType.alias_of_input and symbolic


def correct_metadata(gm: Any) -> None:
    """Mends what fake tensors say wrongly: the logarithms of sums that attention on the CPU keeps for its backward pass are
    float64 where its inputs are, not float32."""
    aten = torch.ops.aten

    def mend(query: Any, kept: Any) -> None:
        value = kept.meta.get("val")
        if query.meta["val"].dtype == torch.float64 and value is not None and value.dtype == torch.float32:
            kept.meta["val"] = value.to(torch.float64)

    for node in gm.graph.find_nodes(op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu.default):
        for user in node.users:
            if user.args[1:] == (1,):
                mend(node.args[0], user)
    for node in gm.graph.find_nodes(op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu_backward.default):
        mend(node.args[1], node.args[5])


def fake_mode_of(tensor: Any) -> Any:
    """The mode that a fake tensor belongs to."""
    return tensor.fake_mode


def trace(function: Callable[..., Any], *inputs: Any) -> Any:
    """The operators below autograd of a function of fake tensors, as a module of FX."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="real")(*inputs)


def triton_kernel(kernel: int, constants: int) -> tuple[Any, dict[str, Any]]:
    """A Triton kernel of the user's and what it is called with that a graph cannot hold, by their numbers in a graph."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(kernel), kernel_side_table.get_constant_args(constants)


def hint(size: Any) -> int:
    """The value that a size had when the program was exported."""
    return size.node.require_hint() if isinstance(size, torch.SymInt) else int(size)


def launches_triton(program: Any) -> bool:
    """Returns true if an exported program launches Triton kernels: by itself, or by operators of ``torch.library.triton_op``."""
    from torch._library.triton import triton_ops_to_kernels

    def is_launch(target: Any) -> bool:
        if isinstance(target, torch._ops.OpOverload):
            return target._schema.name in triton_ops_to_kernels
        return getattr(target, "_name", "").startswith("triton_kernel_wrapper")

    graphs = (m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule))
    return any(is_launch(node.target) for graph in graphs for node in graph.nodes)


def with_triton_launches(program: Any) -> Any:
    """An exported program in which all launches of Triton kernels are functional ones of their own. Other operators stay."""
    from torch.export.exported_program import _decompose_exported_program

    with _some_triton_driver():
        return _decompose_exported_program(
            program, cia_to_decomp={}, python_decomp_table={}, joint_loss_index=None, decompose_custom_triton_ops=True
        )


@contextlib.contextmanager
def _some_triton_driver() -> Iterator[None]:
    """PyTorch finds out what a kernel writes from Triton's intermediate code for the current device. Machines without one get a
    stand-in, which is no longer there afterwards."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class StandIn:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 80, 32)

        def get_current_device(self) -> int:
            return 0

    before = driver._active
    try:
        if before is None and not (torch.cuda.is_available() or torch.xpu.is_available()):
            driver.set_active(StandIn())
        yield
    finally:
        driver._active = before


def no_tracing() -> contextlib.AbstractContextManager[Any]:
    """No functionalisation, proxies or fake tensors while inrush works on real data at compile time."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


class TrainingGraph:
    """A training graph that AOTAutograd made ready for calls, and what of its metadata a call depends on."""

    def __init__(self, call: Callable[[list[Any]], Any], made_of: dict[str, Any]) -> None:
        self.call = call
        self.code = below(made_of["compiled_fw_func"])
        self.made_of = made_of
        self.disable_amp = bool(made_of["disable_amp"])
        meta = made_of["fw_metadata"]
        self.meta = meta
        # Of what the forward graph gives.
        self.results = meta.num_forward_returns
        self.saved = meta.tensors_saved_for_backwards_with_vc_check_slice
        self.unsafe_views = tuple(meta.unsafe_view_out_indices)
        self.constants = tuple(k for k, o in enumerate(meta.output_info) if not o.requires_grad)
        # Inputs that the forward graph itself changes.
        self.mutated = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
        self.refuses_deterministic = meta.deterministic is False

    @property
    def function(self) -> Any:
        """AOTAutograd's autograd function."""
        return self.call.__wrapped__.__wrapped__.__self__  # type: ignore[attr-defined]

    @property
    def donates(self) -> bool:
        """Returns true if the backward graph may overwrite what was saved; then the graph cannot be kept."""
        import torch._functorch.config as config

        return bool(config.donated_buffer and self.meta.bw_donated_idxs)

    @property
    def tangents(self) -> tuple[tuple[int, Any], ...]:
        """Which gradients the backward graph takes, with the memory format each must have."""
        places = [k for k, o in enumerate(self.meta.output_info) if issubclass(o.raw_type, torch.Tensor) and o.requires_grad]
        formats = [getattr(m.memory_format, "memory_format", None) for m in self.meta.subclass_tangent_meta]
        return tuple(zip(places, formats, strict=True))

    def needs_wrappers(self) -> str | None:
        """Returns what AOTAutograd's wrappers have to do in calls of this graph, or None."""
        from torch._functorch._aot_autograd import runtime_wrappers
        from torch._functorch._aot_autograd.schemas import PlainTensorMeta

        meta, made_of = self.meta, self.made_of
        if not issubclass(self.function, torch.autograd.Function):
            return "the autograd function is not found"
        if meta.num_mutated_inp_runtime_indices or meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw:
            return "inputs are mutated outside of the graph"
        if meta.num_outputs_aliased or meta.num_intermediate_bases:
            return "outputs alias"
        if meta.tokens or meta.num_backward_tokens or meta.num_graphsafe_rng_states or meta.is_rng_op_functionalized:
            return "tokens or random states"
        if made_of["backward_state_indices"] or made_of["indices_of_inps_to_detach"] or made_of["num_symints_saved_for_bw_"]:
            return "states, inputs to detach or sizes"
        if meta.num_tensors_saved_with_no_vc_check or meta.num_opaque_objects_saved_for_bw or meta.grad_enabled_mutation is not None:
            return "values that are no counted tensors, or the grad mode"
        if meta.dynamic_outputs or meta.dynamic_saved_tensors_idxs:
            return "dynamic sizes"
        plain = [*meta.subclass_inp_meta, *meta.subclass_fw_graph_out_meta, *meta.subclass_tangent_meta]
        if made_of["maybe_subclass_meta"] is not None or not all(isinstance(m, (int, PlainTensorMeta)) for m in plain):
            return "tensor subclasses"
        if any(f is None for _, f in self.tangents):
            return "gradients of a fixed layout"
        if runtime_wrappers._should_disable_saved_tensors_hooks():
            return "hooks on saved tensors"
        return None


def below(compiled: Any) -> Any:
    """Returns what is below all wrappers of a compiled function."""
    while hasattr(compiled, "__wrapped__"):
        compiled = compiled.__wrapped__
    return compiled


transforms_are_active = torch._C._are_functorch_transforms_active
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph
no_autocast = torch._C._DisableAutocast


def is_plain_backward() -> bool:
    """Returns true if a backward pass is neither recorded itself, nor differentiated forwards, nor part of a transform."""
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.is_grad_enabled():
        return False
    return forward_ad._current_level < 0


def refuse_tangents(tensors: Iterable[Any]) -> None:
    """Raises an error where a tensor carries a tangent of ``torch.autograd.forward_ad`` that compiled code would lose."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                "compiled code got a tensor with a tangent of `torch.autograd.forward_ad`, which it would lose: "
                "call the function inside of the level, where it runs eagerly"
            )


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` outside of transforms, whose inputs are no wrappers that a transform has left."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


# AOTAutograd has autograd make views anew by their history while it calls a training graph.
replays_views = torch._C._is_view_replay_enabled
replay_views = torch._C._set_view_replay_enabled
