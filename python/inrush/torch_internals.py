"""What differs between PyTorch releases, and PyTorch's internals that inrush leans on, in one place.

Written against 2.11; 2.15 is tried too. Everything else in the package uses documented interfaces of PyTorch or this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import pickle
import threading
from typing import Any, Callable, Iterable, Iterator

import torch
from torch._dynamo import disable as _disable
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache as BypassCache
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler, aot_module_simplified
from torch._guards import TracingContext
from torch._inductor.codecache import sha256_hash
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_impls import register_op_impl
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from inrush import log
from inrush.capture import fingerprint

__all__ = ["BypassCache"]


class GraphKey:
    """All that decides what a captured graph is compiled to, besides what inrush's folder stands for. PyTorch's own key would
    have Inductor imported for its settings."""

    def __init__(self, gm: Any, example_inputs: Any, aot_config: Any) -> None:
        import torch._functorch.config as config

        if hasattr(gm, "saved_tensors_hooks_pack_0"):
            raise BypassCache("hooks on saved tensors")
        from inrush.triton import user_kernels

        # The graph names kernels by numbers.
        self.kernels = list(user_kernels.identities(gm))
        if any(is_traceable_wrapper_subclass(x) for x in example_inputs):
            # AOTAutograd traces their methods, wherever these lead.
            raise BypassCache("tensor subclasses")
        try:
            self.operators = sorted(fingerprint.operators_of(gm).items())
        except fingerprint.NotPortable as error:
            raise BypassCache(str(error)) from error
        self.names = fingerprint.namespaces()
        self.switches = fingerprint.switches()
        self.aliases = getattr(_caches, "aliases", None)
        self.gm = gm
        self.example_inputs = example_inputs
        self.aot_config = aot_config
        self.torch = (torch.__version__, torch.version.git_version)
        self.modes = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            autocast_state(),
            torch.are_deterministic_algorithms_enabled(),
            str(torch.get_default_dtype()),
        )
        self.config = config.save_config()
        self.checkpoints = autograd_cache._collect_context_fn_hashes(gm)
        self.solvers = autograd_cache._get_custom_estimator_solver_uuids(config)
        context = TracingContext.try_get()
        shape_env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
        self.hints = sorted((str(k), v) for k, v in getattr(shape_env, "var_to_hint_override", {}).items())


_caches = threading.local()


class Code(OutputCode):
    """What AOTAutograd's cache may keep: compiled code that knows its folder."""

    folder: str | None = None


def _tell_reason(error: Exception) -> None:
    """Passes on why AOTAutograd keeps no entry of a graph."""
    if on_no_entry is not None:
        on_no_entry(str(error) or type(error).__name__)


@contextlib.contextmanager
def _reasons_told() -> Iterator[None]:
    """AOTAutograd takes an error inside of this as a reason to keep no entry, without a word."""
    try:
        yield
    except Exception as error:
        _tell_reason(error)
        raise


