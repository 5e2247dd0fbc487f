"""Programs drawn by chance, compiled and compared with eager.

usage: random_programs.py [--seeds FIRST..LAST] [--workers W] [--device D] [--seconds S] [--show SEED]

A program is a function of a few tensors: views, writes into views, reductions, products, indexing, joins, conversions, in any
order, over small and odd shapes. Eager tells which steps are valid while a program is drawn, and what it computes. Results,
arguments that were written, strides and gradients are compared; where rounding matters, with the same program in float64.
Programs whose eager results are far from float64 (a comparison that rounding turned) are counted as unstable, and what no backend
compiles as refused.
What fails is made shorter, as long as it fails, and printed as Python. Exit code 1 when something failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import random
import sys
import time
import traceback
import types
import warnings
from collections import Counter
from typing import Any, Callable

import installed  # noqa: F401
import torch

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
# Elements of a value: programs are to be many, not large.
MOST = 20_000
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")

# Steps by the dtypes they take: {x} is a float, {i} an integer, {b} a bool, {a} anything; {d} a dimension of the value before it,
# {n} a small integer, {k} a size, {s} a number. A name that stands twice is one value.
POINTWISE = """
{x}.exp().clamp(max=50)|{x}.sin()|{x}.tanh()|{x}.sigmoid()|{x}.abs().sqrt()|torch.relu({x})|F.gelu({x})|F.silu({x})|{x}.square()
-{a:n}|{x}.reciprocal().clamp(-9, 9)|{x}.floor()|{x}.round()|{x}.log1p().nan_to_num(0.5)|{x}.erf()|{x}.sign()|{x}.clamp(-1, 1)
{a:n} + {a:n}|{a:n} - {a:n}|{a:n} * {a:n}|{a:n} + {s}|{a:n} * {s}|{s} - {a:n}|torch.maximum({a}, {a})|torch.minimum({a}, {a})
{x} / ({x}.abs() + 1)|torch.atan2({x}, {x})|torch.hypot({x}, {x})|torch.where({b}, {a}, {a})|torch.where({a} > {a}, {x}, {x})
{a} > {a}|{a} == {a}|{a} <= {s}|~{b}|{b} & {b}|{b} | {b}|{x}.isnan()|{x}.lerp({x}, 0.3)|torch.addcmul({x}, {x}, {x}, value=0.5)
{i} // ({i}.abs() + 1)|{i} % ({i}.abs() + 1)|{i} & {i}|{i} ^ {i}|{i} >> 1|{i} << 1|{a}.masked_fill({b}, {n})|{x}.copysign({x})
{a}.to(torch.{t})|{a}.float()|{x}.long()|{a}.bool()|{a}.clone()|{a}.contiguous()|{x}.detach()|torch.logical_and({a}, {a})
F.dropout({x}, 0.5, training=False)|F.hardtanh({x})|F.softplus({x})|F.leaky_relu({x}, 0.1)|torch.zeros_like({a})|{x}.new_ones({k})
"""
REDUCTIONS = """
{a}.sum({d})|{a}.sum({d}, keepdim=True)|{x}.mean({d})|{x}.mean({d}, keepdim=True)|{a:n}.amax({d})|{a:n}.amin({d}, keepdim=True)|{a}.sum()
{x}.mean()|{a:n}.max()|{x}.var({d}, unbiased=False)|{x}.std({d}, unbiased=False, keepdim=True)|{x}.softmax({d})|{x}.log_softmax({d})
{x}.logsumexp({d})|{a:n}.argmax({d})|{a:n}.argmin({d}, keepdim=True)|{a}.any({d})|{a}.all({d})|{a}.prod({d})|{a}.cumsum({d})|{x}.cummax({d})[0]
{x}.norm(dim={d}, keepdim=True)|F.layer_norm({x}, {x}.shape[-1:])|F.normalize({x}, dim={d})|{a}.count_nonzero({d})|{a:n}.sort({d})[0]|{a:n}.sort({d}, stable=True)[1]
{x}.kthvalue(1, {d})[0]|{a:n}.max({d})[1]|{x}.cumprod({d}).clamp(-9, 9)|F.rms_norm({x}, {x}.shape[-1:])|{x}.sum((0, -1))|{x}.median({d})[0]
F.mse_loss({x}, {x}.detach() * 0.5)|F.smooth_l1_loss({x}, {x}, reduction="none")|{a:n}.aminmax(dim={d}).max|{x}.logcumsumexp({d})
"""
VIEWS = """
{a}.transpose({d}, {d})|{a}.flip({d})|{a}.unsqueeze({d})|{a}.squeeze()|{a}.squeeze({d})|{a}.flatten()|{a}.reshape(-1)|{a}.narrow({d}, 0, 1)
{a}[..., ::2]|{a}[1:]|{a}[:-1]|{a}[0]|{a}[-1]|{a}[..., None, :]|{a}[None]|{a}[..., 0]|{a}.select({d}, -1)|{a}.diagonal()|{a}.movedim({d}, {d})
{a}.expand({k}, *{a}.shape)|{a}.repeat({n0}, *[1] * ({a}.dim() - 1))|{a}.roll({n}, {d})|{a}.roll({n})|{a}.unfold({d}, 2, 1)|{a}.t()|{a}.tril()
{a}.triu({n})|{a}.repeat_interleave(2, {d})|{a}.chunk(2, {d})[-1]|{a}.split(2, {d})[0]|{a}.unbind({d})[0]|{a}.view(-1)|{a}.mT|{a}.flatten(0, 1)
F.pad({a}, (1, 2))|F.pad({a}, (0, 0, 1, 0), value={n})|F.pad({a}, (-1, 1))|F.pad({x}[None], (1, 1), mode="reflect")[0]|{a}.rot90()|{a}.swapaxes(0, -1)
torch.cat([{a}, {a}], {d})|torch.stack([{a}, {a}], {d})|torch.cat([{a}, {a}[:1]])|{a}.as_strided((2, 2), (2, 1))|{a}.view_as({a})|{a}.broadcast_to({a}.shape)
{a}.reshape(1, -1).expand(3, -1)|torch.broadcast_tensors({a}, {a})[0]|{a}.unflatten(-1, (-1, 1))|F.pad({x}[None], (2, 0), mode="replicate")[0]
"""
INDEXING = """
{a}[{i}.abs().flatten()[:5] % {a}.shape[0]]|{a}.index_select({d}, torch.tensor([0, 0], device=dev))|{a}.gather({d}, torch.zeros_like({a}, dtype=torch.int64))
{a}.gather(0, ({i}.long() % {a}.shape[0]))|{x}.index_add(0, torch.zeros({x}.shape[0], dtype=torch.int64, device=dev), {x})|{a}[..., torch.arange({a}.shape[-1], device=dev).flip(0)]
{x}.scatter_add(0, torch.zeros_like({x}, dtype=torch.int64), {x})|{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64)[..., :1], {n})
{a}.index_put((torch.tensor([0, -1], device=dev),), {a}[:1])|{x}.index_put((torch.tensor([0, 0], device=dev),), {x}[:1], accumulate=True)|F.embedding({i}.long() % {x}.shape[0], {x})
{a}.index_fill({d}, torch.tensor([0], device=dev), {n})|{a}.take({i}.long().abs() % {a}.numel())|torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.0], device=dev, dtype={x}.dtype))|F.one_hot({i}.long() % 4, 4)
{a}[torch.tensor([0], device=dev), ..., torch.tensor([-1], device=dev)]|torch.searchsorted({x}.sort()[0], {x})|{x}.scatter_reduce(0, torch.zeros_like({x}, dtype=torch.int64), {x}, "amax")
{a}.index_copy({d}, torch.tensor([0], device=dev), {a}.narrow({d}, 0, 1))|{a}.masked_fill({a} > {n}, {n})|torch.arange({a}.shape[0], device=dev)|torch.full_like({x}, {s})
"""
PRODUCTS = """
{x} @ {x}|{x} @ {x}.mT|{x}.mT @ {x}|F.linear({x}, {x})|torch.einsum("...i,...i->...", {x}, {x})|torch.outer({x}.flatten()[:7], {x}.flatten()[:5])
F.conv1d({x}.reshape(1, 1, -1), torch.ones(2, 1, 3, device=dev, dtype={x}.dtype) * 0.5, padding=1)|torch.baddbmm({x}, {x}, {x})|F.linear({x}, {x}, {x})
F.max_pool1d({x}.reshape(1, 1, -1), 2, ceil_mode=True)|F.avg_pool1d({x}.reshape(1, 1, -1), 3, 1, 1)|torch.addmm({x}, {x}, {x}.mT)|{x}.flatten().dot({x}.flatten())
F.scaled_dot_product_attention({x}[None], {x}[None], {x}[None])[0]|F.interpolate({x}.reshape(1, 1, -1), scale_factor=2.0)|F.group_norm({x}.reshape(1, 2, -1), 2)
"""
# Statements: what they write is a value of the program or an argument.
WRITES = """
{a}.add_({n})|{x}.mul_(0.5)|{a}.copy_({a})|{a}[0] = {n}|{a}[..., ::2] += {n}|{a}[1:] = {a}[:1]|{a}.transpose({d}, {d}).add_({a})|{a}.zero_()|{x}.relu_()|{x}.clamp_(-1, 1)
{a}.flatten()[0] = {n}|{a}.diagonal().fill_({n})|{a}[{b}] = {n}|{a}.masked_fill_({b}, {n})|{a}.select({d}, 0).mul_({n})|{x}.sub_({x})|{a}.unsqueeze({d}).add_({n})|{x}.sigmoid_()
{a}.index_fill_({d}, torch.tensor([0], device=dev), {n})|{x}.scatter_add_(0, torch.zeros_like({x}, dtype=torch.int64), {x})|{a}.fill_({n})|{a}.narrow({d}, 0, 1).copy_({a}.narrow({d}, -1, 1))
{x}.index_add_(0, torch.zeros({x}.shape[0], dtype=torch.int64, device=dev), {x})|{a}.view(-1)[::3] = {n}|{a}.t().mul_({n})|{a}[-1:].copy_({a}[:1])|{x}.addcmul_({x}, {x})
"""
KINDS = {name: [s for line in text.strip().splitlines() for s in line.split("|")] for name, text in
         dict(pointwise=POINTWISE, reduction=REDUCTIONS, view=VIEWS, index=INDEXING, product=PRODUCTS, write=WRITES).items()}
WEIGHTS = dict(pointwise=8, reduction=4, view=6, index=3, product=2, write=3)


@dataclasses.dataclass
class Input:
    """An argument: what it holds follows from its place in the program and the seed."""

    dtype: str
    shape: tuple[int, ...]
    layout: str
    exact: bool
    grad: bool

    def make(self, seed: int, device: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = self.shape
        if self.layout == "transposed" and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        elif self.layout == "stepped" and shape:
            shape = (*shape[:-1], 2 * shape[-1])
        elif self.layout == "expanded" and shape:
            shape = (1, *shape[1:])
        if self.dtype == "bool":
            x = torch.rand(shape, generator=generator) > 0.5
        elif self.dtype in INTEGERS:
            x = torch.randint(0 if self.dtype == "uint8" else -9, 10, shape, generator=generator)
        elif self.exact:
            x = torch.randint(-4, 5, shape, generator=generator) / 2
        else:
            x = torch.randn(shape, generator=generator)
        x = x.to(getattr(torch, self.dtype)).to(device)
        if self.layout == "transposed" and len(shape) > 1:
            x = x.mT
        elif self.layout == "stepped" and shape:
            x = x[..., ::2]
        elif self.layout == "expanded" and shape:
            x = x.expand(self.shape)
        return x.requires_grad_() if self.grad else x


@dataclasses.dataclass
class Program:
    seed: int
    inputs: list[Input]
    lines: list[str]
    results: list[str]
    dynamic: bool

    def text(self) -> str:
        names = ", ".join(f"a{k}" for k in range(len(self.inputs)))
        body = [*self.lines, f"return ({''.join(r + ', ' for r in self.results)})"]
        return f"def program({names}):\n" + "".join(f"    {line}\n" for line in body)

    def function(self, device: str) -> Callable[..., Any]:
        # Dynamo looks for what a function names in the module that it says it is of.
        module = types.ModuleType(f"program_{self.seed}_on_{device}")
        sys.modules[module.__name__] = module
        vars(module).update(torch=torch, F=torch.nn.functional, dev=device)
        exec(compile(self.text(), f"<program {self.seed}>", "exec"), vars(module))
        return module.program

    def arguments(self, device: str) -> list[torch.Tensor]:
        return [i.make(1000 * self.seed + k, device) for k, i in enumerate(self.inputs)]


def draw(seed: int) -> Program:
    """The program of a seed. Steps are tried on the CPU: a GPU that met an index out of range does nothing afterwards."""
    rng = random.Random(seed)
    trains = rng.random() < 0.3
    exact = rng.random() < 0.4
    inputs = []
    base = [rng.choice(SIZES) for _ in range(4)]
    first = rng.choices(FLOATS, (12, 2, 2, 2))[0]
    for k in range(rng.randint(1, 4)):
        rank = rng.choices((0, 1, 2, 3, 4), (1, 3, 6, 4, 2))[0]
        shape = tuple(base[-rank:] if rank and rng.random() < 0.7 else [rng.choice(SIZES) for _ in range(rank)])
        shape = tuple(1 if rng.random() < 0.1 else 0 if rng.random() < 0.01 else n for n in shape)
        while torch.Size(shape).numel() > MOST // 4:
            shape = shape[1:]
        dtype = first if k == 0 or rng.random() < 0.6 else rng.choice(FLOATS + INTEGERS + ("bool",))
        layout = rng.choices(("plain", "transposed", "stepped", "expanded"), (8, 1, 1, 0 if trains else 1))[0]
        inputs.append(Input(dtype, shape, layout, exact, trains and dtype in FLOATS and layout == "plain"))
    program = Program(seed, inputs, [], [], rng.random() < 0.2)
    values = {f"a{k}": x for k, x in enumerate(program.arguments("cpu"))}
    wanted, tries = rng.randint(2, 14), 0
    while len(program.lines) < wanted and tries < 400:
        tries += 1
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        text = fill(rng, rng.choice(KINDS[kind]), values)
        if text is None:
            continue
        name = f"v{len(program.lines)}"
        line = text if kind == "write" else f"{name} = {text}"
        # A step that fails half-way may have written: it is tried on copies that share what the values share.
        trial = Program(seed, inputs, [*program.lines, line], [], False)
        try:
            after = run_all(trial)
        except Exception:
            continue
        if kind != "write":
            x = after[name]
            if not isinstance(x, torch.Tensor) or x.numel() > MOST or x.dtype.is_complex:
                continue
        values = {n: x for n, x in after.items() if isinstance(x, torch.Tensor)}
        program.lines.append(line)
    last = [n for n in values if n.startswith("v")]
    program.results = sorted({*last[-2:], *rng.sample(last, min(len(last), 2))}, key=lambda n: int(n[1:]))
    return program


def run_all(program: Program) -> dict[str, Any]:
    """Every value after the program."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "dev": "cpu"}
    scope.update((f"a{k}", x) for k, x in enumerate(program.arguments("cpu")))
    exec("\n".join(program.lines), scope)
    return {n: x for n, x in scope.items() if n[0] in "av" and n[1:].isdigit()}


