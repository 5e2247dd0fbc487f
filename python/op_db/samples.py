"""Cells of the table - operator, dtype, direction - and PyTorch's samples for each."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch
from torch.utils import _pytree as pytree

# Samples of a cell, spread over all that PyTorch has.
FORWARD, BACKWARD, OTHERS = 12, 8, 4
# Operators with more samples than a process should take in one go, and in how many parts.
PARTS = {
    "cdist": 2,
    "histogram": 2,
    "linalg.lu_solve": 2,
    "linalg.solve_triangular": 2,
    "linalg.svd": 2,
    "linalg.vector_norm": 2,
    "linspace.tensor_overload": 2,
    "logspace": 3,
    "logspace.tensor_overload": 8,
    "masked.norm": 3,
    "max_pool2d_with_indices_backward": 10,
    "nn.functional.gaussian_nll_loss": 4,
    "nn.functional.max_pool1d": 6,
    "nn.functional.max_pool2d": 10,
    "nn.functional.max_pool3d": 6,
    "nn.functional.max_unpool2d": 2,
    "nn.functional.multi_head_attention_forward": 3,
    "nn.functional.unfold": 2,
    "searchsorted": 2,
    "svd": 2,
    "unique": 6,
    "unique_consecutive": 3,
}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")


@dataclass(frozen=True)
class Cell:
    """An operator with a dtype, in a direction: `forward`, or `backward` for results and gradients."""

    name: str
    dtype: str
    direction: str = "forward"
    part: str = "1/1"
    """Which part of its samples, where they are many."""

    def share(self) -> int:
        """How many samples the table is made from."""
        if self.dtype != "float32":
            return OTHERS
        return FORWARD if self.direction == "forward" else BACKWARD

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.direction}" + (f" {self.part}" if self.part != "1/1" else "")

    @classmethod
    def parse(cls, text: str) -> Cell:
        return cls(*text.split(" "))

    def parts(self) -> list[Cell]:
        """The cell in parts that are run by themselves, when all its samples are."""
        of = PARTS.get(self.name, 1)
        return [Cell(self.name, self.dtype, self.direction, f"{k}/{of}") for k in range(1, of + 1)]


def device() -> str:
    """Where the samples are; in the environment, since workers are processes."""
    return os.environ.get("INRUSH_OP_DB_DEVICE", "cpu")


def operators() -> dict[str, Any]:
    """All of op_db, by name and variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}
    return dict(sorted(named.items()))


def cells(known: dict[str, Any]) -> list[Cell]:
    """Every cell that PyTorch has samples for: all dtypes forward, gradients in float32."""
    out = []
    for name, op in known.items():
        out += [Cell(name, d) for d in DTYPES if op.supports_dtype(getattr(torch, d), device())]
        if op.supports_autograd and torch.float32 in op.supported_backward_dtypes(device()):
            out.append(Cell(name, "float32", "backward"))
    return out


class Sample:
    """One call of an operator: a function of the tensors among its arguments."""

    def __init__(self, op: Any, sample: Any, direction: str, number: int) -> None:
        self.op = op
        self.number = number
        self.direction = direction
        self.process: Callable[[Any], Any] = sample.output_process_fn_grad
        flat, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.flat = [None if isinstance(a, torch.Tensor) else a for a in flat]
        self.places = [k for k, a in enumerate(flat) if isinstance(a, torch.Tensor)]
        self.kept = [flat[k] for k in self.places]
        self.kwargs = sample.kwargs

    def tensors(self) -> list[torch.Tensor]:
        """Fresh tensors: a call may write them. What shares memory in the sample does not here."""
        return [fresh(t) for t in self.kept]

    def arguments(self, tensors: list[torch.Tensor]) -> Any:
        """First argument, other positional ones, named ones."""
        flat = list(self.flat)
        for k, t in zip(self.places, tensors):
            flat[k] = t
        return pytree.tree_unflatten(flat, self.spec)

    def call(self, arguments: Any) -> Any:
        value, args, kwargs = arguments
        out = self.op(value, *args, **kwargs)
        return self.process(out) if self.direction == "backward" else out

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        return self.call(self.arguments(tensors))

    def widened(self) -> Sample:
        """The same call in float64, as a reference."""
        new = object.__new__(Sample)
        new.__dict__.update(self.__dict__)
        new.kept = [wide(t) for t in self.kept]
        new.flat = [torch.float64 if isinstance(a, torch.dtype) and a.is_floating_point else a for a in self.flat]
        return new


def wide(t: torch.Tensor) -> torch.Tensor:
    if not t.is_floating_point():
        return t
    return t.detach().double().requires_grad_(t.requires_grad)


def fresh(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, holes and overlaps."""
    with torch.no_grad():
        if t.layout != torch.strided or t.is_conj() or t.is_neg() or type(t) is not torch.Tensor:
            new = t.detach().clone()
        else:
            span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
            flat = t.detach().as_strided((span,), (1,)).clone() if span else t.new_empty(0)
            new = flat.as_strided(t.shape, t.stride())
    return new.requires_grad_(t.requires_grad)


def samples(op: Any, cell: Cell, count: int | None) -> tuple[list[Sample], int]:
    """Up to `count` samples (None: the cell's share; 0: all), spread over all that there are, and how many are not taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        found = list(op.sample_inputs(device(), getattr(torch, cell.dtype), requires_grad=cell.direction == "backward"))
    count = cell.share() if count is None else count
    at, of = part(cell.part)
    chosen = list(spread(list(enumerate(found)), count or len(found)))
    left = len(found) - len(chosen)
    chosen = chosen[len(chosen) * (at - 1) // of : len(chosen) * at // of]
    return [Sample(op, s, cell.direction, k) for k, s in chosen], left


def spread(items: list[Any], count: int) -> Iterator[Any]:
    """The first, the last and what lies evenly between them."""
    if len(items) <= count:
        yield from items
    elif count == 1:
        yield items[0]
    else:
        for k in range(count):
            yield items[k * (len(items) - 1) // (count - 1)]


def part(text: str) -> tuple[int, int]:
    """`2/8`: the second of eight."""
    at, of = (int(number) for number in text.split("/"))
    if not 1 <= at <= of:
        raise ValueError(f"a part is I/N with I from 1 to N, not {text}")
    return at, of


def shard(names: list[str], text: str) -> list[str]:
    """Every N-th name, from the I-th on: `2/8` is the second of eight shares."""
    at, of = part(text)
    return names[at - 1 :: of]