def _keep_in_own_folder() -> None:
    """AOTAutograd's cache has one folder for the process and one form of entries at a time. Have both follow the thread and
    the code that is saved, which may be long after the forward graph was compiled: a backward graph is compiled when it is
    first called."""
    import torch._functorch.config as config
    from torch._functorch._aot_autograd import graph_compile

    get_folder = AOTAutogradCache._get_tmp_dir.__func__
    make_entry, save = AOTAutogradCache.make_entry, AOTAutogradCache.save

    def _get_tmp_dir(cls: Any) -> str:
        return getattr(_caches, "folder", None) or get_folder(cls)

    def own_make_entry(compiled_fw_func: Any, *args: Any, **kwargs: Any) -> Any:
        below = compiled_fw_func
        while hasattr(below, "__wrapped__"):
            below = below.__wrapped__
        if not isinstance(below, Code):
            return make_entry(compiled_fw_func, *args, **kwargs)
        with config.patch(bundled_autograd_cache=True), _reasons_told():
            return make_entry(compiled_fw_func, *args, **kwargs)

    def own_save(key: str, entry: Any, remote: bool) -> None:
        code = getattr(entry.compiled_fw, "result", None)
        if not isinstance(code, Code):
            return save(key, entry, remote)
        if code.folder is None:
            return None
        # With a name PyTorch would keep a copy in the process, which means to load the machine code again.
        config_of_entry = entry.sanitized_aot_config
        name, config_of_entry.precompile_backend_id = config_of_entry.precompile_backend_id, None
        # Constants of a graph are real; while all tensors are fake, those of a GPU could not be written down.
        with graph_cache(code.folder), no_tracing():
            save(key, entry, False)
            if on_entry is not None and name is not None:
                try:
                    on_entry(name, pickle.dumps(entry))
                except Exception as error:
                    _tell_reason(error)

    bundles = graph_compile.should_bundle_autograd_cache

    def own_bundles() -> bool:
        late, _caches.late = getattr(_caches, "late", False), False
        return late or bundles()

    get_key = autograd_cache.autograd_cache_key

    def own_key(gm: Any, example_inputs: Any, aot_config: Any, *rest: Any, **named: Any) -> Any:
        if getattr(_caches, "folder", None) is None:
            return get_key(gm, example_inputs, aot_config, *rest, **named)
        gm = getattr(gm, "gm", gm)
        # Newer releases leave it to the key to look past what Dynamo numbers anew for each capture.
        with autograd_cache.sanitize_gm_for_cache(gm), _reasons_told():
            autograd_cache.check_cacheable(gm)
            pickler = autograd_cache.AOTAutogradCachePickler(gm)
            key = GraphKey(gm, example_inputs, aot_config)
            if key.kernels:
                # Their numbers are left out of the graph's text.
                pickler.dispatch_table[type(gm)] = pickler._reduce_graph_module
            return "a" + pickler.get_hash(key), []

    find = AOTAutogradCache.find_guarded_entry

    def own_find(*args: Any, **kwargs: Any) -> Any:
        found = find(*args, **kwargs)
        if getattr(_caches, "folder", None) is not None:
            _caches.found = found[1]
        return found

    candidates = AOTAutogradCache.iterate_over_candidates

    def own_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[tuple[Any, ...]]:
        if getattr(_caches, "folder", None) is None:
            yield from candidates(local, remote_cache, key)
        elif local:
            yield from entries(cls._get_tmp_dir_for_key(key))

    AOTAutogradCache.iterate_over_candidates = classmethod(own_candidates)
    AOTAutogradCache.find_guarded_entry = staticmethod(own_find)
    autograd_cache.autograd_cache_key = own_key
    graph_compile.should_bundle_autograd_cache = own_bundles
    AOTAutogradCache._get_tmp_dir = classmethod(_get_tmp_dir)
    AOTAutogradCache.make_entry = staticmethod(own_make_entry)
    AOTAutogradCache.save = staticmethod(own_save)


def entries(folder: str) -> Iterator[tuple[Any, bytes, bool]]:
    """AOTAutograd's entries in a folder. Their names are digests of what was written: with any other content they are damaged,
    which unpickling may not notice."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            try:
                with open(os.path.join(folder, name), "rb") as file:
                    content = file.read()
                if not name.startswith(".") and name == sha256_hash(content):
                    yield pickle.loads(content), content, True
            except Exception as error:
                log.cache.info("an entry is not read: %s", error)


_keep_in_own_folder()

# Gets AOTAutograd's entries, pickled, by the name under which captured code calls the graph.
on_entry: Callable[[str, bytes], None] | None = None
# Gets the reason why AOTAutograd keeps no entry of a graph.
on_no_entry: Callable[[str], None] | None = None
# Gets what finds out about custom operators of the graph that is being compiled.
on_operators: Callable[[Callable[[], dict[str, str]]], None] | None = None
# Takes what is left to do for a graph until Dynamo is through with its frame; false when no frame is being captured.
at_end: Callable[[Callable[[], None]], bool] | None = None


def entry_was_found(gm: Any) -> None:
    """To be called when AOTAutograd has found its entry for the graph that Dynamo captured."""
    name, found = getattr(gm, "_backend_id", None), getattr(_caches, "found", None)
    if on_entry is not None and name is not None and found is not None:
        on_entry(name, found)


def keep_recorded(gm: Any, code: Any) -> None:
    """Offers a graph that went past AOTAutograd, with what AOTAutograd demands of graphs that it keeps."""
    name = getattr(gm, "_backend_id", None)
    if on_entry is None or name is None:
        return
    try:
        autograd_cache.check_cacheable(gm)
        code.prepare_for_serialization()
    except BypassCache:
        return
    on_entry(name, pickle.dumps(code))


def backward_is_compiled() -> None:
    """To be called when a backward graph has been compiled: what AOTAutograd does next in this thread is to save it."""
    _caches.late = True


@contextlib.contextmanager
def graph_cache(folder: str | None, aliases: Any = None) -> Iterator[None]:
    """AOTAutograd keeps its entries, whole, in this folder while this lasts; None: it keeps none. ``aliases``: how the inputs of
    the graph overlap, for its key."""
    import torch._functorch.config as config

    enabled = folder is not None and config.enable_autograd_cache
    before = getattr(_caches, "folder", None), getattr(_caches, "aliases", None)
    _caches.folder, _caches.aliases = folder, aliases
    try:
        with config.patch(enable_autograd_cache=enabled, bundled_autograd_cache=enabled, enable_remote_autograd_cache=False):
            yield
    finally:
        _caches.folder, _caches.aliases = before


# Operators that do nothing but raise; PyTorch drops those that it does not know to have an effect, and with them the errors.
for _raises in (torch.ops.aten._linalg_check_errors.default, torch.ops.aten._assert_async.default):
    torch.fx.node.has_side_effect(_raises)


@register_op_impl(torch.ops.aten.zero.default)
def _zero(fake_mode: Any, func: Any, x: Any) -> Any:
    """What a view becomes that is filled with zeros has the view's strides, as eager gives it; PyTorch's fake tensors have others,
    of which the tensor that the view looks at then becomes a view, or cannot."""
    with fake_mode:
        return torch.empty_like(x)


@register_op_impl((torch.ops.aten.softshrink_backward.default, torch.ops.aten.hardshrink_backward.default))
def _shrink_backward(fake_mode: Any, func: Any, grad: Any, x: Any, lambd: Any) -> Any:
    """PyTorch's shape functions of these do not take symbols; a sum has the same sizes, strides and dtype."""
    with fake_mode:
        return grad + x