def fill(rng: random.Random, template: str, values: dict[str, torch.Tensor]) -> str | None:
    """A step with values and numbers in its places; later values are drawn more often."""
    out, at, latest = "", 0, None
    while (start := template.find("{", at)) >= 0:
        end = template.index("}", start)
        out += template[at:start]
        hole, at = template[start + 1 : end], end + 1
        if hole[0] in "xiba":
            fits = [n for n, x in values.items() if suits(hole, x)]
            if not fits:
                return None
            latest = rng.choices(fits, range(1, len(fits) + 1))[0]
            # Several holes of one step often mean the same value, so that shapes fit.
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
            out += str(rng.choice((2, 0.5, -1, 3, 0.25, -2)))
        elif hole == "t":
            out += rng.choice(FLOATS + INTEGERS)
    return out + template[at:]


def suits(hole: str, x: torch.Tensor) -> bool:
    is_bool = x.dtype == torch.bool
    return {"x": x.is_floating_point(), "i": not is_bool and not x.is_floating_point(), "b": is_bool, "a": True, "a:n": not is_bool}[hole]


@dataclasses.dataclass
class Ran:
    """What a run gave: results, arguments afterwards, gradients."""

    tensors: list[torch.Tensor | None]
    strides: list[tuple[int, ...]]


