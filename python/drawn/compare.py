"""Runs a program and compares what it gave: results, arguments afterwards, gradients, buffers, strides, aliases, the generator."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch

from drawn.program import Built, Program, Variant, can_widen

EPS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-9}
# A single step on exact values: one rounding, in the last place.
ULP = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 5e-7, torch.float64: 1e-15}


@dataclasses.dataclass
class Ran:
    """What a call gave."""

    names: list[str]
    tensors: list[torch.Tensor | None]
    # Of results and arguments: strides of dimensions of more than one element.
    strides: list[tuple[int, ...]]
    # Which of them share memory, and how many bytes apart they begin.
    shared: list[tuple[str, str, int]]
    generator: torch.Tensor


def strides(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for s, n in zip(x.stride(), x.shape) if n > 1) if x.numel() else ()


def shared(named: list[tuple[str, torch.Tensor]]) -> list[tuple[str, str, int]]:
    out = []
    for k, (name, x) in enumerate(named):
        for other, y in named[:k]:
            if x.numel() and y.numel() and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
                out.append((other, name, x.data_ptr() - y.data_ptr()))
    return out


def tangents(kind: str, results: list[tuple[int, torch.Tensor]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Some of the results and what comes in from outside for them."""
    outs, given = [], []
    for k, r in results:
        if kind == "some" and k % 2 and len(results) > 1:
            continue
        generator = torch.Generator().manual_seed(k)
        shape = tuple(r.shape)
        if kind == "transposed" and len(shape) > 1:
            t = torch.randn((*shape[:-2], shape[-1], shape[-2]), generator=generator, dtype=torch.float64).mT
        elif kind == "expanded":
            t = torch.randn((), generator=generator, dtype=torch.float64).expand(shape)
        else:
            t = torch.randn(shape, generator=generator, dtype=torch.float64)
        # Each run gets the rounded value, the wide one too.
        t = t.to(torch.bfloat16).to(r.device)
        outs.append(r)
        given.append(t.to(r.dtype) if kind != "expanded" else t[(0,) * t.dim()].to(r.dtype).expand(shape) if r.numel() else t.to(r.dtype))
    return outs, given


def execute(f: Callable[..., Any], arguments: list[torch.Tensor], program: Program, modules: list[torch.nn.Module]) -> Ran:
    torch.manual_seed(program.seed)
    results = list(f(*arguments))
    state = torch.get_rng_state() if not (arguments and arguments[0].is_cuda) else torch.cuda.get_rng_state()
    named = [(f"result {k}", r.detach()) for k, r in enumerate(results) if isinstance(r, torch.Tensor)]
    named += [(f"argument {k}", a.detach()) for k, a in enumerate(arguments)]
    weights = [(f"m{k}.{n}", p) for k, m in enumerate(modules) for n, p in m.named_parameters()]
    leaves = [(f"argument {k}", a) for k, a in enumerate(arguments) if a.requires_grad and a.is_leaf]
    leaves += [(n, p) for n, p in weights if p.requires_grad]
    outs = [(k, r) for k, r in enumerate(results) if isinstance(r, torch.Tensor) and r.requires_grad]
    grads: list[tuple[str, torch.Tensor | None]] = []
    if outs and leaves:
        inputs = [x for _, x in leaves]
        if program.tangent in ("sin", "sum"):
            loss = sum(r.double().sin().sum() if program.tangent == "sin" else r.sum().double() for _, r in outs)
            found = torch.autograd.grad(loss, inputs, allow_unused=True)
        else:
            found = torch.autograd.grad(*reversed_pair(tangents(program.tangent, outs), inputs), allow_unused=True)
        grads = [(f"gradient of {n}", g) for (n, _), g in zip(leaves, found)]
    buffers = [(f"m{k}.{n}", b.detach().clone()) for k, m in enumerate(modules) for n, b in m.named_buffers()]
    everything = [*named, *grads, *buffers]
    return Ran(
        [n for n, _ in everything], [t.detach() if t is not None else None for _, t in everything],
        [strides(t) for _, t in named], shared(named), state,
    )  # fmt: skip


