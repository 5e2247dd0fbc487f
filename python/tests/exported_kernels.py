"""Modules that launch Triton kernels of users, as they are exported: for tests without a GPU and with one."""

from __future__ import annotations

import torch
import triton
from torch.export import Dim
from torch.library import triton_op, wrap_triton
from user_kernels import (
    add_kernel,
    blocks,
    device_descriptor_kernel,
    heuristic_kernel,
    rows_kernel,
    scale_kernel,
    tuned_kernel,
    tuned_warps_kernel,
)


@triton_op("inrush_exported::add", mutates_args={})
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[blocks(x.numel())](x, y, out, x.numel(), BLOCK=32)
    return out


@triton_op("inrush_exported::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, by: float) -> None:
    wrap_triton(scale_kernel)[(triton.cdiv(x.numel(), 32),)](x, x.numel(), by, BLOCK=32)


@triton_op("inrush_exported::squares", mutates_args={})
def squares(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import triton.language as tl

    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    more = torch.empty_like(x)
    grid = (x.shape[0], triton.cdiv(x.shape[1], 16))
    wrap_triton(rows_kernel)[grid](x, out, None, x.shape[0], x.shape[1], "square", tl.float64, (1, 16), True)
    wrap_triton(rows_kernel)[grid](x, more, bias, 1, x.shape[1], KIND="none", TO=tl.float32, SHAPE=(1, 16), negate=False)
    return out, more


@triton_op("inrush_exported::tuned", mutates_args={})
def tuned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(tuned_kernel)[blocks(x.numel())](x, out, x.numel())
    return out


@triton_op("inrush_exported::warps", mutates_args={})
def warps(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(tuned_warps_kernel)[blocks(x.numel())](x, out, x.numel())
    return out


@triton_op("inrush_exported::heuristic", mutates_args={})
def heuristic(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(heuristic_kernel)[blocks(x.numel())](x, out, x.numel())
    return out


@triton_op("inrush_exported::descriptors", mutates_args={})
def descriptors(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))
    wrap_triton(device_descriptor_kernel)[grid](x, out, x.shape[0], x.shape[1], BLOCK=16)
    return out


class Module(torch.nn.Module):
    """A function as a module; the same function with the operators of ``plain`` says what it must give."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x, y):
        return self.function(self, x, y)


class Kernels:
    add, scale_, squares, tuned, warps, heuristic, descriptors = add, scale_, squares, tuned, warps, heuristic, descriptors


class Plain:
    """What the kernels compute."""

    add = staticmethod(lambda x, y: x + y)
    scale_ = staticmethod(lambda x, by: x.mul_(6 * by))
    squares = staticmethod(lambda x, bias: (-(x * x).double(), x + bias))
    tuned = staticmethod(lambda x: x * 3)
    warps = staticmethod(lambda x: x * 2 + 5)
    heuristic = staticmethod(lambda x: x * 5)
    descriptors = staticmethod(lambda x: x * 2)


def between_others(k, m, x, y):
    return k.add(torch.relu(x) * 2, y + 1).sin() @ m.weight + 1


def of_inputs(k, m, x, y):
    """Nothing but kernels, whose results are outputs."""
    return k.add(x, y), k.tuned(y)


def of_views(k, m, x, y):
    """Strides and offsets of views are constants or sizes; a view that begins in the middle is not aligned."""
    return k.add(x.view(-1)[3:], y.view(-1)[3:]), k.add(x[1:], y[1:]) * 2


def writes_input(k, m, x, y):
    k.scale_(x, 0.5)
    return y + x


def writes_buffer(k, m, x, y):
    k.scale_(m.state, 2.0)
    m.state.add_(x.sum(0))
    return m.state * 1.0, y


def in_order(k, m, x, y):
    out = k.add(x, y)
    k.scale_(out, 2.0)
    first = out + 1
    k.scale_(out, 1.0)
    return first, k.add(out, y), out


def twice_read(k, m, x, y):
    """What a kernel overwrites is needed after it."""
    before = x * 2
    after = before.clone()
    k.scale_(after, 1.0)
    return before - y, after, before.sum()


def in_the_middle(k, m, x, y):
    """A kernel overwrites the last use of a part that begins off 16 bytes."""
    a = x.mul(2)
    b = a[:, 1:].reshape(-1)[1:]
    c = (y + 1)[1:].clone()
    d = (x * 3).view(-1)[3:].clone()
    k.scale_(c, 2.0)
    k.scale_(d, 0.5)
    return c, d + 1, k.add(b, b)


def of_rows(k, m, x, y):
    both = k.squares(x, y[0])
    return both[0] * 2, both[1]


def of_kinds(k, m, x, y):
    return k.tuned(x) + k.warps(y), k.heuristic(x[:2])


def of_descriptors(k, m, x, y):
    return k.descriptors(x @ m.square) + 1


def in_a_branch(k, m, x, y):
    return torch.cond(x.sum() > 0, lambda x, y: k.add(x, y).clone(), lambda x, y: k.add(x * 2, y) - 1, (x, y))


def in_branches(k, m, x, y):
    """Equal kernels in another order."""

    def one(x, y):
        return k.add(x, y) + k.tuned(x)

    def other(x, y):
        return k.tuned(x * 2) - k.add(y, x)

    return torch.cond(x.sum() > 0, one, other, (x, y)) * 2


def in_a_loop(k, m, x, y):
    def turn(i, x):
        return i + 1, k.add(x, y)

    return torch._higher_order_ops.while_loop(lambda i, x: i < 3, turn, (torch.zeros((), dtype=torch.int64), x))


def in_a_scan(k, m, x, y):
    def turn(carried, row):
        carried = k.add(carried, row)
        return carried, k.tuned(carried)

    return torch._higher_order_ops.scan(turn, y[0].clone(), x, dim=0)


def of_found(k, m, x, y):
    """The size of a kernel's tensor depends on data."""
    rows = torch.nonzero(x[:, 0] > 0).squeeze(1)
    return k.add(x[rows], y[rows]) * 2


def buffers():
    return {"weight": torch.randn(18, 5), "square": torch.randn(16, 16), "state": torch.randn(18)}


ROWS = Dim("rows", min=3, max=64)
# Functions, shapes of the inputs of each call (the program is exported with the first), and what is dynamic.
CASES = {
    "between others": (between_others, [(7, 18)], None),
    "between others, dynamic": (between_others, [(7, 18), (5, 18), (32, 18)], ({0: ROWS}, {0: ROWS})),
    "of inputs, dynamic": (of_inputs, [(7, 18), (16, 18)], ({0: ROWS}, {0: ROWS})),
    "of views": (of_views, [(7, 18)], None),
    "of views, dynamic": (of_views, [(7, 18), (4, 18)], ({0: ROWS}, {0: ROWS})),
    "writes input": (writes_input, [(7, 18), (7, 18)], None),
    "writes buffer": (writes_buffer, [(7, 18)] * 3, None),
    "in order": (in_order, [(7, 18)], None),
    "in order, dynamic": (in_order, [(7, 18), (9, 18)], ({0: ROWS}, {0: ROWS})),
    "in the middle": (in_the_middle, [(7, 18)], None),
    "twice read": (twice_read, [(7, 18)], None),
    "of rows, dynamic": (of_rows, [(7, 18), (3, 18)], ({0: ROWS}, {0: ROWS})),
    "of kinds": (of_kinds, [(7, 18)], None),
    "of descriptors": (of_descriptors, [(16, 16)], None),
    "in a branch": (in_a_branch, [(7, 18)] * 3, None),
    "in branches": (in_branches, [(7, 18)] * 3, None),
    "in a loop": (in_a_loop, [(7, 18)] * 2, None),
    "in a scan": (in_a_scan, [(7, 18)] * 2, None),
    "of found": (of_found, [(7, 18)] * 2, None),
}


def exported(function, shapes, dynamic, device="cpu"):
    """The exported program, a module that computes the same without kernels, and inputs of calls."""
    held = buffers()
    module = Module(lambda m, x, y: function(Kernels, m, x, y), **held).to(device)
    plain = Module(lambda m, x, y: function(Plain, m, x, y), **{k: v.clone() for k, v in held.items()}).to(device)
    calls = [(torch.randn(s, device=device), torch.randn(s, device=device)) for s in shapes]
    with torch.no_grad():
        program = torch.export.export(module, tuple(torch.randn_like(t) for t in calls[0]), dynamic_shapes=dynamic)
    return program, plain, calls