def strides(x: torch.Tensor) -> tuple[int, ...]:
    """Those that tell where an element lies."""
    return tuple(s for s, n in zip(x.stride(), x.shape) if n > 1) if x.numel() else ()


def execute(f: Callable[..., Any], arguments: list[torch.Tensor]) -> Ran:
    leaves = [x for x in arguments if x.requires_grad]
    results = f(*arguments)
    grads: list[torch.Tensor | None] = []
    outs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if outs and leaves:
        loss = sum(r.double().sin().sum() for r in outs)
        grads = list(torch.autograd.grad(loss, leaves, allow_unused=True))
    tensors = [r.detach() if isinstance(r, torch.Tensor) else torch.tensor(r) for r in results]
    return Ran([*tensors, *(x.detach() for x in arguments), *grads], [strides(t) for t in tensors])


def in_float64(program: Program, device: str) -> Ran | None:
    """The same with all floats wide; None where that is another program."""
    wide = dataclasses.replace(
        program,
        inputs=[dataclasses.replace(i, dtype="float64") if i.dtype in FLOATS else i for i in program.inputs],
        lines=[line.replace(".float()", ".double()") for line in program.lines],
    )
    for narrow in FLOATS:
        wide.lines = [line.replace(f"torch.{narrow})", "torch.float64)") for line in wide.lines]
    arguments = [
        a.detach().double().requires_grad_(a.requires_grad) if a.is_floating_point() else a for a in program.arguments(device)
    ]
    try:
        return execute(wide.function(device), arguments)
    except Exception:
        return None


