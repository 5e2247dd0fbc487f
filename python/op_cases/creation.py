"""Tensors made from nothing: ranges, constants, likenesses."""

import torch

from .pointwise import spread


def cases(suite):
    x = spread("like", torch.float32, 3, 5)
    n = torch.arange(6).reshape(2, 3)
    with suite.group("create", "zoo", tol="exact") as g:
        g.add("arange", lambda t: torch.arange(7) + t[0, 0].long() * 0, x)
        g.add("arange_start", lambda t: torch.arange(2, 9), x)
        g.add("arange_step", lambda t: torch.arange(10, -3, -4), x)
        g.add("arange_float", lambda t: torch.arange(0.0, 2.0, 0.25), x)
        g.add("arange_dtype", lambda t: torch.arange(5, dtype=torch.float32), x)
        g.add("arange_i32", lambda t: torch.arange(1, 6, 2, dtype=torch.int32), x)
        g.add("arange_empty", lambda t: torch.arange(0), x)
        g.add("zeros", lambda t: torch.zeros(2, 3), x)
        g.add("ones", lambda t: torch.ones(2, 3, dtype=torch.int64), x)
        g.add("full", lambda t: torch.full((2, 2), 3.5), x)
        g.add("full_int", lambda t: torch.full((3,), 7), x)
        g.add("full_bool", lambda t: torch.full((3,), True), x)
        g.add("full_inf", lambda t: torch.full((2, 1), float("-inf")), x)
        g.add("full_dtype", lambda t: torch.full((2,), 2, dtype=torch.float16), x)
        g.add("eye", lambda t: torch.eye(3, 4), x)
        g.add("linspace", lambda t: torch.linspace(-1, 1, 5), x, tol="close")
        g.add("scalar_tensor", lambda t: torch.scalar_tensor(2.5) * t, x)
        g.add("tensor", lambda t: torch.tensor([1.0, 2.0, 3.0]) + t[:, :3], x)
        g.add("zeros_like", lambda t: torch.zeros_like(t), x)
        g.add("ones_like", lambda t: torch.ones_like(t, dtype=torch.bool), x)
        g.add("full_like", lambda t: torch.full_like(t, 1.25), x)
        g.add("full_like_int", lambda t: torch.full_like(t, 3), n)
        g.add("new_zeros", lambda t: t.new_zeros(4), n)
        g.add("new_ones", lambda t: t.new_ones((), dtype=torch.bool), n)
        g.add("new_full", lambda t: t.new_full((2, 2), -1), n)
        g.add("new_tensor_dtype", lambda t: t.new_zeros(2, 2, dtype=torch.float32), n)
        g.add("empty_filled", lambda t: torch.empty_like(t).fill_(2.0), x)
        g.add("empty_zero", lambda t: torch.empty(2, 3).zero_(), x)
        g.add("tril_mask", lambda t: torch.ones(5, 5, dtype=torch.bool).tril(), x)
        g.add("compare_ranges", lambda t: torch.arange(4)[:, None] >= torch.arange(4)[None], x)
        g.add("tril_indices", lambda t: torch.tril_indices(3, 3), x)
        g.add("sin_table", lambda t: torch.sin(torch.arange(5)[:, None] / (10000 ** (torch.arange(0, 6, 2) / 6))), x, tol="close")