def _mend_lstm() -> None:
    """PyTorch's decomposition of LSTMs gives states with a dimension too many for batches of two and more where it does not call
    oneDNN. Where only weights or states want gradients, it calls oneDNN for inference, on which AOTAutograd fails."""
    from torch._decomp import decompositions

    plain, select = decompositions.one_layer_lstm, decompositions.select_one_layer_lstm_function

    @functools.wraps(plain)
    def one_layer(*args: Any, **kwargs: Any) -> Any:
        out, states = plain(*args, **kwargs)
        return out, tuple(s.squeeze(0) if s.dim() == 3 else s for s in states)

    @functools.wraps(select)
    def own_select(input: Any, hx: Any, params: Any) -> Any:
        weights = (w for layer in params for w in layer)
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (*hx, *weights))
        return one_layer if trains else select(input, hx, params)

    decompositions.one_layer_lstm = one_layer
    decompositions.select_one_layer_lstm_function = own_select


_mend_lstm()


def call_aot(gm: Any, example_inputs: Iterable[Any], keep_draws: bool, **compilers: Any) -> Callable[..., Any]:
    """AOTAutograd on a graph that Dynamo captured. ``keep_draws``: random operators are no dead code where nothing reads them."""
    from torch._inductor import config

    compilers["fw_compiler"] = SerializableAOTDispatchCompiler(OutputCode, compilers["fw_compiler"])
    with own_operators(), config.patch(fallback_random=keep_draws):
        return aot_module_simplified(gm, example_inputs, keep_inference_input_mutations=True, **compilers)


_own = threading.local()


@contextlib.contextmanager
def own_operators(active: bool = True) -> Iterator[None]:
    """While this lasts (with ``active=False`` not), this thread's captures keep shrinks and resampling of images on CPUs whole, and products
    get the gradients of :mod:`inrush.autograd.gradients`. PyTorch takes resampling apart into lookups by index before autograd sees it,
    whose gradients are sums by index, of another layout than the images have. Where sizes are symbols it stays so: positions
    depend on them."""
    _intercept()
    before = getattr(_own, "active", False)
    _own.active = active
    try:
        yield
    finally:
        _own.active = before


@functools.cache
def _intercept() -> None:
    """Has PyTorch's own decompositions of resampling, and what autograd sees of products, ask first."""
    from inrush.autograd import gradients

    names = [n for n in dir(torch.ops.aten) if n.startswith(("upsample_", "_upsample_nearest_exact"))]
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    for packet in (getattr(torch.ops.aten, name) for name in names):
        for operator in (getattr(packet, overload) for overload in packet.overloads()):
            for key in keys:
                if key in operator.py_kernels:
                    operator.py_kernels[key] = _whole_or(operator, key, operator.py_kernels[key], _is_known_image)
            operator._dispatch_cache.clear()
    # Composed of others, these round their number to the dtype of halves, or keep it, where eager does not.
    for operator in (torch.ops.aten.softshrink.default, torch.ops.aten.hardshrink.default):
        key = torch._C.DispatchKey.Autograd
        if key in operator.py_kernels:
            operator.py_kernels[key] = _whole_or(operator, key, operator.py_kernels[key], lambda *_: True)
        operator._dispatch_cache.clear()
    for operator in gradients.FORMULAS:
        key = torch._C.DispatchKey.Autograd
        plain = operator.py_kernels.get(key) or functools.partial(operator._op_dk, key)
        operator.py_kernels[key] = _differentiated_or(operator, plain)
        operator._dispatch_cache.clear()