EPS = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-9}


def declared(program: Program) -> list[tuple[int, ...]] | None:
    """The strides that PyTorch declares to compilers: in places others than eager gives."""
    from torch._subclasses import FakeTensorMode

    try:
        with FakeTensorMode() as mode, torch.no_grad():
            results = program.function("cpu")(*(mode.from_tensor(x.detach()) for x in program.arguments("cpu")))
        return [strides(r) if isinstance(r, torch.Tensor) else () for r in results]
    except Exception:
        return None


def compare(got: Ran, eager: Ran, wide: Ran | None, program: Program) -> tuple[str | None, bool]:
    """What differs, and whether eager itself is far from float64."""
    if got.strides != eager.strides and got.strides != declared(program):
        return f"strides {got.strides}, eager's {eager.strides}", False
    # Rounding to the narrowest type of the program shows everywhere behind it.
    eps = max((EPS[t.dtype] for t in eager.tensors if t is not None and t.dtype in EPS), default=1e-9)
    for k, (g, e) in enumerate(zip(got.tensors, eager.tensors)):
        if (g is None) != (e is None):
            return f"tensor {k} is {g}, eager's {e}", False
        if g is None:
            continue
        if g.dtype != e.dtype or g.shape != e.shape:
            return f"tensor {k} is {g.dtype}{list(g.shape)}, eager's {e.dtype}{list(e.shape)}", False
        if torch.equal(g, e):
            continue
        if wide is None or wide.tensors[k] is None or wide.tensors[k].shape != e.shape:
            w = e
        else:
            w = wide.tensors[k]
        g, e, w = g.double(), e.double(), w.double()
        near = lambda a, b: torch.isclose(a, b, rtol=8 * eps, atol=8 * eps * max(1.0, scale(b)), equal_nan=True)
        if not near(e, w).all():
            return None, True
        if not (near(g, e) | near(g, w)).all():
            bad = ~(near(g, e) | near(g, w))
            return f"tensor {k}: {int(bad.sum())} of {bad.numel()} elements differ, {g[bad][:3].tolist()}, eager's {e[bad][:3].tolist()}", False
    return None, False