def reversed_pair(pair: tuple[list[torch.Tensor], list[torch.Tensor]], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    outs, given = pair
    return outs, inputs, given


def in_float64(program: Program, device: str, variants: list[Variant]) -> list[Ran | None]:
    """The calls with all floats wide; None where that is another program."""
    none: list[Ran | None] = [None] * len(variants)
    if not can_widen(program):
        return none
    try:
        # On the CPU, whatever the device: eager's gradients and statistics on GPUs are not always what float64 has room for.
        built = program.build("cpu", wide=True)
        ran = [execute(built.function, program.arguments("cpu", v, wide=True), program, built.modules) for v in variants]
        for r in ran:
            r.tensors = [t if t is None else t.to(device) for t in r.tensors]
        return ran
    except Exception:
        return none


def run(program: Program, built: Built, f: Callable[..., Any], device: str, variants: list[Variant]) -> list[Ran]:
    """The calls one after the other, with one function."""
    out = []
    for n, variant in enumerate(variants):
        if program.resets and n > 1:
            torch._dynamo.reset()
        out.append(execute(f, program.arguments(device, variant), program, built.modules))
    return out


def compare(got: Ran, eager: Ran, wide: Ran | None, program: Program) -> tuple[str | None, bool]:
    """What differs, and whether eager itself is far from float64, so that nothing can be said."""
    if got.names != eager.names:
        return f"results {got.names}, eager's {eager.names}", False
    for k, (g, e) in enumerate(zip(got.strides, eager.strides)):
        if g != e:
            return f"strides of {eager.names[k]} are {g}, eager's {e}", False
    if got.shared != eager.shared:
        return f"shared memory {sorted(set(got.shared) - set(eager.shared))}, eager's {sorted(set(eager.shared) - set(got.shared))}", False
    if program.draws and not torch.equal(got.generator, eager.generator):
        return "the generator is left elsewhere", False
    unstable = False
    for k, (g, e) in enumerate(zip(got.tensors, eager.tensors)):
        if e is None and g is not None and not g.any():
            # Of gradients that nothing reaches tracing makes zeros.
            continue
        if (g is None) != (e is None):
            return f"{eager.names[k]} is {g}, eager's {e}", False
        if g is None or e is None:
            continue
        if g.dtype != e.dtype or g.shape != e.shape:
            return f"{eager.names[k]} is {g.dtype}{list(g.shape)}, eager's {e.dtype}{list(e.shape)}", False
        if torch.equal(g, e):
            continue
        # Gradients are sums, which cancel.
        tight = program.tight and not eager.names[k].startswith("gradient")
        # Rounding to the narrowest type of the program shows everywhere after it.
        table = ULP if tight else EPS
        eps = max((table[t.dtype] for t in eager.tensors if t is not None and t.dtype in table), default=1e-9)
        w = e
        if wide is not None and not tight and wide.tensors[k] is not None and wide.tensors[k].shape == e.shape:
            w = wide.tensors[k]
        g, e, w = g.double(), e.double(), w.double()
        atol = 0.0 if tight else 8 * eps
        factor = 1.0 if tight else 8.0
        near = lambda a, b: torch.isclose(a, b, rtol=factor * eps, atol=atol * max(1.0, scale(b)), equal_nan=True)  # noqa: B023
        good = near(g, e)
        if good.all():
            continue
        if not near(e, w).all():
            unstable = True
            continue
        good |= near(g, w)
        if not good.all():
            bad = ~good
            return f"{eager.names[k]}: {int(bad.sum())} of {bad.numel()} elements differ, {g[bad][:3].tolist()}, eager's {e[bad][:3].tolist()}", False
    return None, unstable


def scale(x: torch.Tensor) -> float:
    x = x[x.isfinite()]
    return float(x.abs().max()) if x.numel() else 1.0
