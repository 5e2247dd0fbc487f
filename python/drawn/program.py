"""A drawn program: its arguments, its modules and its function, all as Python text that runs by itself."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types
from typing import Any, Callable

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")

# Numbers of modules that programs are built in.
BUILDS = itertools.count()

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

dev = {device!r}


def G(seed):
    return torch.Generator().manual_seed(seed)

"""

# Memory (`s`) and view of it (`x`) by layout, for a shape. The rank that a layout needs; below it the input is plain.
RANKS = dict(
    plain=0, transposed=2, reversed=2, stepped=1, gapped=1, offset=0, part=1, expanded=1, expanded_last=1, overlapping=2,
    channels_last=4, channels_last_gapped=4, negated=0, imaginary=0,
)  # fmt: skip
# Layouts in which two elements share memory: eager refuses most writes.
SHARED = ("expanded", "expanded_last", "overlapping")
# Numbers that halves cannot hold, zeros, and what is equal to the numbers that steps compare with.
SPECIAL = "0.1, 0.7, -0.1, 0.3, 0.0, -0.0, 1.0, 0.5, -0.5, 2.0, 3.0, 7.0"


def layout(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """The shape of the memory and the view of it."""
    if len(shape) < RANKS[name]:
        name = "plain"
    if name == "transposed":
        return (*shape[:-2], shape[-1], shape[-2]), "s.mT"
    if name == "reversed":
        return shape[::-1], f"s.permute({', '.join(str(d) for d in reversed(range(len(shape))))})"
    if name == "stepped":
        return (*shape[:-1], 2 * shape[-1]), "s[..., ::2]"
    if name == "gapped":
        return tuple(n + 1 for n in shape), f"s[{', '.join(['1:'] * len(shape))}]"
    if name == "offset":
        return (torch.Size(shape).numel() + 3,), f"s[3:].view({shape})"
    if name == "part":
        return (shape[0] + 2, *shape[1:]), f"s[:{shape[0]}]"
    if name == "expanded":
        return (1, *shape[1:]), f"s.expand({shape})"
    if name == "expanded_last":
        return (*shape[:-1], 1), f"s.expand({shape})"
    if name == "overlapping":
        # Each row begins with the last element of the one before it.
        strides, step = [], 1
        for n in reversed(shape):
            strides.append(step)
            step *= max(n - 1, 1)
        length = 1 + sum(max(n - 1, 0) * s for n, s in zip(reversed(shape), strides))
        return (length,), f"s.as_strided({shape}, {tuple(reversed(strides))})"
    if name == "channels_last":
        form = "torch.channels_last" if len(shape) == 4 else "torch.channels_last_3d"
        return shape, f"s.contiguous(memory_format={form})" if len(shape) in (4, 5) else "s"
    if name == "channels_last_gapped":
        last = f"s.permute(0, {len(shape) - 1}, {', '.join(str(d) for d in range(1, len(shape) - 1))})[:, 1:]"
        return (shape[0], *shape[2:], shape[1] + 1), last
    if name == "negated":
        return shape, "torch._neg_view(s)"
    if name == "imaginary":
        return (2, *shape), "torch.complex(s[0], s[1]).conj().imag"
    return shape, "s"


@dataclasses.dataclass(frozen=True)
class Input:
    """An argument. What it holds follows from its place in the program and the seed."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = "plain"
    values: str = "normal"
    grad: bool = False
    # Which argument it is an alias of, and the view: an expression over that argument `x` and the memory under it, `s`.
    alias: tuple[int, str] | None = None
    # Of each dimension the symbol that it is the size of, for calls with other sizes.
    symbols: tuple[int | None, ...] = ()

    def code(self, k: int, seed: int, sizes: tuple[int, ...] | None, wide: bool) -> list[str]:
        if self.alias:
            j, view = self.alias
            view = view.replace("s", f"s{j}") if view == "s" else view.replace("s.", f"s{j}.").replace("s[", f"s{j}[")
            return [f"a{k} = {replace_name(view, 'x', f'a{j}')}"]
        shape = self.shape
        if sizes is not None:
            shape = tuple(n if s is None else sizes[s] for n, s in zip(shape, self.symbols))
        name = self.layout
        if name in ("negated", "imaginary") and self.dtype not in ("float32", "float64"):
            name = "plain"
        memory, view = layout(name, shape)
        generator = f"generator=G({seed})"
        if self.dtype == "bool":
            values = f"(torch.rand({memory}, {generator}) > 0.5)"
        elif self.dtype in INTEGERS:
            values = f"torch.randint({0 if self.dtype == 'uint8' else -9}, 10, {memory}, {generator})"
        elif self.values == "exact":
            values = f"(torch.randint(-4, 5, {memory}, {generator}) / 2)"
        elif self.values == "special":
            values = f"torch.tensor([{SPECIAL}])[torch.randint(0, 12, {memory}, {generator})]"
        else:
            values = f"torch.randn({memory}, {generator})"
        widen = ".double()" if wide and self.dtype in FLOATS else ""
        lines = [f"s{k} = {values}.to(torch.{self.dtype}){widen}.to(dev)"]
        view = view.replace("s.", f"s{k}.").replace("s[", f"s{k}[").replace("(s)", f"(s{k})") if view != "s" else f"s{k}"
        return [*lines, f"a{k} = {view}" + (".detach().requires_grad_()" if self.grad else "")]


def replace_name(text: str, name: str, other: str) -> str:
    """An expression with a variable of one letter renamed."""
    import re

    return re.sub(rf"(?<![\w.]){name}(?!\w)", other, text)


@dataclasses.dataclass(frozen=True)
class Variant:
    """How a call differs from the first one: other sizes, other aliases among the arguments."""

    sizes: tuple[int, ...] | None = None
    aliases: tuple[tuple[int, tuple[int, str] | None], ...] = ()


@dataclasses.dataclass
class Program:
    seed: int
    inputs: list[Input]
    lines: list[str]
    results: list[str]
    modules: list[str] = dataclasses.field(default_factory=list)
    theme: str = "general"
    dynamic: bool = False
    trains: bool = False
    draws: bool = False
    # Single steps on exact values: nothing is excused by rounding.
    tight: bool = False
    tangent: str = "sin"
    variants: list[Variant] = dataclasses.field(default_factory=list)
    # Dynamo forgets what it captured between the variants.
    resets: bool = False
    # What was drawn, for the counters.
    features: list[str] = dataclasses.field(default_factory=list)

    def body(self) -> str:
        names = ", ".join(f"a{k}" for k in range(len(self.inputs)))
        body = [*self.lines, f"return ({''.join(r + ', ' for r in self.results)})"]
        return f"def program({names}):\n" + "".join(f"    {line}\n" for line in body)

    def arguments_code(self, variant: Variant = Variant(), wide: bool = False) -> list[str]:
        changed = dict(variant.aliases)
        inputs = [dataclasses.replace(i, alias=changed[k]) if k in changed else i for k, i in enumerate(self.inputs)]
        order = sorted(range(len(inputs)), key=lambda k: inputs[k].alias is not None)
        return [line for k in order for line in inputs[k].code(k, 1000 * self.seed + k, variant.sizes, wide)]

    def modules_code(self, wide: bool = False) -> list[str]:
        lines = [f"torch.manual_seed({self.seed})"] if self.modules else []
        for k, text in enumerate(self.modules):
            text += f".to(dev).requires_grad_({self.trains})"
            lines.append(f"m{k} = {widened(text) if wide else text}")
        return lines

    def text(self, device: str = "cpu") -> str:
        """A file that defines `arguments(variant)`, the modules and `program`."""
        out = HEAD.format(device=device)
        for n, variant in enumerate([Variant(), *self.variants]):
            code = "".join(f"    {line}\n" for line in self.arguments_code(variant))
            out += f"\ndef arguments_{n}():\n{code}    return {', '.join(f'a{k}' for k in range(len(self.inputs)))},\n\n"
        return out + "\n" + "\n".join(self.modules_code()) + "\n\n\n" + self.body()

    def build(self, device: str, wide: bool = False) -> Built:
        # Dynamo looks for what a function names in the module that it says it is of, and keeps what it found under that name.
        module = types.ModuleType(f"program_{self.seed}_on_{device}_{next(BUILDS)}")
        sys.modules[module.__name__] = module
        prepared = HEAD.format(device=device) + "\n".join(self.modules_code(wide))
        body = widened(self.body()) if wide else self.body()
        exec(compile(prepared, f"<modules {self.seed}>", "exec"), vars(module))
        exec(compile(body, f"<program {self.seed}>", "exec"), vars(module))
        return Built.of(vars(module), self)

    def arguments(self, device: str, variant: Variant = Variant(), wide: bool = False) -> list[torch.Tensor]:
        scope: dict[str, Any] = {}
        exec(HEAD.format(device=device) + "\n".join(self.arguments_code(variant, wide)), scope)
        return [scope[f"a{k}"] for k in range(len(self.inputs))]


@dataclasses.dataclass
class Built:
    """A program's function with modules of its own."""

    function: Callable[..., Any]
    modules: list[torch.nn.Module]

    @staticmethod
    def of(scope: dict[str, Any], program: Program) -> Built:
        return Built(scope["program"], [scope[f"m{k}"] for k in range(len(program.modules))])


def widened(text: str) -> str:
    """A text with all floats wide."""
    text = text.replace(".float()", ".double()").replace(".half()", ".double()").replace(".bfloat16()", ".double()")
    for narrow in FLOATS:
        text = text.replace(f"torch.{narrow})", "torch.float64)")
    return text


def can_widen(program: Program) -> bool:
    """Returns true where the program in float64 computes the same but for rounding."""
    text = program.body() + "".join(i.alias[1] for i in program.inputs if i.alias)
    return not (program.draws or ".view(torch." in text or ".view_dtype" in text)
