"""The table of everything that inrush replaces in PyTorch."""

from __future__ import annotations

import functools

import torch

from inrush.patches.places import Attribute, FakeKernel, Handler, OperatorKernel, Place, SideEffect, aten
from inrush.patches.row import Patch

# Features that every compile uses.
COMPILER_FEATURES = (
    "graph cache", "training steps", "fake strides", "overlapping inputs", "eager's operators", "whole operators", "eager's numbers",
    "dynamic sizes",
)  # fmt: skip
# Features that captures on disk use.
CAPTURE_FEATURES = ("capture cache", "capture overhead")

BOTH = "2.11, 2.15"
OLDER = "2.11"
# A place that 2.11 does not have, and that has to be replaced in a release that has it.
UNKNOWN = "unknown"

AUTOGRAD = "torch._functorch._aot_autograd"


def _graph_cache(target: str, function: str, parameters: tuple[str, ...], why: str) -> Patch:
    return Patch(Attribute(f"{AUTOGRAD}.{target}"), f"inrush.patches.aot_cache:{function}", "graph cache", why, BOTH, parameters)


def _capture(target: str, function: str, parameters: tuple[str, ...], why: str, releases: str = BOTH) -> Patch:
    place = Attribute(f"torch._dynamo.{target}")
    return Patch(place, f"inrush.capture.install:{function}", "capture cache", why, releases, parameters, releases == UNKNOWN)


def _operator(place: Place, function: str, why: str, feature: str = "eager's operators", parameters: tuple[str, ...] = ()) -> Patch:
    return Patch(place, f"inrush.patches.operators:{function}", feature, why, BOTH, parameters)


@functools.cache
def patches() -> tuple[Patch, ...]:
    """Returns all rows."""
    return (
        *_GRAPH_CACHE, *_TRAINING, *_STRIDES, *_OVERLAPS, *_OPERATORS, *_whole_operators(), *_NUMBERS, *_DYNAMIC, *_CAPTURES, *_OVERHEAD,
    )  # fmt: skip


_GRAPH_CACHE = (
    _graph_cache(
        "autograd_cache:AOTAutogradCache._get_tmp_dir", "own_folder", (),
        "AOTAutograd's cache has one folder for the process; ours follows the thread and the options",
    ),
    _graph_cache(
        "autograd_cache:AOTAutogradCache.make_entry", "own_make_entry", ("compiled_fw_func",),
        "entries hold native code, in the bundled form, while other backends keep theirs",
    ),
    _graph_cache(
        "autograd_cache:AOTAutogradCache.save", "own_save", ("key", "entry", "remote"),
        "a backward graph is compiled, and saved, long after the settings of its forward graph have gone",
    ),
    _graph_cache(
        "graph_compile:should_bundle_autograd_cache", "own_bundles", (),
        "the setting is read when a backward graph is compiled, which may be in a call",
    ),
    _graph_cache(
        "autograd_cache:autograd_cache_key", "own_key", ("gm", "example_inputs"),
        "PyTorch's key imports Inductor for its settings, and does not know what inrush depends on",
    ),
    _graph_cache(
        "autograd_cache:AOTAutogradCache.find_guarded_entry", "own_find", (),
        "the entry that was found belongs to the frame that is being captured",
    ),
    _graph_cache(
        "autograd_cache:AOTAutogradCache.iterate_over_candidates", "own_candidates", ("local", "remote_cache", "key"),
        "a damaged entry may well unpickle: names of files are compared with their contents first",
    ),
)  # fmt: skip

_TRAINING = (
    Patch(
        Attribute(f"{AUTOGRAD}.runtime_wrappers:AOTDispatchAutograd.post_compile"), "inrush.autograd.training:own_post_compile",
        "training steps", "calls of most training graphs need none of AOTAutograd's wrappers, which take longer than small kernels",
        # Since 2.15 AOTAutograd writes wrappers for each graph, which take lists of gradients.
        OLDER, ("compiled_fw_func", "fw_metadata", "disable_amp"),
    ),
)  # fmt: skip

