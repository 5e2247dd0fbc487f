"""Draws a program. Eager tells which steps are valid and what they give."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import torch

from drawn.modules import MODULES, TABLES
from drawn.program import FLOATS, HEAD, INTEGERS, RANKS, SHARED, Input, Program, Variant
from drawn.steps import KINDS, STATEMENTS, THEME_WEIGHTS, THEMES
from drawn.writes import DefinedWrites

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
# Elements of a value: programs are to be many, not large.
MOST = 20_000
NUMBERS = ("2", "0.5", "-1", "3", "0.25", "-2", "0.1", "0.7", "-0.3", "1e-3", "1.0", "7", "100", "0", "-0.0", "float('inf')", "float('nan')", "True")
# Views that an argument is of the memory of another: `x` the other argument, `s` the memory under it.
ALIASES = (
    "x", "x[1:]", "x[:-1]", "x.mT", "x.view_as(x)", "x[..., ::2]", "x[0]", "x.detach()", "s", "s[1:]", "s[2:]", "s[-2:]",
    "x.expand(2, *x.shape)", "x.unfold(0, 2, 1)", "x.view(-1)", "x.transpose(0, -1)", "s.view(torch.uint8)", "x.view(torch.int32)",
    "x.view(torch.int16)", "x[:1].expand_as(x)", "x.flatten()[1:]", "x.diagonal()", "s.as_strided((2, 2), (2, 1), 1)",
)  # fmt: skip
TANGENTS = ("sin", "sin", "sum", "normal", "transposed", "expanded", "some")
SYMBOLS = 4


def draw(seed: int) -> Program:
    """The program of a seed. Steps are tried on the CPU: a GPU that met an index out of range does nothing afterwards."""
    rng = random.Random(seed)
    theme = rng.choices(list(THEME_WEIGHTS), list(THEME_WEIGHTS.values()))[0]
    program = Program(seed, [], [], [], theme=theme)
    program.trains = rng.random() < (0.15 if theme in ("bits", "draw") else 0.35)
    program.draws = theme == "draw"
    program.tight = theme in ("number", "bits")
    program.dynamic = rng.random() < 0.2
    program.tangent = rng.choice(TANGENTS)
    program.resets = rng.random() < 0.3
    sizes = draw_inputs(rng, program)
    values = {f"a{k}": x for k, x in enumerate(program.arguments("cpu"))}
    wanted = rng.randint(1, 2) if theme == "number" else rng.randint(2, 12)
    tries = 0
    while len(program.lines) < wanted and tries < 300:
        tries += 1
        values = add_step(rng, program, values) or values
    choose_results(rng, program, values)
    program.variants = draw_variants(rng, program, sizes)
    program.features += describe(program)
    return program


def draw_inputs(rng: random.Random, program: Program) -> tuple[int, ...]:
    """Adds the inputs; returns the sizes that calls may change."""
    theme = program.theme
    sizes = [rng.choice(SIZES) for _ in range(SYMBOLS)]
    if theme == "image":
        sizes = [rng.choice((1, 2, 3)), rng.choice((1, 2, 3, 4, 6, 8, 16, 17, 24, 64)), rng.choice((3, 4, 5, 7, 8, 9, 16, 17)), rng.choice((3, 4, 5, 7, 8, 9, 14, 16))]
    if theme == "token":
        sizes = [rng.choice((1, 2, 3)), rng.choice((1, 2, 4)), rng.choice((1, 3, 5, 8, 16, 17)), rng.choice((2, 4, 8, 12, 16, 24))]
    first = rng.choices(FLOATS, (2, 1, 8, 8) if theme == "number" else (12, 2, 2, 2))[0]
    values = "exact" if theme == "bits" else "special" if theme == "number" else rng.choices(("normal", "exact", "special"), (6, 3, 1))[0]
    for k in range(rng.randint(1, 3 if theme == "number" else 4)):
        rank = rng.choices((0, 1, 2, 3, 4), (1, 3, 6, 4, 2))[0]
        if k == 0 and theme == "image":
            rank = rng.choices((3, 4, 5), (1, 8, 1))[0]
        elif k == 0 and theme == "token":
            rank = rng.choices((3, 4), (5, 1))[0]
        symbols: list[int | None] = [s for s in range(SYMBOLS)][-rank:] if rank else []
        if rank == 3 and theme in ("image", "token"):
            symbols = [0, *symbols[1:]]
        symbols = [None] * (rank - len(symbols)) + symbols
        if k and rng.random() < 0.3:
            symbols = [None] * rank
        shape = [rng.choice(SIZES) if s is None else sizes[s] for s in symbols]
        for d in range(rank):
            if rng.random() < (0.02 if theme == "image" else 0.08):
                shape[d], symbols[d] = 0 if rng.random() < 0.1 else 1, None
        while torch.Size(shape).numel() > MOST // 2:
            shape, symbols = shape[1:], symbols[1:]
        dtype = first if k == 0 or rng.random() < 0.6 else rng.choice(FLOATS + INTEGERS + ("bool",))
        if k == 1 and theme == "token":
            dtype = "int64"
        name = rng.choice(list(RANKS)) if rng.random() < 0.4 else "plain"
        if theme == "image" and k == 0:
            name = rng.choice(("plain", "channels_last", "channels_last", "channels_last_gapped", name))
        grad = program.trains and dtype in FLOATS and (k == 0 or rng.random() < 0.7)
        program.inputs.append(Input(dtype, tuple(shape), name, values, grad, None, tuple(symbols)))
        if k and rng.random() < (0.8 if theme == "alias" else 0.08):
            program.inputs[k] = alias_of(rng, program, k)
    if rng.random() < 0.5 and any(i.alias for i in program.inputs):
        backwards(program)
    return tuple(sizes)


def alias_of(rng: random.Random, program: Program, k: int) -> Input:
    """An argument that is a view of an earlier one, where one can be."""
    own = program.inputs[k]
    for _ in range(12):
        j = rng.choice([j for j in range(k) if program.inputs[j].alias is None])
        view = rng.choice(ALIASES)
        if program.inputs[j].layout == "negated" or (view.startswith("s") and program.inputs[j].grad):
            continue
        program.inputs[k] = dataclasses.replace(own, alias=(j, view), grad=False)
        try:
            x = program.arguments("cpu")[k]
        except Exception:
            continue
        if not x.is_complex() and x.numel() <= MOST:
            return dataclasses.replace(program.inputs[k], dtype=str(x.dtype)[6:], shape=tuple(x.shape), symbols=(None,) * x.dim())
    return own


def backwards(program: Program) -> None:
    """Puts the arguments into the reverse order, so that a view comes before what it is of."""
    last = len(program.inputs) - 1
    turned = [dataclasses.replace(i, alias=(last - i.alias[0], i.alias[1])) if i.alias else i for i in reversed(program.inputs)]
    program.inputs = turned
    program.features.append("aliases in reverse order")


def run_all(program: Program) -> dict[str, Any]:
    """Every value after the program."""
    scope: dict[str, Any] = {}
    exec(HEAD.format(device="cpu") + "\n".join(program.modules_code()), scope)
    scope.update((f"a{k}", x) for k, x in enumerate(program.arguments("cpu")))
    torch.manual_seed(0)
    with DefinedWrites():
        exec("\n".join([*program.lines, *program.results]), scope)
    return {n: x for n, x in scope.items() if re.fullmatch(r"[av]\d+", n)}


def add_step(rng: random.Random, program: Program, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """Tries one more step; returns the values after it where it is valid."""
    weights = THEMES[program.theme]
    kind = rng.choices(list(weights), list(weights.values()))[0]
    modules = program.modules
    if kind in ("module", "table"):
        made = module_step(rng, program, values) if kind == "module" else table_step(rng, program, values)
        if made is None:
            return None
        module, text, feature = made
        modules = [*modules, module]
    else:
        template = rng.choice(KINDS[kind])
        filled = fill(rng, template, values)
        if filled is None:
            return None
        text, feature = filled, f"step {template}"
    name = f"v{len(program.lines)}"
    # A step that fails half-way may have written: it is tried on values made anew.
    trial = dataclasses.replace(program, lines=[*program.lines, text if kind in STATEMENTS else f"{name} = {text}"], modules=modules)
    try:
        after = run_all(trial)
    except Exception:
        return None
    if kind not in STATEMENTS:
        x = after[name]
        if not isinstance(x, torch.Tensor) or x.numel() > MOST or x.dtype.is_complex or x.is_sparse:
            return None
    program.lines, program.modules = trial.lines, modules
    program.features += [feature, f"kind {kind}"]
    return {n: x for n, x in after.items() if isinstance(x, torch.Tensor)}


def module_step(rng: random.Random, program: Program, values: dict[str, torch.Tensor]) -> tuple[str, str, str] | None:
    name = rng.choice(list(MODULES))
    ranks, make, call = MODULES[name]
    fits = [n for n, x in values.items() if x.is_floating_point() and x.dim() in ranks and x.numel()]
    if not fits:
        return None
    x = rng.choices(fits, range(1, len(fits) + 1))[0]
    text = make(rng, tuple(values[x].shape))
    if text is None:
        return None
    module = f"{text}.to({values[x].dtype})"
    return module, call.format(m=f"m{len(program.modules)}", x=x), f"module {name}"


def table_step(rng: random.Random, program: Program, values: dict[str, torch.Tensor]) -> tuple[str, str, str] | None:
    name = rng.choice(list(TABLES))
    text, call = TABLES[name]
    fits = [n for n, x in values.items() if suits("i", x) and x.dim() and x.numel()]
    if not fits:
        return None
    module = text.format(k=rng.choice(SIZES), mode=rng.choice(("sum", "mean", "max")))
    return module, call.format(m=f"m{len(program.modules)}", i=rng.choice(fits)), f"module {name}"


def fill(rng: random.Random, template: str, values: dict[str, torch.Tensor]) -> str | None:
    """A step with values and numbers in its places; later values are drawn more often."""
    out, at, latest = "", 0, None
    while (start := template.find("{", at)) >= 0:
        end = template.index("}", start)
        out += template[at:start]
        hole, at = template[start + 1 : end], end + 1
        if hole[0] in "xhiba":
            fits = [n for n, x in values.items() if suits(hole, x)]
            if not fits:
                return None
            # Several places of one step often mean the same value, so that shapes fit.
            if latest not in fits or rng.random() < 0.5:
                latest = rng.choices(fits, range(1, len(fits) + 1))[0]
            out += latest
        elif hole == "d":
            out += str(rng.randint(-1, max(values[latest].dim() - 1, 0))) if latest else "0"
        elif hole == "n":
            out += str(rng.randint(-3, 3))
        elif hole == "n0":
            out += str(rng.randint(1, 3))
        elif hole == "k":
            out += str(rng.choice(SIZES[:5]))
        elif hole == "s":
            out += rng.choice(NUMBERS)
        elif hole == "t":
            out += rng.choice(FLOATS + INTEGERS)
    return out + template[at:]


def suits(hole: str, x: torch.Tensor) -> bool:
    if hole[0] == "x":
        return x.is_floating_point() and (len(hole) == 1 or x.dim() == int(hole[1]))
    if hole == "h":
        return x.dtype in (torch.float16, torch.bfloat16)
    is_bool = x.dtype == torch.bool
    return {"i": not is_bool and not x.is_floating_point(), "b": is_bool, "a": True, "a:n": not is_bool}[hole]


def choose_results(rng: random.Random, program: Program, values: dict[str, torch.Tensor]) -> None:
    """The last values, some others, now and then an argument, or one value twice."""
    last = [n for n in values if n.startswith("v")]
    chosen = {*last[-2:], *rng.sample(last, min(len(last), 2))}
    if not chosen or rng.random() < 0.1:
        chosen.add("a0")
        program.features.append("result is an argument")
    program.results = sorted(chosen, key=lambda n: (n[0], int(n[1:])))
    if rng.random() < 0.1:
        program.results.append(program.results[0])
        program.features.append("result twice")
    if rng.random() < 0.1:
        base = rng.choice(program.results)
        x = values[base]
        if x.dim():
            program.results.append(rng.choice([f"{base}[0]", f"{base}[:1]", f"{base}.mT", f"{base}.view({base}.dtype)", f"{base}.unsqueeze(0)", f"{base}.detach()"]))
            if program.results[-1].endswith("mT") and x.dim() < 2:
                program.results[-1] = f"{base}[1:]"
            program.features.append("result is a view of a result")


def draw_variants(rng: random.Random, program: Program, sizes: tuple[int, ...]) -> list[Variant]:
    """Later calls of the same compiled function: other sizes, other aliases. Those that eager refuses are left out."""
    out = []
    if program.dynamic or rng.random() < 0.1:
        for _ in range(2):
            out.append(Variant(tuple(rng.choice(SIZES) if rng.random() < 0.6 else n for n in sizes)))
    aliased = [k for k, i in enumerate(program.inputs) if i.alias]
    if aliased:
        out.append(Variant(None, tuple((k, None) for k in aliased)))
    pairs = [
        (j, k)
        for j, x in enumerate(program.inputs)
        for k, y in enumerate(program.inputs)
        if j != k and x.alias is None and y.alias is None and (x.dtype, x.shape) == (y.dtype, y.shape) and not x.grad and not y.grad
    ]
    if pairs and rng.random() < 0.5:
        j, k = rng.choice(pairs)
        out.append(Variant(None, ((k, (j, "x")),)))
    return [v for v in out if is_valid(program, v)]


def is_valid(program: Program, variant: Variant) -> bool:
    try:
        arguments = program.arguments("cpu", variant)
        with DefinedWrites():
            program.build("cpu").function(*arguments)
        return all(x.numel() <= MOST for x in arguments)
    except Exception:
        return False


def describe(program: Program) -> list[str]:
    """What counts beside steps."""
    out = [f"theme {program.theme}"]
    for i in program.inputs:
        out += [f"dtype {i.dtype}", f"values {i.values}"]
        out.append(f"alias {i.alias[1]}" if i.alias else f"layout {i.layout}")
        if i.grad and i.layout in SHARED:
            out.append("gradient of a tensor that shares memory with itself")
    if program.trains:
        out.append(f"tangent {program.tangent}")
    if program.dynamic:
        out.append("dynamic")
    for v in program.variants:
        out.append("call with other sizes" if v.sizes else "call with other aliases")
    if program.variants and program.resets:
        out.append("reset between calls")
    return out
