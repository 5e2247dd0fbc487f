"""Compiles samples and compares them with eager."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
from torch.utils import _pytree as pytree

import inrush
from inrush import compile_options, dynamo_backend, patches
from inrush import report as reports
from inrush.autograd import partition

from . import compare, expected
from .samples import Cell, Sample, device, samples

patches.install()

# Samples in one compiled function.
BATCH = 12
# Samples of several cells in one: the other dtypes have few each.
TOGETHER = 40
# How the reasons of what eager runs begin: there is no graph, or inrush refuses the graph.
NO_GRAPH = "PyTorch gives no graph of it"
REFUSES = "inrush refuses the graph"


@dataclass
class Outcome:
    """What became of a cell."""

    cell: str
    samples: int = 0
    """Compared with eager."""
    left: int = 0
    """Samples beyond the number asked for."""
    refused_by_eager: int = 0
    kernels: int = 0
    """Kernels and contractions, where the cell was compiled by itself."""
    called: dict[str, str] = field(default_factory=dict)
    """Operators that PyTorch ran, with the reason."""
    undefined: str | None = None
    """Why values are not compared."""
    skipped: str | None = None
    """Why the cell was not run."""
    upstream: list[str] = field(default_factory=list)
    """Samples that differ as much when PyTorch itself runs what it captured."""
    failed: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.failed:
            return "failed"
        if self.skipped:
            return "skipped"
        if not self.samples:
            return "none"
        return "called" if self.called else "lowered"

    def __str__(self) -> str:
        lines = [f"{self.state:8}{self.cell}: {self.samples} samples, {self.kernels} kernels"]
        lines[0] += "".join(f", {op} ({why})" for op, why in self.called.items())
        lines[0] += f" [{self.undefined or self.skipped}]" if self.undefined or self.skipped else ""
        return "\n".join(lines + [f"        {f}" for f in self.failed] + [f"        PyTorch's own: {f}" for f in self.upstream])


class Uncaptured(Exception):
    """PyTorch does not give a graph of the call."""


Prepared = tuple[Outcome, list[tuple[Sample, Any]]]


def check(op: Any, cells: list[Cell], count: int | None) -> Iterator[Outcome]:
    """Compiles the samples of one operator's cells, those of all of them in one function where they are few and all is
    lowered and right: that is much faster. Else each cell by itself, many samples in one function."""
    prepared = [prepare(op, c, count) for c in cells]
    if len(cells) > 1 and (together := check_together(prepared)):
        yield from together
        return
    for out, good in prepared:
        for at in range(0, len(good), BATCH):
            batch(good[at : at + BATCH], out)
        yield out


def check_together(prepared: list[Prepared]) -> list[Outcome] | None:
    """All samples in one function; None where they are many, or not all is lowered and right."""
    if sum(len(good) for _, good in prepared) > TOGETHER:
        return None
    together = Outcome("", undefined=prepared[0][0].undefined)
    try:
        attempt([one for _, good in prepared for one in good], together, captured)
    except Exception:
        return None
    if together.called:
        return None
    for out, good in prepared:
        out.samples = len(good)
    return [out for out, _ in prepared]


def prepare(op: Any, cell: Cell, count: int | None) -> Prepared:
    """A cell's outcome so far, and its samples with what eager gives."""
    out = Outcome(str(cell), undefined=expected.undefined(op.name), skipped=expected.left_out(cell.name, cell.dtype, cell.direction))
    good: list[tuple[Sample, Any]] = []
    if out.skipped:
        return out, good
    try:
        chosen, out.left = samples(op, cell, count)
    except Exception as error:
        out.skipped = f"PyTorch has no samples: {summary(error)}"
        return out, good
    for s in chosen:
        wanted = eagerly(s)
        if wanted is None:
            out.refused_by_eager += 1
        else:
            good.append((s, wanted))
    return out, good


def batch(chosen: list[tuple[Sample, Any]], out: Outcome) -> None:
    """Compiles samples in one function; of several that fail, each half by itself."""
    try:
        in_some_way(chosen, out)
    except Exception as error:
        if len(chosen) > 1:
            half = len(chosen) // 2
            batch(chosen[:half], out)
            batch(chosen[half:], out)
            return
        out.samples += 1
        blame = out.upstream if fails_in_pytorch(chosen[0]) else out.failed
        blame.append(f"sample {chosen[0][0].number}: {summary(error)}")


