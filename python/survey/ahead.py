"""Models ahead of time: exported, compiled into a package, loaded and run."""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
import zipfile
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from survey.errors import FAR, error, float64_everywhere, widen, widened
from survey.models import build
from survey.row import Row

# How often a model that is far from float64 is run with other inputs: one value that rounds to the other side of a step moves
# a result, a fault moves all.
AGAIN = 2
# Where float64 cannot be had, what a model may differ from eager.
WITHOUT_FLOAT64 = 1e-3


class Tensors(torch.nn.Module):
    """A model that gives its results as a flat tuple."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in tree_leaves(self.model(*inputs)) if isinstance(x, torch.Tensor))


def ahead(name: str, args: argparse.Namespace) -> Row:
    import inrush

    torch.manual_seed(0)
    model, inputs = build(name, args.size)
    model = Tensors(model)
    try:
        with torch.no_grad():
            program = torch.export.export(model, inputs, strict=False)
    except Exception as problem:
        return Row(name, "no export", in_a_line(problem))
    with tempfile.TemporaryDirectory(prefix="inrush-survey-") as folder:
        path = os.path.join(folder, "model.inrush")
        start = time.perf_counter()
        try:
            inrush.aot_compile(program, path)
        except inrush.Error as problem:
            return Row(name, "failed" if "Internal" in type(problem).__name__ else "refused", in_a_line(problem))
        took = time.perf_counter() - start
        loaded = inrush.load(path)
        counts = f"compiled in {took:.1f} s, {kernels(path)}"
        wide = widened(model)
        pairs = []
        for n in range(1 + AGAIN):
            far, near = errors(model, wide, loaded, inputs if n == 0 else other(inputs, n))
            pairs.append((far, near))
            if far <= FAR * near + 1e-6:
                break
        is_right = [far <= FAR * near + 1e-6 for far, near in pairs]
        verdict = "right" if is_right[0] else "far" if any(is_right) else "wrong"
        numbers = "; ".join(f"error {far:.1e}, eager's {near:.1e}" for far, near in pairs)
        return Row(name, verdict, f"{numbers}, {counts}")


def errors(model: torch.nn.Module, wide: torch.nn.Module, loaded: Any, inputs: tuple) -> tuple[float, float]:
    """Errors of the package and of eager, against float64 where the model runs in it, else against eager."""
    with torch.no_grad():
        eager = list(model(*inputs))
        got = list(loaded(*inputs))
        try:
            with float64_everywhere():
                want = list(wide(*widen(inputs)))
        except Exception:
            return error(got, eager), WITHOUT_FLOAT64
    return error(got, want), error(eager, want)


def other(inputs: tuple, n: int) -> tuple:
    """Inputs of the same kind with other values."""

    def change(x: torch.Tensor) -> torch.Tensor:
        if x.is_floating_point() and x.numel() > 1:
            generator = torch.Generator().manual_seed(n)
            return torch.randn(x.shape, generator=generator) * x.std() + x.mean()
        return x.roll(n, -1) if x.dim() else x

    return tree_map_only(torch.Tensor, change, inputs)


def kernels(path: str) -> str:
    """How many kernels and products a package has."""
    with zipfile.ZipFile(path) as package:
        program = json.loads(package.read("inrush.json"))["targets"][0]["Cpu"]["program"]
    return f"{len(program['kernels'])} kernels, {len(program['steps'])} steps"


def in_a_line(problem: BaseException) -> str:
    """What an exception says, in a line, without the files and lines of this run."""
    text = " ".join(line.strip() for line in str(problem).splitlines()[:9] if line.strip() and not re.search(r"\.py:\d+ in ", line))
    return f"{type(problem).__name__}: {re.sub(r'/[^ ]*program.pt2: [^ ]*: ', '', text)[:300]}"
