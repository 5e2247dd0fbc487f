"""Reductions and scans: every choice of dimensions, ties, NaN, empty and large extents."""

import torch

from .pointwise import FLOATS, INF, NAN, spread

DIMS = {"last": -1, "first": 0, "middle": 1, "two": (0, 2), "neighbours": (1, 2), "all": (0, 1, 2), "swapped": (2, -3)}


def dims(g, name, fn, x):
    for label, dim in DIMS.items():
        g.add(f"{name}_{label}", lambda t, d=dim: fn(t, d, False), x)
        g.add(f"{name}_{label}_keep", lambda t, d=dim: fn(t, d, True), x)


def cases(suite):
    x = spread("reduce", torch.float32, 5, 7, 13)
    with suite.group("sum_mean", "zoo", tol="norm") as g:
        dims(g, "sum", lambda t, d, k: t.sum(d, keepdim=k), x)
        dims(g, "mean", lambda t, d, k: t.mean(d, keepdim=k), x)
        g.add("sum", torch.sum, x)
        g.add("mean", torch.mean, x)
        g.add("sum_dtype", lambda t: t.sum(-1, dtype=torch.float64), x)
        g.add("mean_dtype", lambda t: t.mean(0, dtype=torch.float64), x)
    with suite.group("extrema", tol="exact") as g:
        dims(g, "amax", lambda t, d, k: t.amax(d, keepdim=k), x)
        dims(g, "amin", lambda t, d, k: t.amin(d, keepdim=k), x)
        g.add("max", torch.max, x)
        g.add("min", torch.min, x)
        g.add("aminmax", lambda t: tuple(torch.aminmax(t, dim=1)), x)
        for dim in (-1, 0, 1):
            g.add(f"max_dim_{dim}", lambda t, d=dim: tuple(t.max(d)), x)
            g.add(f"min_dim_{dim}_keep", lambda t, d=dim: tuple(t.min(d, keepdim=True)), x)
            g.add(f"argmax_{dim}", lambda t, d=dim: t.argmax(d), x)
            g.add(f"argmin_{dim}_keep", lambda t, d=dim: t.argmin(d, keepdim=True), x)
        g.add("argmax", torch.argmax, x)
        g.add("argmin", torch.argmin, x)
    ties = torch.tensor([[1.0, 3.0, 3.0, -1.0], [NAN, 2.0, NAN, 5.0], [-INF, -INF, -INF, -INF], [INF, 1.0, INF, 0.0]])
    with suite.group("extrema_ties", tol="exact") as g:
        for name in ("argmax", "argmin"):
            g.add(name, lambda t, f=getattr(torch, name): f(t, 1), ties)
            g.add(name + "_all", getattr(torch, name), ties)
        for name in ("amax", "amin"):
            g.add(name, lambda t, f=getattr(torch, name): f(t, 1), ties)
        g.add("max_dim", lambda t: tuple(t.max(0)), ties)
        g.add("min_dim", lambda t: tuple(t.min(1)), ties)
        g.add("sum", lambda t: t.sum(1), ties)
        g.add("any", lambda t: (t > 2).any(1), ties)
        g.add("all", lambda t: (t > -INF).all(1, keepdim=True), ties)
        g.add("any_all", lambda t: t.isnan().any(), ties)
        g.add("all_all", lambda t: (t == t).all(), ties)
        g.add("count_nonzero", lambda t: torch.count_nonzero(t, 1), ties)
        g.add("any_float", lambda t: t.any(1), ties)
        g.add("sum_bool", lambda t: (t > 0).sum(1), ties)
        g.add("argmax_bool_as_int", lambda t: (t > 2).int().argmax(1), ties)
    for short, dtype in FLOATS.items():
        y = spread("moments" + short, dtype, 4, 6, 31)
        with suite.group(f"moments_{short}", tol="norm") as g:
            g.add("sum", lambda t: t.sum(-1), y)
            g.add("mean", lambda t: t.mean((0, 2)), y)
            for label, dim in (("last", -1), ("first", 0), ("two", (0, 2))):
                g.add(f"var_{label}", lambda t, d=dim: t.var(d), y)
                g.add(f"std_{label}", lambda t, d=dim: t.std(d, keepdim=True), y)
            g.add("var_biased", lambda t: t.var(1, unbiased=False), y)
            g.add("var_correction", lambda t: t.var(-1, correction=2), y)
            g.add("var_all", torch.var, y)
            g.add("var_mean", lambda t: torch.var_mean(t, -1, correction=0, keepdim=True), y)
            g.add("std_mean", lambda t: torch.std_mean(t, 0), y)
            g.add("logsumexp", lambda t: torch.logsumexp(t, -1), y)
            g.add("logsumexp_two", lambda t: torch.logsumexp(t, (0, 1), keepdim=True), y)
            g.add("prod", lambda t: (t * 0.3).prod(1), y)
            g.add("amax", lambda t: t.amax(-1), y, tol="exact")
            for order in (2, 1, INF, -INF, 0, 3):
                g.add(f"vector_norm_{order}", lambda t, o=order: torch.linalg.vector_norm(t, o, -1), y)
            g.add("norm", lambda t: torch.norm(t), y)
            g.add("norm_dim", lambda t: t.norm(dim=1, keepdim=True), y)
            g.add("cumsum", lambda t: t.cumsum(-1), y)
            g.add("cumsum_first", lambda t: t.cumsum(0), y)
            g.add("cumprod", lambda t: (t * 0.5).cumprod(1), y)
    with suite.group("scan", "near") as g:
        z = spread("scan", torch.float32, 3, 17, 5)
        g.add("cummax", lambda t: tuple(t.cummax(1)), z)
        g.add("cummin", lambda t: tuple(t.cummin(-1)), z)
        g.add("logcumsumexp", lambda t: t.logcumsumexp(1), z)
        g.add("cumsum_dtype", lambda t: t.cumsum(1, dtype=torch.float64), z)
    with suite.group("scan_integer", "zoo", tol="exact") as g:
        n = torch.tensor([[3, 3, 4, 6, 9], [1, 0, 0, -5, 2]])
        g.add("cumsum_bool", lambda t: (t > 2).cumsum(-1), n)
        g.add("cumsum", lambda t: t.cumsum(0), n)
        g.add("diff", lambda t: t.diff(), n)
        g.add("diff_first", lambda t: t.diff(dim=0), n)
        g.add("diff_twice", lambda t: t.diff(n=2), n)
        g.add("diff_prepend", lambda t: t.diff(prepend=t[:, :1] - 1), n)
        g.add("diff_append", lambda t: t.diff(append=t[:, :2]), n)
        g.add("diff_float", lambda t: (t * 0.5).diff(), n)
    with suite.group("reduce_empty", tol="exact") as g:
        e = torch.zeros(3, 0, 2)
        g.add("sum", lambda t: t.sum(1), e)
        g.add("sum_all", torch.sum, e)
        g.add("mean", lambda t: t.mean(1), e)
        g.add("prod", lambda t: t.prod(1), e)
        g.add("any", lambda t: t.any(1), e)
        g.add("all", lambda t: t.all(1), e)
        g.add("amax_other", lambda t: t.amax(0), e)
        g.add("cumsum", lambda t: t.cumsum(1), e)
        g.add("logsumexp", lambda t: t.logsumexp(1), e)
    with suite.group("reduce_one", tol="exact") as g:
        for label, one in (("scalar", torch.tensor(2.5)), ("one", torch.tensor([2.5])), ("ones", torch.full((1, 1, 1), 2.5))):
            g.add(label + "_sum", lambda t: t.sum(), one)
            g.add(label + "_mean_keep", lambda t: t.mean(-1, keepdim=True), one)
            g.add(label + "_amax", lambda t: t.amax(0), one)
            g.add(label + "_argmax", lambda t: t.argmax(0), one)
            g.add(label + "_var", lambda t: t.var(0, correction=0), one)
            g.add(label + "_var_nan", lambda t: t.var(), one)
            g.add(label + "_cumsum", lambda t: t.cumsum(0), one)
    with suite.group("reduce_large", tol="norm") as g:
        long, wide, tall = spread("long", torch.float32, 100003), spread("wide", torch.float32, 3, 30011), spread("tall", torch.float32, 20011, 3)
        g.add("sum_long", torch.sum, long)
        g.add("mean_long", torch.mean, long)
        g.add("var_long", torch.var, long)
        g.add("argmax_long", torch.argmax, long)
        g.add("sum_wide", lambda t: t.sum(1), wide)
        g.add("var_wide", lambda t: t.var(1), wide)
        g.add("sum_tall", lambda t: t.sum(0), tall)
        g.add("amax_tall", lambda t: t.amax(0), tall)
        g.add("sum_tall_last", lambda t: t.sum(1), tall)
        g.add("mean_shifted", lambda t: (t + 1000).var(0), tall, tol={"kind": "norm", "max": 1e-4})
        g.add("all_wide", lambda t: (t > -5).all(), wide)
        g.add("cumsum_long", lambda t: t.cumsum(0), long)
    with suite.group("reduce_fused", tol="norm") as g:
        a, b = spread("fused", torch.float32, 19, 67), spread("fused2", torch.float32, 67)
        g.add("sum_of_squares", lambda t: (t * t).sum(-1).sqrt(), a)
        g.add("two_reductions", lambda t: (t - t.amax(-1, keepdim=True)).exp().sum(-1), a)
        g.add("different_axes", lambda t: t / (t.sum(0, keepdim=True).abs() + 1) + t.mean(1, keepdim=True), a)
        g.add("same_input_both_axes", lambda t: (t.sum(0), t.sum(1), t.sum()), a)
        g.add("masked_sum", lambda t, u: torch.where(t > u, t, 0.0).sum(1), a, b)
        g.add("variance_by_hand", lambda t: ((t - t.mean(1, keepdim=True)) ** 2).mean(1), a)
        g.add("dot", lambda t, u: (t * u).sum(-1), a, b)
        g.add("transposed", lambda t: t.t().sum(-1), a)
        g.add("strided", lambda t: t[::3, ::2].sum(1), a)
        g.add("expanded", lambda t: t[:1].expand(9, 67).sum(0), a)
        g.add("of_cat", lambda t, u: torch.cat([t, u[None]], 0).sum(0), a, b)