def scale(x: torch.Tensor) -> float:
    x = x[x.isfinite()]
    return float(x.abs().max()) if x.numel() else 1.0


def check(program: Program, device: str) -> str:
    """`right`, `unstable`, `refused`, or what is wrong."""
    torch._dynamo.reset()
    try:
        eager = execute(program.function(device), program.arguments(device))
    except Exception:
        return "unstable"
    options = {"strict": True}
    try:
        compiled = torch.compile(program.function(device), backend="inrush", dynamic=True if program.dynamic else None, options=options)
        got = execute(compiled, program.arguments(device))
        again = execute(compiled, program.arguments(device))
    except Exception as error:
        # What no backend compiles is not ours.
        torch._dynamo.reset()
        try:
            other = torch.compile(program.function(device), backend="aot_eager", dynamic=True if program.dynamic else None)
            execute(other, program.arguments(device))
        except Exception as theirs:
            if type(theirs) is type(error):
                return "refused"
        return f"{type(error).__name__}: {str(error)[:600]}"
    wide = in_float64(program, device)
    for ran, which in ((got, ""), (again, "second call: ")):
        wrong, unstable = compare(ran, eager, wide, program)
        if wrong:
            torch._dynamo.reset()
            other = torch.compile(program.function(device), backend="aot_eager", dynamic=True if program.dynamic else None)
            theirs, _ = compare(execute(other, program.arguments(device)), eager, wide, program)
            return "unstable" if theirs == wrong else which + wrong
        if unstable:
            return "unstable"
    return "right"


