"""Strides of results: what fake tensors say, which graphs are made by, against what eager gives, over PyTorch's own operator samples
in several memory formats.

usage: python -m op_db.layouts [--samples K] [--dtype D] [--direction D] [NAME ...]

Nothing is compiled, so all operators take minutes. Each difference is printed with its operands; what it takes is a line in
`layouts/rules.txt` of `inrush-aten`. Exit code 1 when there is one that `ACCEPTED`, or for gradients
`ACCEPTED_GRADIENTS`, does not name.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from op_db.samples import Cell, Sample, fresh, operators, samples

# Differences that stay, by operator.
ACCEPTED: dict[str, str] = {
    "nn.functional.max_pool1d": "without gradients eager has a kernel of its own, which PyTorch does not run on fake tensors",
    "unsafe_split": "its results are views, which its schema does not say",
    "unsafe_chunk": "its results are views, which its schema does not say",
}

_OTHER_FORMULA = "eager's formula on real tensors is another than the one that PyTorch traces"

_COMPILED_RIGHT = "fake tensors take the formula for zeros; compiled, strides are eager's"

# Likewise of gradients; `docs/differences.md` names those that compiled graphs have.
ACCEPTED_GRADIENTS: dict[str, str] = {
    "linalg.householder_product": _OTHER_FORMULA,
    "masked.prod": _COMPILED_RIGHT,
    "max.reduction_no_dim": _OTHER_FORMULA,
    "median": _OTHER_FORMULA,
    "min.reduction_no_dim": _OTHER_FORMULA,
    "nanmedian": _OTHER_FORMULA,
    "nn.functional.max_pool3d": "volumes without a batch keep channels last in eager, which PyTorch's shape function does not say",
    "ormqr": _OTHER_FORMULA,
    "prod": _COMPILED_RIGHT,
}


def channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else t


def first_innermost(t: torch.Tensor) -> torch.Tensor:
    return t.movedim(0, -1).contiguous().movedim(-1, 0) if t.dim() > 1 else t


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    if not t.dim():
        return t
    wide = t.new_empty(*t.shape[:-1], 2 * t.shape[-1])
    return wide[..., ::2].copy_(t)


def expanded(t: torch.Tensor) -> torch.Tensor:
    return t[..., :1].expand(t.shape) if t.dim() > 1 else t


FORMATS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (channels_last, transposed, first_innermost, with_gaps, expanded)


@dataclass
class Difference:
    """A result whose strides fake tensors have wrong."""

    cell: str
    sample: int
    operands: list[tuple[tuple[int, ...], tuple[int, ...] | torch.layout]]
    result: int
    shape: tuple[int, ...]
    eager: tuple[int, ...]
    fake: tuple[int, ...]

    def __str__(self) -> str:
        given = ", ".join(f"{shape} {strides}" for shape, strides in self.operands)
        return f"{self.cell} sample {self.sample} of {given}: result {self.result} {self.shape} has {self.eager}, fake tensors say {self.fake}"


def laid_out(tensors: list[torch.Tensor], form: Callable[[torch.Tensor], torch.Tensor], only: int | None) -> list[torch.Tensor] | None:
    """The tensors in another format, one of them or all; None where that changes nothing."""
    out, changed = [], False
    for k, t in enumerate(tensors):
        plain = type(t) is torch.Tensor and t.layout == torch.strided and not t.is_conj() and not t.is_neg()
        if plain and only in (None, k):
            with torch.no_grad():
                other = form(t).detach().requires_grad_(t.requires_grad)
            changed |= other.stride() != t.stride()
            t = other
        out.append(t)
    return out if changed else None


def variants(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The sample as it is; all its tensors in each format; each of the first two alone."""
    yield tensors
    for only in [None] + ([0, 1] if len(tensors) > 1 else []):
        for form in FORMATS:
            changed = laid_out(tensors, form, only)
            if changed is not None:
                yield changed


def results(s: Sample, tensors: list[torch.Tensor]) -> list[Any]:
    """What a call gives, and gradients if asked for."""
    out = pytree.tree_leaves(s(tensors))
    ends = [t for t in out if isinstance(t, torch.Tensor) and t.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    if s.direction != "backward" or not ends or not wanted:
        return out
    return out + list(torch.autograd.grad(ends, wanted, [torch.ones_like(t) for t in ends], allow_unused=True))


def differences(op: Any, cell: Cell, count: int) -> Iterator[Difference | None]:
    """For each call that could be compared the first difference, or None."""
    try:
        chosen, _ = samples(op, cell, count)
    except Exception:
        # PyTorch has none.
        return
    for s in chosen:
        for tensors in variants(s.tensors()):
            mode = FakeTensorMode()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    eager = results(s, [fresh(t) for t in tensors])
                    with mode:
                        fake = results(s, [mode.from_tensor(t) for t in tensors])
                except Exception:
                    # Eager refuses it, or PyTorch has no shape function.
                    continue
            yield first(cell, s, tensors, eager, fake)


def first(cell: Cell, s: Sample, tensors: list[torch.Tensor], eager: list[Any], fake: list[Any]) -> Difference | None:
    for k, (e, f) in enumerate(zip(eager, fake)):
        strided = all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in (e, f))
        if strided and e.shape == f.shape and e.numel() and any(n > 1 and a != b for n, a, b in zip(e.shape, e.stride(), f.stride())):
            operands = [(tuple(t.shape), t.stride() if t.layout == torch.strided else t.layout) for t in tensors]
            return Difference(str(cell), s.number, operands, k, tuple(e.shape), e.stride(), tuple(f.stride()))
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators, by name and variant; all of them by default")
    parser.add_argument("--samples", type=int, default=12, help="samples of each operator; 0: all")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--direction", default="forward", choices=("forward", "backward"))
    options = parser.parse_args()
    # Has fake tensors follow the table.
    from inrush import patches

    patches.install("fake strides")

    compared, wrong = 0, []
    known = operators()
    accepted = {**ACCEPTED, **(ACCEPTED_GRADIENTS if options.direction == "backward" else {})}
    for name in options.names or known:
        cell = Cell(name, options.dtype, options.direction)
        if not known[name].supports_dtype(getattr(torch, options.dtype), "cpu"):
            continue
        found = list(differences(known[name], cell, options.samples))
        compared += len(found)
        seen = [d for d in found if d is not None]
        if seen:
            print(f"{len(seen)} differences{', accepted: ' + accepted[name] if name in accepted else ''}, the first: {seen[0]}", flush=True)
            wrong += [name] if name not in accepted else []
    print(f"{compared} calls compared; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
