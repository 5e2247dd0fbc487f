"""A model that calls operators of its own; run it to export `model.pt2` with sample inputs and what eager gives.

Here the operators are Python. Where the package runs, `operators.c` has their functions.
"""

from __future__ import annotations

import pathlib

import torch

FOLDER = pathlib.Path(__file__).resolve().parent


@torch.library.custom_op("example::scale", mutates_args=())
def scale(x: torch.Tensor, by: float = 2.0, rounding: str = "none", dims: list[int] | None = None) -> torch.Tensor:
    """Multiplies; with `dims` only rows of these numbers."""
    out = x.clone()
    rows = list(range(len(x))) if dims is None else dims
    out[rows] = out[rows] * by
    return out.round() if rounding == "even" else out


@scale.register_fake
def _(x, by=2.0, rounding="none", dims=None):
    return torch.empty_like(x)


@torch.library.custom_op("example::count", mutates_args=("seen",))
def count(seen: torch.Tensor, x: torch.Tensor, by: int = 1) -> None:
    """Counts rows whose sum is positive."""
    seen += by * (x.sum(1) > 0).sum()


@torch.library.custom_op("example::above", mutates_args=())
def above(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Gives the elements above a limit: their number depends on the data."""
    return x[x > limit].clone()


@above.register_fake
def _(x, limit):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("example::blend", mutates_args=())
def blend(items: list[torch.Tensor], weights: list[float], flip: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Adds tensors with weights; gives each weighted one too, the last first with `flip`."""
    parts = [i * w for i, w in zip(items, weights, strict=True)]
    total = torch.stack(parts).sum(0)
    return total, parts[::-1] if flip else parts


@blend.register_fake
def _(items, weights, flip):
    return torch.empty_like(items[0]), [torch.empty_like(i) for i in items]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        y = scale(self.linear(x).relu(), 3.0, dims=[0, 1])
        count(self.seen, y - 0.5)
        total, parts = blend([y, x.contiguous(), y * x], [0.5, 2.0, -1.0], True)
        return total + 1, parts[0] - parts[2], above(total, 0.25) * 2, self.seen * 1


def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    return torch.export.export(Model().eval(), (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))


if __name__ == "__main__":
    from safetensors.torch import save_file

    program = exported()
    torch.export.save(program, FOLDER / "model.pt2")
    x = torch.randn(5, 6)
    save_file({"0": x}, FOLDER / "model.inputs.safetensors")
    with torch.no_grad():
        wanted = program.module()(x)
    save_file({str(k): v.contiguous() for k, v in enumerate(wanted)}, FOLDER / "model.expect.safetensors")