def is_wrong(verdict: str) -> bool:
    return verdict not in ("right", "unstable", "refused")


def shorter(program: Program, device: str, deadline: float) -> Program:
    """The program without the lines that it fails without."""
    best = program
    if program.dynamic:
        trial = dataclasses.replace(program, dynamic=False)
        if is_wrong(check(trial, device)):
            best = trial
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        candidates = [dataclasses.replace(best, results=[r]) for r in best.results if len(best.results) > 1]
        candidates += [dataclasses.replace(best, lines=best.lines[:k] + best.lines[k + 1 :]) for k in reversed(range(len(best.lines)))]
        for trial in candidates:
            try:
                run_all(trial)
                wrong = is_wrong(check(trial, device))
            except Exception:
                continue
            if wrong:
                best, progress = trial, True
                break
    return best


def attempt(seed: int, device: str) -> tuple[int, str, str]:
    """Seed, verdict and the shortened program where it is wrong."""
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = draw(seed)
            verdict = check(program, device)
            if not is_wrong(verdict):
                return seed, verdict, ""
            short = shorter(program, device, time.monotonic() + 60)
            final = check(short, device)
        made = "".join(f"# a{k}: {i}\n" for k, i in enumerate(short.inputs))
        return seed, final if is_wrong(final) else verdict, made + ("# dynamic\n" if short.dynamic else "") + short.text()
    except Exception:
        return seed, "the script failed: " + traceback.format_exc()[-600:], ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0..199", help="`FIRST..LAST`")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, help="draw no more programs after so many")
    parser.add_argument("--show", type=int, help="print the program of this seed and check it")
    options = parser.parse_args()
    if options.show is not None:
        program = draw(options.show)
        print(*(f"# a{k}: {i}" for k, i in enumerate(program.inputs)), program.text(), sep="\n")
        print(check(program, options.device))
        return 0
    first, last = (int(n) for n in options.seeds.split(".."))
    end = time.monotonic() + options.seconds if options.seconds else None
    counts: Counter[str] = Counter()
    seeds = iter(range(first, last + 1))
    with concurrent.futures.ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn"), max_tasks_per_child=200) as pool:
        running: set[concurrent.futures.Future] = set()
        while True:
            while len(running) < 2 * options.workers and (end is None or time.monotonic() < end):
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(attempt, seed, options.device))
            if not running:
                break
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                seed, verdict, text = future.result()
                wrong = is_wrong(verdict)
                counts["wrong" if wrong else verdict] += 1
                if wrong:
                    print(f"seed {seed}: {verdict}\n{text}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