_STRIDES = (
    Patch(
        Attribute("torch._subclasses.fake_tensor:FakeTensorMode._dispatch_impl"), "inrush.fake_strides:own_dispatch", "fake strides",
        "shape functions give other strides than eager's kernels for some operators", BOTH, ("func", "types", "args", "kwargs"),
    ),
)  # fmt: skip

_OVERLAPS = (
    Patch(
        Attribute(f"{AUTOGRAD}.runtime_wrappers:compute_overlapping_inputs"), "inrush.patches.overlaps:own_overlapping", "overlapping inputs",
        "misses matrices of which one begins within a row of the other, and tensors of other widths: what is written is read as it was",
        OLDER, ("aot_config", "fwd_inputs", "aliased_input_indices"),
    ),
    Patch(
        Attribute(f"{AUTOGRAD}.runtime_wrappers:merge_view_inputs"), "inrush.patches.overlaps:own_merge", "overlapping inputs",
        "makes one input of a whole storage, whose size differs between tracing and calls",
        OLDER, ("aot_config", "fwd_inputs", "fwd_inputs_descs", "mutated_input_info", "is_inference"),
    ),
    Patch(
        FakeKernel("set_.source_Storage"), "inrush.patches.overlaps:set_to_storage", "overlapping inputs",
        "the shape function takes no storage of symbolic size, of which AOTAutograd makes one input", BOTH,
    ),
)  # fmt: skip

_OPERATORS = (
    *(
        _operator(SideEffect(name), "has_effect", "an operator that does nothing but raise is dropped, and with it the error")
        for name in ("_linalg_check_errors.default", "_assert_async.default")
    ),
    _operator(FakeKernel("zero.default"), "zero", "a view that is filled with zeros has other strides than in eager"),
    *(
        _operator(FakeKernel(f"{name}_backward.default"), "shrink_backward", "the shape function does not take symbols")
        for name in ("softshrink", "hardshrink")
    ),
    _operator(
        Attribute("torch._decomp.decompositions:one_layer_lstm"), "one_layer_lstm",
        "states of batches of two and more have a dimension too many without oneDNN",
    ),
    _operator(
        Attribute("torch._decomp.decompositions:select_one_layer_lstm_function"), "select_lstm",
        "AOTAutograd fails on oneDNN's inference, which is chosen if only weights or states want gradients",
        parameters=("input", "hx", "params"),
    ),
)  # fmt: skip


def _whole_operators() -> tuple[Patch, ...]:
    """Returns the rows of operators that PyTorch takes apart in Python before autograd sees them, as far as it does."""
    import torch._decomp.decompositions  # noqa: F401 - registers them

    names = [n for n in dir(torch.ops.aten) if n.startswith(("upsample_", "_upsample_nearest_exact"))]
    overloads = [f"{n}.{o}" for n in names for o in getattr(torch.ops.aten, n).overloads()]
    why = "taken apart into lookups by index, whose gradients are sums by index in another layout"
    rows = [
        _operator(OperatorKernel(name, key), "resampling", why, "whole operators")
        for name in overloads
        for key in ("Autograd", "CompositeImplicitAutograd")
        if getattr(torch._C.DispatchKey, key) in aten(name).py_kernels
    ]
    rows += [
        _operator(OperatorKernel(name, "Autograd"), "shrink", "composed of others, it rounds its number where eager does not", "whole operators")
        for name in ("softshrink.default", "hardshrink.default")
        if torch._C.DispatchKey.Autograd in aten(name).py_kernels
    ]
    # Those of `inrush.autograd.gradients.FORMULAS`.
    rows += [
        _operator(OperatorKernel(name, "Autograd"), "product", "the captured gradient multiplies all other elements", "whole operators")
        for name in ("cumprod.default", "prod.default", "prod.dim_int")
    ]
    return tuple(rows)


