"""Reading and writing at indices that are data: gather, scatter, embedding, masks; negative indices wrap."""

import torch
import torch.nn.functional as F

from .core import generator
from .pointwise import spread
from .structure import Fn


def cases(suite):
    x = spread("indexed", torch.float32, 5, 6, 7)
    i = torch.tensor([0, 4, -1, 2, 2, -5])
    j = torch.tensor([[1, 0], [-1, 5], [3, -6]])
    with suite.group("index", "zoo", tol="exact") as g:
        g.add("first", lambda t, a: t[a], x, i)
        g.add("matrix", lambda t, b: t[:, b], x, j)
        g.add("last", lambda t, a: t[..., a], x, i)
        g.add("pair", lambda t, a: t[a, a], x, i)
        g.add("broadcast_pair", lambda t, b: t[b[:, :1].clamp(max=4), b], x, j)
        g.add("apart", lambda t, a: t[a, :, a], x, i)
        g.add("middle_and_last", lambda t, b: t[:, b, b], x, j)
        g.add("with_slice", lambda t, a: t[1:, a, ::2], x, i)
        g.add("int_and_tensor", lambda t, a: t[2, a], x, i)
        g.add("none", lambda t, a: t[a, None], x, i)
        g.add("one_index", lambda t, a: t[a[:1]], x, i)
        g.add("i32", lambda t, a: t[a.int()], x, i)
        g.add("of_transposed", lambda t, a: t.transpose(0, 2)[a], x, i)
        g.add("computed", lambda t, a: t[(a + 10) % 5], x, i)
        g.add("empty", lambda t, a: t[a[:0]], x, i)
        g.add("of_ints", lambda b, a: b[a % 3], j, i)
        g.add("then_pointwise", lambda t, a: t[a] * 2 + 1, x, i)
        g.add("of_pointwise", lambda t, a: (t * 2)[a], x, i)
        g.add("mask_of_constant", lambda t: t[:, torch.tensor([True, False, True, True, False, False])], x)
        g.add("list", lambda t: t[[0, 2, -1]], x)
        g.add("2d_by_column_and_row", lambda b, a: b[(a % 3)[:, None], (a % 2)[None, :]], j, i)
    p = i % 5
    with suite.group("gather", "near", tol="exact") as g:
        q = torch.randint(0, 5, (3, 6, 2), generator=generator("gather"))
        g.add("index_select", lambda t, a: t.index_select(0, a), x, p)
        g.add("index_select_last", lambda t, a: t.index_select(-1, a), x, p)
        g.add("gather", lambda t, a: t.gather(0, a), x, q)
        g.add("gather_middle", lambda t, a: t.gather(1, a), x, q)
        g.add("gather_last", lambda t, a: t.gather(-1, a), x, q)
        g.add("take_along_dim", lambda t, a: torch.take_along_dim(t, a[:1, :, :1], 0), x, q)
        g.add("take", lambda t, a: torch.take(t, a), x, p)
    weight = spread("embedding", torch.float32, 11, 9)
    words = torch.tensor([[0, 10, 3], [3, 3, 7]])
    with suite.group("embedding", "zoo", tol="exact") as g:
        g.add("plain", lambda w, a: F.embedding(a, w), weight, words)
        g.add("padding_index", lambda w, a: F.embedding(a, w, padding_idx=3), weight, words)
        g.add("one", lambda w, a: F.embedding(a[0, 1], w), weight, words)
        g.add("i32", lambda w, a: F.embedding(a.int(), w), weight, words)
        g.add("empty", lambda w, a: F.embedding(a[:, :0], w), weight, words)
        g.add("half", lambda w, a: F.embedding(a, w.half()), weight, words)
        g.add("sum_after", lambda w, a: (F.embedding(a, w) + F.embedding(a * 0 + 1, w)), weight, words)
        g.add("one_hot", lambda a: F.one_hot(a, 11), words)
        g.add("bag", lambda w, a: F.embedding(a, w).sum(1), weight, words, tol="norm")
    classes = torch.tensor([4, 0, 2])
    outside = [("a class beyond the last", (classes + 1,)), ("a negative class", (classes - 1,))]
    suite.model("one_hot_range", Fn(lambda _, a: F.one_hot(a, 5)), [classes], tol="exact", reject=outside)
    with suite.group("mask", "near", tol="exact") as g:
        keep = torch.rand(5, 6, 7, generator=generator("mask")) > 0.4
        row = torch.tensor([True, False, True, True, False, True, False])
        g.add("masked_fill", lambda t, k: t.masked_fill(k, -1.0), x, keep)
        g.add("masked_fill_row", lambda t, k: t.masked_fill(k, float("-inf")), x, row)
        g.add("masked_fill_tensor", lambda t, k: t.masked_fill(k, torch.tensor(2.5)), x, keep)
        g.add("where", lambda t, k: torch.where(k, t, 0.0), x, keep)
        g.add("where_pair", lambda t, k: torch.where(k[:, :1], t, -t), x, keep)
        g.add("causal", lambda t: t[0].masked_fill(torch.ones(6, 7, dtype=torch.bool).triu(1), float("-inf")), x)
        g.add("setitem", lambda t, k: with_set(t, k, 0.5), x, keep)
        g.add("where_ints", lambda b: torch.where(b < 0, b + 6, b), j)
    with suite.group("scatter", "near", tol="exact") as g:
        idx = torch.tensor([[0, 3, 1, 4, 2, 0], [4, 2, 0, 1, 3, 3]])
        src = spread("source", torch.float32, 2, 6)
        base = spread("base", torch.float32, 5, 6)
        g.add("scatter", lambda t, a, s: t.scatter(0, a[:1], s[:1]), base, idx, src)
        g.add("scatter_value", lambda t, a: t.scatter(0, a[:1], 7.5), base, idx)
        g.add("scatter_last", lambda t, a, s: t.scatter(1, a[:, :5].sort(1)[0][:, :1], s[:, :1]), base, idx, src)
        g.add("scatter_add", lambda t, a, s: t.scatter_add(0, a, s), base, idx, src, tol="close")
        g.add("scatter_reduce_amax", lambda t, a, s: t.scatter_reduce(0, a, s, "amax"), base, idx, src)
        g.add("scatter_reduce_sum", lambda t, a, s: t.scatter_reduce(0, a, s, "sum", include_self=False), base, idx, src, tol="close")
        g.add("index_add", lambda t, a, s: t.index_add(0, a[0, :2], s, alpha=2), base, idx, src, tol="close")
        g.add("index_copy", lambda t, a, s: t.index_copy(0, a[0, :2], s), base, idx, src)
        g.add("index_fill", lambda t, a: t.index_fill(1, a[0, :3], -2.0), base, idx)
        g.add("index_put", lambda t, a, s: t.index_put((a[0, :2],), s), base, idx, src)
        g.add("index_put_pair", lambda t, a: t.index_put((a[0], a[0]), torch.tensor(9.0)), base, idx)
        g.add("index_put_add", lambda t, a, s: t.index_put((a[0],), s[0, :1], accumulate=True), base, idx, src, tol="close")
        g.add("select_scatter", lambda t, s: t.select_scatter(s[0], 0, 3), base, src)
        g.add("slice_scatter", lambda t, s: t.slice_scatter(s, 0, 1, 3), base, src)
        g.add("slice_scatter_step", lambda t, s: t[:2].slice_scatter(s[:, :3], 1, 0, 6, 2), base, src)
        g.add("diagonal_scatter", lambda t, s: t.diagonal_scatter(s[0, :5]), base, src)
    with suite.group("order", "later", tol="exact") as g:
        v = torch.tensor([[3.0, -1.0, 2.0, 5.0, 4.0], [0.5, 9.0, -7.0, 1.0, 0.0]])
        g.add("sort", lambda t: tuple(torch.sort(t)), v)
        g.add("sort_descending", lambda t: tuple(torch.sort(t, dim=0, descending=True)), v)
        g.add("argsort", lambda t: torch.argsort(t, 1), v)
        g.add("topk", lambda t: tuple(torch.topk(t, 3)), v)
        g.add("bucketize", lambda t: torch.bucketize(t, torch.tensor([-1.0, 0.0, 2.0, 4.5])), v)


def with_set(tensor, mask, value):
    """`t[mask] = value` on a copy, as people write it."""
    copy = tensor.clone()
    copy[mask] = value
    return copy
