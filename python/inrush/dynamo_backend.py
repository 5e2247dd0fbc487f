"""``torch.compile(f, backend="inrush")``: from Dynamo's graph through AOTAutograd to native code."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Callable, Iterable, Mapping

from inrush import _native, compile_options, composed_attention, control_flow, fallback, flex_attention, gpu, log, small_attention, source, torch_internals, tuning
from inrush import report as reports
from inrush.autograd import aliases, aot_cache, gradients, partition, training
from inrush.capture import fingerprint, session, trace_inference
from inrush.capture.session import CaptureSession, SessionRef
from inrush.compile_options import Options
from inrush.dynamo_graph import aliasing, class_bounds, eager_only, noop_dropout
from inrush.triton import user_kernels

Compiled = Callable[..., Any]


def backend(
    gm: Any,
    example_inputs: Iterable[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """The compiler that Dynamo calls with each graph that it captured, and with inputs like those to come."""
    return compile_graph(gm, list(example_inputs), compile_options.check(options, mode))


def _outside_of(gm: Any) -> dict[str, str]:
    """Returns the operators of a graph that do not come with PyTorch, for captures that are kept."""
    if any(True for _ in user_kernels.identities(gm)):
        raise fingerprint.NotPortable("Triton kernels of the user, which the graph names by numbers")
    return fingerprint.operators_of(gm)


def compile_graph(gm: Any, example_inputs: list[Any], options: Options) -> Compiled:
    """AOTAutograd splits the graph into forward and backward parts; each is compiled natively."""
    if any(isinstance(x, (list, tuple, dict)) for x in example_inputs):
        return torch_internals.flatten_inputs(gm, example_inputs, lambda g, x: compile_graph(g, list(x), options))
    start = time.perf_counter()
    gpu.warm()
    frame = session.current()
    if frame is not None:
        frame.add_operators(lambda: _outside_of(gm))
    noop_dropout.take_out(gm)
    eager_only.guard_level()
    why = eager_only.reason(gm, example_inputs)
    if why is not None:
        return eagerly(gm, why)
    class_bounds.check_classes(gm)
    graph = CapturedGraph(options, len(example_inputs), frame, torch_internals.name_in_code(gm))
    why = composed_attention.chosen_by_user(gm)
    if why is not None:
        graph.kept[composed_attention.OPERATOR] = why
    recorded = graph.past_autograd(gm)
    if recorded is not None:
        graph.report.seconds = time.perf_counter() - start
        return recorded
    aliases = aliasing.key(example_inputs)
    try:
        wrapped = graph.through_autograd(gm, example_inputs, aliases)
        changed = aliasing.changed_inputs(len(example_inputs))
        aliasing.guard_inputs(gm, example_inputs, changed)
        aliasing.refuse_foreign(aliases, changed)
    except (aliasing.Foreign, AssertionError) as error:
        if aliases is None:
            raise
        # AOTAutograd does not do this with inputs that overlap, or does not see that they do.
        aliasing.guard_inputs(gm, example_inputs, frozenset(range(len(example_inputs))))
        if frame is not None:
            frame.add_operators(aliasing.not_kept)
        report = reports.GraphReport("captured", nodes=len(gm.graph.nodes))
        graph.report.graphs[:] = [report]
        failed(gm, options, report, _native.UnsupportedError(f"inputs that are changed overlap: {error}"))
        return torch_internals.disable(gm.forward, "runs eagerly")
    graph.report.seconds = time.perf_counter() - start
    graph.pass_on_found(gm)
    log.compile.info("%s", graph.report)
    if graph.direct is not None:
        graph.report.direct = True
        return graph.direct
    torch_internals.has_wrappers_of_aot()
    return torch_internals.disable(training.direct(wrapped) if owns_nothing(gm) else wrapped, "compiled by inrush")


def eagerly(gm: Any, why: str) -> Compiled:
    """The graph as it is, since tracing it would change what it computes."""
    report = reports.begin()
    report.graphs.append(reports.GraphReport("captured", nodes=len(gm.graph.nodes), fallback=why))
    log.compile.info("%s", report)
    return torch_internals.disable(gm.forward, "runs eagerly")


def owns_nothing(gm: Any) -> bool:
    """Returns true if all that a graph reads comes with each call: AOTAutograd puts what else there is before the arguments."""
    return not any(True for _ in (*gm.parameters(), *gm.buffers()))


class CapturedGraph:
    """One graph of Dynamo while its parts are compiled."""

    def __init__(self, options: Options, inputs: int, frame: CaptureSession | None, name: str | None) -> None:
        self.options = options
        # The name under which captured code calls it.
        self.name = name
        self.inputs = inputs
        self.report = reports.begin()
        self.folder = aot_cache.folder(options)
        # The native callable, when calls may skip AOTAutograd's wrappers.
        self.direct: Compiled | None = None
        # The frame that is being captured, if captures are kept.
        self.frame = frame
        # The entry of AOTAutograd's cache that was found, pickled.
        self.found: bytes | None = None
        # Nothing was traced.
        self.was_loaded = False
        # Why operators stay that are replaced elsewhere, by their names.
        self.kept: dict[str, str] = {}

    def through_autograd(self, gm: Any, example_inputs: list[Any], aliases: Any) -> Compiled:
        """The graph as AOTAutograd has it compiled."""
        scope = aot_cache.Scope(self.folder, self.loaded, aliases, self.frame)
        with aot_cache.scope(scope), gradients.own_operators():
            compiled = torch_internals.call_aot(
                gm,
                example_inputs,
                self.options.fallback_random,
                fw_compiler=self.compiler("forward"),
                bw_compiler=self.backward,
                inference_compiler=self.compiler("inference"),
                partition_fn=partition.partition,
            )
        self.found = scope.found
        return compiled

    def pass_on_found(self, gm: Any) -> None:
        """Gives the entry that AOTAutograd has found to the session of the frame."""
        name = torch_internals.name_of_graph(gm)
        if self.was_loaded and self.frame is not None and name is not None and self.found is not None:
            self.frame.add_graph(name, self.found)

    def past_autograd(self, gm: Any) -> Compiled | None:
        """The graph without AOTAutograd; None where that has something to do."""
        try:
            why = trace_inference.eligible(gm)
            inner = trace_inference.record(gm, self.options.fallback_random) if why is None else None
        except Exception as error:
            why, inner = str(error) or type(error).__name__, None
        if inner is None:
            log.compile.debug("AOTAutograd captures: %s", why)
            return None
        later = self.frame is not None and self.options.tune != "first call"
        compiled = self.compile(inner, "inference", later)
        eager = torch_internals.disable(gm.forward, "runs eagerly")
        if compiled is None:
            return eager
        self.report.direct = calls_python(compiled) is None
        finish = lambda: self.finish(gm, inner, compiled, eager)  # noqa: E731
        if self.frame is None:
            finish()
        else:
            self.frame.at_end(finish)
        return compiled if self.report.direct else torch_internals.disable(compiled.__call__, "compiled by inrush")

    def finish(self, gm: Any, inner: Any, compiled: Any, eager: Compiled) -> None:
        """Does what is left when the kernels are built, which happens while Dynamo makes guards."""
        report = self.report.graphs[-1]
        if isinstance(compiled, _native.Compiled):
            try:
                compiled.finish()
                report.update(compiled.report())
            except Exception as error:
                failed(inner, self.options, report, error)
                compiled.replace(eager)
                self.report.direct = False
        log.compile.info("%s", self.report)
        if self.folder is not None and report.fallback is None:
            code = aot_cache.Code(function=compiled, kind="inference", direct=self.report.direct, report=report, folder=self.folder)
            aot_cache.keep_recorded(gm, code, self.frame)

    def compiler(self, kind: str) -> Compiled:
        def compile(gm: Any, example_inputs: list[Any]) -> aot_cache.Code:
            meta = torch_internals.metadata()
            if kind != "backward":
                torch_internals.correct_aliases(meta)
                aliases.view_inputs(gm, meta)
            compiled = self.compile(gm, kind)
            report = self.report.graphs[-1]
            code = aot_cache.Code(function=boxed(compiled or gm), kind=kind, report=report, folder=self.folder, session=SessionRef(self.frame))
            if kind == "inference" and compiled is not None:
                idle = torch_internals.wrapper_is_idle(meta, self.inputs)
                why = idle or calls_python(compiled)
                if why is None:
                    code.direct = True
                    self.direct = compiled
                elif idle is None and isinstance(compiled, tuning.FirstCall):
                    # Python runs around the native code, so Dynamo must not look.
                    self.direct = torch_internals.disable(compiled.__call__, "compiled by inrush")
                else:
                    log.compile.debug("calls pass AOTAutograd's wrappers: %s", why)
            return code

        return compile

    def backward(self, gm: Any, example_inputs: list[Any]) -> Compiled:
        # Dynamo must look neither into the compiler, which may run at the first backward call, nor into what it returns.
        compile = torch_internals.disable(self.compiler("backward"), "inrush compiles a backward graph")
        code = compile(gm, example_inputs)
        run = torch_internals.disable(lambda inputs: code(inputs), "compiled by inrush")
        run._boxed_call = True  # type: ignore[attr-defined]
        # AOTAutograd's cache keeps what lies below all wrappers.
        run.__wrapped__ = code  # type: ignore[attr-defined]
        aot_cache.backward_is_compiled()
        return run

    def loaded(self, code: aot_cache.Code) -> None:
        """Takes a graph that was read from the cache: nothing was traced."""
        self.was_loaded = True
        code.session = SessionRef(self.frame)
        self.report.graphs.append(code.report)
        source.register(self.name, code.kind, code.function)
        if code.direct and not torch_internals.autocast_enabled():
            self.direct = code.function

    def compile(self, gm: Any, kind: str, later: bool = False) -> Compiled | None:
        """The graph as a native callable that takes its inputs one by one; None when it has to run eagerly."""
        report = reports.GraphReport(kind, nodes=len(gm.graph.nodes), kept=dict(self.kept))
        self.report.graphs.append(report)
        compiled = compile_native(gm, self.options, report, later)
        source.register(self.name, kind, compiled)
        return compiled


def compile_native(gm: Any, options: Options, report: reports.GraphReport, later: bool = False) -> Compiled | None:
    """One ATen graph to native code, with the rules for failure. ``later``: the kernels may still be built."""
    resolver = lambda: control_flow.resolver(gm, lambda module: compile_subgraph(module, options, report))  # noqa: E731
    try:
        settings = {
            "strict": options.strict,
            "inference": report.kind == "inference",
            "keeps_arguments": report.kind != "backward" and not torch_internals.in_compiled_autograd(),
            "threads": options.threads,
            "fallback_random": options.fallback_random,
            "cudagraphs": options.cudagraphs,
            "tune": {False: "never", True: "now", "background": "known"}.get(options.tune, "at call"),
            "pointers": options.pointers,
            "products": options.products,
            "trace": trace_folder(options, gm, report.kind),
            "later": later,
        }
        gpu.check_pointers(options.pointers)
        settings |= gpu.settings()
        torch_internals.correct_metadata(gm)
        launching = user_kernels.rewrite(gm)
        tuned_by_triton = user_kernels.is_tuned_by(launching)
        later = later and not tuned_by_triton
        settings["later"] = later
        graph = attentions(launching, report)
        fallback.tell_cache()

        def build(graph: Any, **changed: Any) -> Any:
            with torch_internals.no_tracing():
                return _native.compile_fx(graph, {**settings, **changed}, resolver(), of_traced_sizes(graph, report))

        # The report's list may be another one by then.
        told = lambda measured: report.tuned.extend(measured)  # noqa: E731

        def tune_in_background(compiled: Any, graph: Any) -> None:
            if options.tune == "background":
                tuning.background.add(compiled, lambda: build(graph, tune="background", later=False, trace=None), told)

        compiled = build(graph)
        source.tell(compiled, report.kind, settings["trace"])
        if not tuned_by_triton:
            tune_in_background(compiled, graph)
        if later:
            return compiled
        report.update(compiled.report())
        untuned = options.tune == "first call" and compiled.report()["untuned"]
        if untuned or tuned_by_triton:

            def again() -> Any:
                known = attentions(user_kernels.rewrite(gm), report) if tuned_by_triton else graph
                made = build(known, tune="known") if untuned else build(known)
                if tuned_by_triton:
                    report.update(made.report())
                    tune_in_background(made, known)
                return made

            return tuning.FirstCall(compiled, again, told)
        return compiled
    except BaseException as error:
        # A panic is no `Exception` in Python, but a failure like others.
        panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not panic:
            raise
        if panic:
            error = _native.InternalError(f"a panic: {error}")
        failed(gm, options, report, error)
        return None


def attentions(gm: Any, report: reports.GraphReport) -> Any:
    """The graph with attentions that kernels compute; the report tells why others stay calls."""
    graph, kept = flex_attention.rewrite(gm)
    report.kept |= kept
    return plain_attentions(graph, report)


def plain_attentions(gm: Any, report: reports.GraphReport, of_traced_sizes: bool = False) -> Any:
    """The graph with attentions in the place of calls of PyTorch's fused ones, and of what they are composed of."""
    if report.kind != "inference":
        return gm
    if composed_attention.OPERATOR not in report.kept:
        gm = composed_attention.rewrite(gm, of_traced_sizes)
    return small_attention.rewrite(gm, of_traced_sizes)