def in_some_way(chosen: list[tuple[Sample, Any]], out: Outcome) -> None:
    try:
        attempt(chosen, out, captured)
        return
    except compare.Wrong:
        raise
    except Exception as error:
        if len(chosen) > 1 and not isinstance(error, Uncaptured):
            raise
    # Without Dynamo nobody keeps book of sizes that depend on data.
    name = out.cell.split(" ")[0]
    try:
        attempt(chosen, out, whole)
    except Uncaptured as why:
        attempt(chosen, out, in_parts)
        out.called[name] = f"{NO_GRAPH}: {why}"
    except torch._dynamo.exc.BackendCompilerFailed as why:
        if len(chosen) > 1:
            raise
        attempt(chosen, out, lenient)
        out.called[name] = f"{REFUSES}: {summary(why.inner_exception)}"


def fails_in_pytorch(one: tuple[Sample, Any]) -> bool:
    """Whether the sample fails or differs when PyTorch runs the graph that it captured."""
    try:
        attempt([one], Outcome(""), by_pytorch)
        return False
    except Exception:
        return True


def eagerly(s: Sample) -> Any | None:
    """Results of a call, gradients and arguments afterwards; None where eager refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            given = s.tensors()
            out = s(given)
            if device() != "cpu" and (s.op.name, getattr(out, "dtype", None)) in expected.BY_THE_CPU:
                value, args, kwargs = s.arguments(given)
                out = s.op(value, *args, **{**kwargs, "device": "cpu"}).to(device())
            return results([s], [given], [out])[0]
        except Exception:
            return None


def results(chosen: list[Sample], tensors: list[list[torch.Tensor]], outs: list[Any]) -> list[Any]:
    """For each sample its results, gradients if asked for, and the arguments as they are now."""
    wanted = [gradients_wanted(s, out, given) for s, out, given in zip(chosen, outs, tensors)]
    flat = [pair for all, _ in wanted for pair in all]
    wrt = [t for _, all in wanted for t in all]
    found: list[torch.Tensor | None] = []
    if flat and wrt:
        found = list(torch.autograd.grad([t for t, _ in flat], wrt, [w for _, w in flat], allow_unused=True))
    # Some gradients are zero for one and absent for the other.
    rest = iter(torch.zeros_like(t) if g is None else g for g, t in zip(found, wrt))
    return [
        [out, [next(rest, None) for _ in inputs], [t.detach() for t in given]] for out, given, (_, inputs) in zip(outs, tensors, wanted)
    ]


def gradients_wanted(s: Sample, out: Any, given: list[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
    """Results, each with a fixed wave as its gradient, so that no element counts like another; and what they derive from."""
    if s.direction != "backward":
        return [], []
    outs = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    wrt = [t for t in given if t.requires_grad]
    return ([(t, wave(t)) for t in outs], wrt) if outs else ([], [])


def wave(t: torch.Tensor) -> torch.Tensor:
    n = torch.arange(t.numel(), dtype=torch.float64).reshape(t.shape)
    return (1 + 0.5 * torch.cos(n)).to(t.device, t.dtype)


def attempt(chosen: list[tuple[Sample, Any]], out: Outcome, compile: Callable[..., Any]) -> None:
    """Compiles the calls as one function, runs it and compares; counts what was compiled."""
    if not chosen:
        return
    calls = [s for s, _ in chosen]
    report = reports.Compilation()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        function = compile(calls, report)
        given = [s.tensors() for s in calls]
        got = results(calls, given, function(given))
    for (s, wanted), g in zip(chosen, got):
        cancels = expected.cancels(s.op.name)
        settle = lambda all: expected.settle(s.op.name, s.arguments(s.kept), all)
        compare.compare(g[0], wanted[0], lambda: settled(truth(s)[0], settle), values_defined(s, out), settle, cancels=cancels)
        compare.compare(g[1], wanted[1], lambda: truth(s)[1], values_defined(s, out), strides=False, cancels=cancels)
        compare.compare(g[2], wanted[2], lambda: truth(s)[2], values_defined(s, out))
    out.samples += len(chosen)
    for graph in report.all_graphs():
        out.kernels += len(graph.kernels) + graph.contractions
        # What inrush calls of its own, the seed of random numbers, is no operator.
        out.called.update({c.op: c.reason for c in graph.calls if not c.op.startswith("inrush.")})


def settled(exact: Any, settle: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """The exact results as results are compared; nothing where there are none."""
    exact = compare.leaves(exact)
    return settle(exact) if exact else exact


def values_defined(s: Sample, out: Outcome) -> bool:
    if out.undefined is None:
        return True
    name = expected.PROBABILITY.get(s.op.name)
    return name is not None and s.kwargs.get(name, 1.0) == 0.0


def truth(s: Sample) -> Any:
    """The call in float64; nothing where PyTorch does not do it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return eagerly(s.widened()) or [[], [], []]
    finally:
        torch.set_default_dtype(before)


