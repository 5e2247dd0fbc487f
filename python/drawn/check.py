"""Verdicts: a program compiled and compared with eager, and made shorter where it is wrong."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any, Callable, Iterator

import torch

from drawn.compare import Ran, compare, execute, in_float64, run
from drawn.draw import run_all
from drawn.noise import Noise
from drawn.program import Built, Program, Variant

# Verdicts that are no faults: `right`; `unstable`: what eager's own rounding turns; `refused`: no backend compiles it; `theirs`:
# PyTorch's own tracing gives the same layout or aliases, which are not eager's; `invalid`: eager refuses it.
GOOD = ("right", "unstable", "refused", "theirs", "invalid")

# How often eager runs with its rounding varied before a difference counts.
NOISES = 4
# A refusal under `strict` that tracing alone does not always repeat: what it kept of another call it uses for overlapping inputs.
BEYOND_TRACING = "inputs that are changed overlap: "


def is_wrong(verdict: str) -> bool:
    return verdict not in GOOD


def kind_of(verdict: str) -> str:
    """A fault without the numbers and places of one program, so that what is made shorter goes on failing the same way."""
    text = re.sub(r"^(second process: |call \d+: )*", "", verdict)
    return re.split(r"[\d:\[(]", text, maxsplit=1)[0].strip()


def calls(program: Program) -> list[Variant]:
    """The first call twice, then the others."""
    return [Variant(), Variant(), *program.variants]


def options(program: Program) -> dict[str, Any]:
    return {"strict": True, "fallback_random": program.draws}


def compiled(program: Program, f: Any, backend: Any) -> Any:
    settings = {} if isinstance(backend, str) else {"options": options(program)}
    return torch.compile(f, backend=backend, dynamic=True if program.dynamic else None, **settings)


def check(program: Program, device: str, variants: list[Variant] | None = None, load: Callable[[str], Built] | None = None) -> str:
    """One of `GOOD`, or what is wrong. `load` gives the function and its modules, for eager or to be compiled."""
    import inrush

    torch._dynamo.reset()
    variants = calls(program) if variants is None else variants
    load = load or (lambda name: program.build(device))
    try:
        built = load("eager")
        eager = run(program, built, built.function, device, variants)
        finish(device)
    except Exception:
        # Eager's own kernels fault too, such as its attention on a tensor at an odd multiple of 4 bytes. What this process runs
        # on the device after that fails.
        return "invalid"
    built = load("compiled")
    try:
        got = run(program, built, compiled(program, built.function, inrush.backend), device, variants)
        finish(device)
    except torch.AcceleratorError:
        raise
    except Exception as error:
        # A fault of a kernel shows as an error of a later call, of whatever type.
        finish(device)
        if BEYOND_TRACING in str(error):
            return "refused"
        theirs = by_tracing(program, device, variants)
        if isinstance(theirs, Exception) and type(theirs) is type(error):
            return "refused"
        return f"{type(error).__name__}: {str(error)[:600]}"
    wide = in_float64(program, device, variants)
    unstable = False
    for n, (g, e, w) in enumerate(zip(got, eager, wide)):
        wrong, unsure = compare(g, e, w, program)
        unstable |= unsure
        if wrong and turns_by_rounding(wrong, program, device, variants, n, e):
            unstable = True
            continue
        if wrong:
            theirs = by_tracing(program, device, variants)
            same = not isinstance(theirs, Exception) and compare(theirs[n], e, w, program)[0] == wrong
            if same and excused(wrong):
                return "theirs"
            return ("" if not n else f"call {n + 1}: ") + wrong + (" (PyTorch's tracing does the same)" if same else "")
    return "unstable" if unstable else "right"


def turns_by_rounding(wrong: str, program: Program, device: str, variants: list[Variant], n: int, eager: Ran) -> bool:
    """Returns true where eager differs from itself in the same tensor of call ``n`` once its rounding is varied."""
    what = wrong.split(":")[0]
    if program.tight or what not in eager.names:
        return False
    for seed in range(NOISES):
        built = program.build(device)
        try:
            with Noise(seed):
                varied = run(program, built, built.function, device, variants)
        except Exception:
            return False
        k = eager.names.index(what)
        pair = [dataclasses.replace(r, names=[what], tensors=[r.tensors[k]], strides=[], shared=[]) for r in (varied[n], eager)]
        if compare(pair[0], dataclasses.replace(pair[1], generator=pair[0].generator), None, program)[0]:
            return True
    return False


def finish(device: str) -> None:
    """Waits for the device, so that a fault of a kernel is raised by the program that caused it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def excused(wrong: str) -> bool:
    """Returns true for differences that PyTorch's tracing may decide: where results are stored, not what they hold."""
    return wrong.startswith(("strides", "shared memory"))