_NUMBERS = (
    Patch(
        Attribute("torch._dynamo.output_graph:OutputGraph.remove_tensorify_specialized_graphargs"),
        "inrush.patches.dynamo:own_remove_graphargs", "eager's numbers",
        "in-place operators on inputs of float64 without dimensions are removed when Dynamo captures again", BOTH, optional=True,
    ),
    Patch(
        Handler("addcdiv"), "inrush.patches.dynamo:own_addcdiv", "eager's numbers",
        "composed of three operators it rounds three times", BOTH, ("tx",), optional=True,
    ),
)  # fmt: skip

_DYNAMIC = (
    Patch(
        Attribute("torch._dynamo.variables.builder:VariableBuilder.wrap_symfloat"), "inrush.patches.dynamo:own_wrap_symfloat", "dynamic sizes",
        "with dynamic sizes each float of a module is a tensor that is made twice a call", OLDER, ("value",), optional=True,
    ),
    *(
        Patch(
            Attribute(f"torch._dynamo.utils:call_{what}"), f"inrush.patches.dynamo:own_call_{what}", "dynamic sizes",
            f"captured code turns Dynamo off and on for each {what} that it reads", OLDER, optional=True,
        )
        for what in ("size", "stride")
    ),
)  # fmt: skip

_CAPTURES = (
    _capture("eval_frame:_optimize", "own_optimize", ("backend", "dynamic", "package"), "gives functions that inrush compiles a package"),
    _capture(
        "convert_frame:_compile", "own_compile",
        ("code", "globals", "locals", "one_graph", "export", "hooks", "compile_id", "package"),
        "captures of other processes are tried before a frame is captured",
    ),
    _capture(
        "guards:CheckFunctionManager.serialize_guards", "own_serialize", ("builder", "sorted_guards", "output_graph"),
        "PyTorch refuses to describe guards on identities, which are kept by name",
    ),
    Patch(
        Attribute("torch._dynamo.guards:GuardsStatePickler.reducer_override"), "inrush.capture.guards:reducer_override", "capture cache",
        "leaves out marks of tensors and functions that are not found under their names; tries thirty cases for the most frequent values",
        BOTH, ("obj",),
    ),
    _capture(
        "symbolic_convert:InliningInstructionTranslator.build_inline_tracer", "own_inline", ("parent", "func", "args", "kwargs"),
        "functions that are traced as parts of a frame have no guard on their code",
    ),
    _capture("output_graph:OutputGraph.bypass_package", "own_bypass", ("reason",), "tells why a frame cannot be kept"),
    _capture("output_graph:OutputGraph.install_global", "own_install_global", ("prefix", "value"), "its names recur in other processes"),
    _capture(
        "output_graph:OutputGraph.install_global_by_id", "own_install_global_by_id", ("prefix", "value"), "addresses recur in other processes",
    ),
    *(
        _capture(
            f"variables.{module}:invoke_and_store_as_constant", "own_constant", ("tx", "fn", "name", "args", "kwargs"),
            "results that are declared constant have no guard", releases,
        )
        for module, releases in (("functions", BOTH), ("builtin", UNKNOWN), ("nn_module", BOTH))
    ),
    _capture("source:DefaultsSource.__reduce__", "own_reduce_defaults", (), "is written with more fields than its constructor takes"),
)  # fmt: skip

_OVERHEAD = (
    Patch(
        Attribute("torch._dynamo.symbolic_convert:get_funcname"), "inrush.capture.overhead:own_function_name", "capture overhead",
        "takes whole source files apart for a word in a log that is off", BOTH, ("filename", "lineno"),
    ),
    Patch(
        Attribute("torch._dynamo.variables.higher_order_ops:LocalMapWrappedHigherOrderVariable.should_wrap_in_hop"),
        "inrush.capture.overhead:own_should_wrap", "capture overhead",
        "imports much of torch.distributed to say no", BOTH, ("value",), optional=True,
    ),
)  # fmt: skip