def captured(calls: list[Sample], report: Any) -> Callable[..., Any]:
    """The calls as one function through AOTAutograd, without Dynamo, which takes most of the time of a compile."""
    from torch._functorch.aot_autograd import aot_function

    settings = compile_options.check({"strict": True, "cache": False}, None)
    counts = [len(s.kept) for s in calls]

    def compiler(kind: str) -> Callable[..., Any]:
        def compile(gm: Any, example_inputs: list[Any]) -> Any:
            graph = reports.GraphReport(kind, nodes=len(gm.graph.nodes))
            report.graphs.append(graph)
            try:
                return dynamo_backend.boxed(dynamo_backend.compile_native(gm, settings, graph))
            except Exception as error:
                raise Refused(error) from error

        return compile

    def flat(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        return [compare.leaves(call([next(rest) for _ in range(n)])) for call, n in zip(calls, counts)]

    function = aot_function(
        flat,
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition.partition,
        keep_inference_input_mutations=True,
    )

    def run(tensors: list[list[torch.Tensor]]) -> Any:
        try:
            return function(*[t for ts in tensors for t in ts])
        except Refused as error:
            raise error.cause
        except Exception as error:
            # Before anything was compiled, the failure is of PyTorch's tracing.
            if report.graphs:
                raise
            raise Uncaptured(summary(error)) from error

    return run


class Refused(Exception):
    """inrush's own error, as told from those of PyTorch's tracing."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def whole(calls: list[Sample], report: Any, fullgraph: bool = True, backend: str = "inrush", strict: bool = True) -> Callable[..., Any]:
    """The same through torch.compile: Dynamo knows sizes that depend on data."""
    import torch._dynamo.config as config

    torch._dynamo.reset()

    def run(tensors: list[list[torch.Tensor]]) -> Any:
        before = len(inrush.compilations())
        # Where Dynamo compiles the calls one by one, each is another version of the same code.
        many = {"recompile_limit": 4 * BATCH, "automatic_dynamic_shapes": False}
        with config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True, **many):
            compiled = torch.compile(
                lambda arguments: [s.call(a) for s, a in zip(calls, arguments)],
                backend=backend,
                fullgraph=fullgraph,
                options={"strict": strict, "cache": False} if backend == "inrush" else None,
            )
            try:
                return compiled([s.arguments(t) for s, t in zip(calls, tensors)])
            except torch._dynamo.exc.BackendCompilerFailed:
                raise
            except Exception as error:
                if not fullgraph:
                    raise
                raise Uncaptured(summary(error)) from error
            finally:
                for done in inrush.compilations()[before:]:
                    report.graphs += done.graphs

    return run


def in_parts(calls: list[Sample], report: Any) -> Callable[..., Any]:
    """The same where Dynamo leaves out what it cannot trace."""
    return whole(calls, report, fullgraph=False)


def lenient(calls: list[Sample], report: Any) -> Callable[..., Any]:
    """The same where eager runs what inrush refuses, as it does by default."""
    return whole(calls, report, fullgraph=False, strict=False)


def by_pytorch(calls: list[Sample], report: Any) -> Callable[..., Any]:
    """What PyTorch captures, run operator by operator."""
    return whole(calls, report, fullgraph=False, backend="aot_eager")


def summary(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:400]}"