def by_tracing(program: Program, device: str, variants: list[Variant]) -> Any:
    """What PyTorch's tracing alone makes of the calls, or the exception."""
    torch._dynamo.reset()
    built = program.build(device)
    try:
        return run(program, built, compiled(program, built.function, "aot_eager"), device, variants)
    except Exception as error:
        return error


def shorter(program: Program, is_faulty: Any, deadline: float) -> Program:
    """The program without what it fails without."""
    best, progress = program, True
    while progress and time.monotonic() < deadline:
        progress = False
        for trial in candidates(best):
            if time.monotonic() > deadline:
                break
            try:
                run_all(trial)
                faulty = is_faulty(trial)
            except Exception:
                continue
            if faulty:
                best, progress = trial, True
                break
    return best


def candidates(p: Program) -> Iterator[Program]:
    """Programs that are simpler by one thing."""
    if p.dynamic:
        yield dataclasses.replace(p, dynamic=False)
    if p.resets:
        yield dataclasses.replace(p, resets=False)
    for k in range(len(p.variants)):
        yield dataclasses.replace(p, variants=p.variants[:k] + p.variants[k + 1 :])
    for k in range(len(p.results)):
        if len(p.results) > 1:
            yield dataclasses.replace(p, results=p.results[:k] + p.results[k + 1 :])
    for k in reversed(range(len(p.lines))):
        yield dataclasses.replace(p, lines=p.lines[:k] + p.lines[k + 1 :])
    if p.trains:
        yield dataclasses.replace(p, trains=False, inputs=[dataclasses.replace(i, grad=False) for i in p.inputs])
        if p.tangent != "sin":
            yield dataclasses.replace(p, tangent="sin")
    for k, i in enumerate(p.inputs):
        simpler = [dict(layout="plain")] if i.layout != "plain" and i.alias is None else []
        simpler += [dict(grad=False)] if i.grad else []
        simpler += [dict(dtype="float32")] if i.dtype in ("float16", "bfloat16", "float64") and not i.alias else []
        simpler += [dict(alias=None)] if i.alias else []
        for change in simpler:
            yield dataclasses.replace(p, inputs=[dataclasses.replace(x, **change) if k == j else x for j, x in enumerate(p.inputs)])
    used = " ".join([*p.lines, *p.results])
    for k in range(len(p.inputs)):
        if len(p.inputs) > 1 and not re.search(rf"\ba{k}\b", used) and not any(i.alias and i.alias[0] == k for i in p.inputs):
            yield without_input(p, k)
    for k in range(len(p.modules)):
        if f"m{k}(" not in used and p.modules[k] != "nn.Identity()":
            yield dataclasses.replace(p, modules=[*p.modules[:k], "nn.Identity()", *p.modules[k + 1 :]])


def without_input(p: Program, gone: int) -> Program:
    """The program without an argument that nothing names."""

    def place(k: int) -> int:
        return k - (k > gone)

    def alias(a: tuple[int, str] | None) -> tuple[int, str] | None:
        return (place(a[0]), a[1]) if a else None

    def renamed(text: str) -> str:
        return re.sub(r"\ba(\d+)\b", lambda m: f"a{place(int(m[1]))}", text)

    variants = []
    for v in p.variants:
        if any(a and a[0] == gone for _, a in v.aliases):
            continue
        variants.append(dataclasses.replace(v, aliases=tuple((place(k), alias(a)) for k, a in v.aliases if k != gone)))
    return dataclasses.replace(
        p,
        inputs=[dataclasses.replace(i, alias=alias(i.alias)) for k, i in enumerate(p.inputs) if k != gone],
        lines=[renamed(x) for x in p.lines],
        results=[renamed(x) for x in p.results],
        variants=variants,
    )


__all__ = ["GOOD", "calls", "check", "compiled", "execute", "is_wrong", "options", "shorter"]