def _whole_or(operator: Any, key: Any, decomposition: Callable[..., Any], applies: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(decomposition)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if getattr(_own, "active", False) and applies(*args, *kwargs.values()):
            return operator._op_dk(key, *args, **kwargs)
        return decomposition(*args, **kwargs)

    return kernel


def _differentiated_or(operator: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    from inrush.autograd import gradients

    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        # Transforms such as `vmap`, and derivatives taken forwards, have rules for PyTorch's operators alone.
        plainly = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
        if getattr(_own, "active", False) and not plainly and torch.is_grad_enabled() and x.requires_grad:
            out = gradients.differentiated(operator, x, *args, **kwargs)
            if out is not None:
                return out
        return plain(x, *args, **kwargs)

    return kernel


def _is_known_image(image: Any, *numbers: Any) -> bool:
    """An image of the CPU with sizes that are no symbols. PyTorch's shape functions refuse batches of none."""
    flat = [n for given in numbers for n in (given if isinstance(given, (list, tuple)) else [given])]
    symbols = (torch.SymInt, torch.SymFloat)
    if any(isinstance(n, symbols) for n in (*image.shape, *flat)):
        return False
    return image.device.type == "cpu" and image.dtype.is_floating_point and image.numel() > 0


def has_wrappers_of_aot() -> None:
    """Counts a graph whose calls pass AOTAutograd's wrappers. Dynamo's splitter of graphs for DistributedDataParallel looks there
    whether it may call what was compiled with fake tensors, and only then notes which part of the model it was."""
    from torch._dynamo.utils import counters

    for name in ("total", "ok"):
        counters["aot_autograd"][name] += 1


def modes_are_active() -> bool:
    """Whether something looks at each operator that this thread runs."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def python_dispatcher() -> Any:
    """Operators that are written in Python go before those of C++, as AOTAutograd has it."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def module_of(graph: Any) -> Any:
    """A module around a graph, which becomes Python code only if somebody calls it."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(torch.nn.Module(), graph)


def partition(*args: Any, **kwargs: Any) -> Any:
    """Splits the joint graph: what is cheap is computed again in the backward pass."""
    import torch._functorch.config as config
    from torch._inductor import config as inductor
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    _pass_detached(args[0].graph)
    if inductor.fallback_random:
        _place_draws(args[0].graph)
    # The partitioner's own search for common subexpressions has all of Inductor imported, a second or two, for a helper.
    with config.patch(cse=False):
        return min_cut_rematerialization_partition(*args, **kwargs)


def draws(node: Any) -> bool:
    """Whether a node advances a generator."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _place_draws(graph: Any) -> None:
    """Has draws that nothing reads take place once: to the partitioner, those that need no gradient fit both passes. In a backward
    pass of the user's own these go to the forward pass, as draws do there that are read."""
    for node in graph.nodes:
        if node.op == "call_function" and not node.users and draws(node):
            backward = node.meta.get("partitioner_tag") == "is_backward"
            node.meta["partitioner_tag"] = "must_be_in_backward" if backward else "must_be_in_forward"


def _pass_detached(graph: Any) -> None:
    """Has nodes read what was detached, not what ``detach`` gave, which means nothing below autograd. The partitioner never
    computes a ``detach`` again and would keep its operand, such as each ``tanh``, for the backward pass."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            graph.erase_node(node)


def fresh_symbols_ignored(fake_mode: Any) -> contextlib.AbstractContextManager[Any]:
    """Sizes that depend on data may become known once more, in a run whose results nothing reads."""
    env = fake_mode.shape_env
    return contextlib.nullcontext() if env is None else env.ignore_fresh_unbacked_symbols()


def backend_failed(backend: Any, error: Exception) -> Exception:
    """A backend's error as Dynamo raises it."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(backend, error, None)


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
    thread effect tokens and random states, count versions of mutated inputs, mark dynamic outputs.
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
    if any(getattr(o, "dynamic_dims", None) for o in meta.output_info):
        return "outputs of dynamic size"
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


def triton_kernel(kernel: int, constants: int) -> tuple[Any, dict[str, Any]]:
    """A Triton kernel of the user's and what it is called with that a graph cannot hold, by their numbers in a graph."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(kernel), kernel_side_table.get_constant_args(constants)


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
        """Whether the backward graph may overwrite what was saved; then the graph cannot be kept."""
        import torch._functorch.config as config

        return bool(config.donated_buffer and self.meta.bw_donated_idxs)

    @property
    def tangents(self) -> tuple[tuple[int, Any], ...]:
        """Which gradients the backward graph takes, with the memory format each must have."""
        places = [k for k, o in enumerate(self.meta.output_info) if issubclass(o.raw_type, torch.Tensor) and o.requires_grad]
        formats = [getattr(m.memory_format, "memory_format", None) for m in self.meta.subclass_tangent_meta]
        return tuple(zip(places, formats, strict=True))

    def needs_wrappers(self) -> str | None:
        """What AOTAutograd's wrappers have to do in calls of this graph, or None."""
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
    """What lies below all wrappers of a compiled function."""
    while hasattr(compiled, "__wrapped__"):
        compiled = compiled.__wrapped__
    return compiled


# Gets training graphs of any backend and gives what is called in their place.
on_training: Callable[[TrainingGraph], Callable[[list[Any]], Any]] | None = None


# Whether this release's training graphs are known: since 2.15 AOTAutograd writes wrappers for each graph, which take lists of gradients.
knows_training = False


def _offer_training() -> None:
    """Has :data:`on_training` see what AOTAutograd makes of training graphs, traced or read from its cache."""
    from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd

    global knows_training
    finish = AOTDispatchAutograd.post_compile
    signature = inspect.signature(finish)
    knows_training = {"compiled_fw_func", "fw_metadata", "disable_amp"} <= set(signature.parameters)
    if not knows_training:
        return

    @functools.wraps(finish)
    def own_finish(*args: Any, **named: Any) -> Any:
        call = finish(*args, **named)
        if on_training is None:
            return call
        try:
            return on_training(TrainingGraph(call, signature.bind(*args, **named).arguments))
        except Exception as error:
            # Another release's metadata, say: what AOTAutograd made is right as it is.
            log.compile.debug("steps of training pass AOTAutograd's wrappers: %s", error)
            return call

    AOTDispatchAutograd.post_compile = staticmethod(own_finish)


_offer_training()


def _keep_writes_to_numbers() -> None:
    """Has Dynamo keep writes to inputs of `float64` without dimensions.

    When it captures again, to make numbers constants, it removes every node whose value is such an input and that is read by
    nothing: the input itself, and an in-place operator on it, whose effect would be lost.
    """
    from torch._dynamo.output_graph import OutputGraph

    remove = getattr(OutputGraph, "remove_tensorify_specialized_graphargs", None)
    if remove is None:
        return

    @functools.wraps(remove)
    def own_remove(self: Any) -> None:
        written = [n for n in self.graph.nodes if n.op != "placeholder" and not n.users and "example_value" in n.meta]
        values = [n.meta.pop("example_value") for n in written]
        try:
            remove(self)
        finally:
            for node, value in zip(written, values):
                node.meta["example_value"] = value

    OutputGraph.remove_tensorify_specialized_graphargs = own_remove


_keep_writes_to_numbers()


def _keep_addcdiv() -> None:
    """Dynamo composes `addcdiv` with a `value` of three operators, each of which rounds, so that a tensor need not be read. A number
    need not be either way."""
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    handlers = TorchInGraphFunctionVariable._get_handlers()
    composed = handlers.get(torch.addcdiv)
    if composed is None:
        return

    @functools.wraps(composed)
    def handler(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        value = kwargs.get("value")
        if value is not None and value.is_python_constant():
            return None
        return composed(self, tx, *args, **kwargs)

    handlers[torch.addcdiv] = handler


_keep_addcdiv()

transforms_are_active = torch._C._are_functorch_transforms_active
unwrap_if_dead = torch._C._functorch.unwrap_if_dead
graph_is_kept = torch._C._autograd._get_current_graph_task_keep_graph
no_autocast = torch._C._DisableAutocast


def is_plain_backward() -> bool:
    """Whether a backward pass is neither recorded itself, nor differentiated forwards, nor part of a transform."""
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
    """``function.apply`` outside of transforms, whose inputs are no wrappers that a transform left behind."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


# AOTAutograd has autograd make views anew by their history while it calls a training graph.
replays_views = torch._C._is_view_replay_enabled
replay_views = torch._C._set_view_replay_enabled