def of_traced_sizes(gm: Any, report: reports.GraphReport) -> Any:
    """The graph that the program for the sizes of the traced call is made of."""
    return plain_attentions(gm, report, of_traced_sizes=True)


def failed(gm: Any, options: Options, report: reports.GraphReport, error: BaseException) -> None:
    """Raises what went wrong, or tells of it: the graph runs eagerly."""
    if isinstance(error, torch_internals.control_exceptions()) or options.strict:
        raise error
    report.fallback, report.reproduction = fallback.report_failure(gm, report.kind, error)


def compile_subgraph(gm: Any, options: Options, report: reports.GraphReport) -> Compiled | None:
    """The graph of a control-flow operator."""
    inner = reports.GraphReport("subgraph", nodes=len(gm.graph.nodes))
    report.subgraphs.append(inner)
    return compile_native(gm, options, inner)


def trace_folder(options: Options, gm: Any, kind: str) -> str | None:
    """A fresh folder of this graph under the option's, with the graph as AOTAutograd gave it."""
    if options.trace is None:
        return None
    os.makedirs(options.trace, exist_ok=True)
    taken = [int(m[1]) for m in (re.match(r"(\d+)_", name) for name in os.listdir(options.trace)) if m]
    number = max(taken, default=-1) + 1
    while True:
        folder = os.path.join(options.trace, f"{number:03}_{kind}")
        try:
            os.mkdir(folder)
            break
        except FileExistsError:
            number += 1
    with open(os.path.join(folder, "fx.txt"), "w", encoding="utf-8") as out:
        out.write(gm.print_readable(print_output=False, include_stride=True, include_device=True))
    return folder


def calls_python(compiled: Any) -> str | None:
    """Why the callable may enter Python while it runs, or None. Dynamo would trace what Python runs under it."""
    if isinstance(compiled, tuning.FirstCall):
        return "the first call tunes it"
    return "operators are called" if compiled.enters_python else None


def boxed(function: Compiled) -> Compiled:
    """``function`` as AOTAutograd calls it: with a list, which it empties. Native code takes both forms."""
    if getattr(function, "_boxed_call", False):
        return function

    def call(inputs: list[Any]) -> Any:
        try:
            return function(*inputs)
        finally:
            inputs.clear()

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
