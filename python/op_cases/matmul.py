"""Matrix products: every rank and broadcast, transposed and strided operands, block edges, empty extents, fused epilogues."""

import torch
import torch.nn.functional as F

from .pointwise import FLOATS, spread


def mat(name, *sizes, dtype=torch.float32):
    return spread(name, dtype, *sizes, low=-1.0, high=1.0)


def cases(suite):
    a, b, bias = mat("a", 13, 37), mat("b", 37, 29), mat("bias", 29)
    with suite.group("mm", "zoo", tol="norm") as g:
        g.add("mm", torch.mm, a, b)
        g.add("matmul", torch.matmul, a, b)
        g.add("transposed_left", lambda x, y: x.t() @ y[:13], a, b)
        g.add("transposed_right", lambda x: x @ x.t(), a)
        g.add("both_transposed", lambda x, y: (y.t() @ x.t()), a, b)
        g.add("strided", lambda x, y: x[::2, 1:30] @ y[1:30, ::3], a, b)
        g.add("column_strided", lambda x, y: x[:, ::2] @ y[::2], a, b)
        g.add("expanded_left", lambda x, y: x[:1].expand(5, 37) @ y, a, b)
        g.add("addmm", lambda c, x, y: torch.addmm(c, x, y), bias, a, b)
        g.add("addmm_alpha_beta", lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0), bias, a, b)
        g.add("addmm_matrix", lambda x, y: torch.addmm(x @ y, x, y), a, b)
        g.add("addmm_column", lambda x, y: torch.addmm(x[:, :1], x, y, beta=2), a, b)
        g.add("addmm_beta_zero", lambda c, x, y: torch.addmm(c * float("nan"), x, y, beta=0), bias, a, b)
        g.add("linear", lambda x, y, c: F.linear(x, y.t(), c), a, b, bias)
        g.add("linear_plain", lambda x, y: F.linear(x, y.t().contiguous()), a, b)
        g.add("linear_vector", lambda x, y, c: F.linear(x[0], y.t(), c), a, b, bias)
        g.add("mv", lambda x, y: torch.mv(x, y[:, 0]), a, b)
        g.add("addmv", lambda x, y: torch.addmv(x[:, 0], x, y[:, 0]), a, b)
        g.add("dot", lambda x: torch.dot(x[0], x[1]), a)
        g.add("outer", lambda x, y: torch.outer(x[0], y[0]), a, b)
        g.add("vector_matrix", lambda x, y: x[0] @ y, a, b)
        g.add("matrix_vector", lambda x: x @ x[0], a)
        g.add("chain", lambda x, y: (x @ y) @ y.t() @ x.t(), a, b)
        g.add("einsum", lambda x, y: torch.einsum("ij,jk->ki", x, y), a, b)
    p, q = mat("p", 3, 5, 17), mat("q", 3, 17, 11)
    with suite.group("bmm", "zoo", tol="norm") as g:
        g.add("bmm", torch.bmm, p, q)
        g.add("bmm_transposed", lambda x: torch.bmm(x, x.transpose(1, 2)), p)
        g.add("baddbmm", lambda x, y: torch.baddbmm(x[:, :, :11], x, y), p, q)
        g.add("baddbmm_alpha", lambda x, y: torch.baddbmm(x[:1, :1, :1], x, y, beta=0.3, alpha=1.7), p, q)
        g.add("batch_by_matrix", lambda x, y: x @ y[0], p, q)
        g.add("matrix_by_batch", lambda x, y: x[0] @ y, p, q)
        g.add("batch_by_vector", lambda x, y: x @ y[0, :, 0], p, q)
        g.add("vector_by_batch", lambda x, y: x[0, 0] @ y, p, q)
        g.add("broadcast", lambda x, y: x[:, None] @ y[None], p, q)
        g.add("broadcast_5d", lambda x, y: x[None, :, None] @ y[:, None, None, :, :], p, q)
        g.add("expanded_batch", lambda x, y: torch.bmm(x[:1].expand(3, 5, 17), y), p, q)
        g.add("permuted_batch", lambda x: x.permute(1, 0, 2) @ x.permute(1, 2, 0), p)
        g.add("heads", lambda x: x.view(3, 5, 1, 17).transpose(1, 2) @ x.view(3, 5, 1, 17).permute(0, 2, 3, 1), p)
        g.add("linear_3d", lambda x, y: F.linear(x, y[0].t(), y[0, 0]), p, q)
        g.add("linear_of_permuted", lambda x, y: F.linear(x.transpose(0, 1), y[0].t()), p, q)
        g.add("einsum_batch", lambda x, y: torch.einsum("bij,bjk->bik", x, y), p, q)
        g.add("einsum_heads", lambda x, y: torch.einsum("bid,bjd->bij", x, x + y[:, :1, :1]), p, q)
        g.add("einsum_sum", lambda x, y: torch.einsum("bij,bjk->", x, y), p, q)
        g.add("bilinear_like", lambda x, y: (x @ y).sum(-1), p, q)
    with suite.group("matmul_empty", tol="norm") as g:
        e = torch.zeros(4, 0)
        g.add("no_inner", lambda t: t @ t.t(), e)
        g.add("no_rows", lambda x, t: x[:0] @ t, a, b)
        g.add("no_columns", lambda t, x: x[:4].t() @ t, e, a)
        g.add("linear_no_inner", lambda t, c: F.linear(t, torch.zeros(29, 0), c), e, bias)
        g.add("no_batch", lambda x, y: x[:0] @ y[:0], p, q)
        g.add("one_by_one", lambda x: x[:1, :1] @ x[:1, :1], a)
    for part, sizes in enumerate((((1, 1, 1), (1, 64, 64), (7, 8, 9), (15, 16, 17), (16, 32, 48)), ((31, 33, 32), (64, 63, 65), (127, 5, 3), (2, 300, 130), (5, 1, 257)))):
        with suite.group(f"matmul_edges_{part}", tol="norm") as g:
            for m, k, n in sizes:
                x, y = mat(f"m{m}k{k}n{n}", m, k), mat(f"k{k}n{n}m{m}", k, n)
                g.add(f"{m}x{k}x{n}", torch.mm, x, y)
                g.add(f"linear_{m}x{k}x{n}", lambda s, t: F.linear(s, t.t().contiguous(), t[0]), x, y)
    with suite.group("matmul_large", tol="norm") as g:
        x, y = mat("large", 260, 513), mat("large2", 513, 390)
        g.add("mm", torch.mm, x, y)
        g.add("long_inner", torch.mm, mat("inner", 3, 5000), mat("inner2", 5000, 4))
    for short, dtype in FLOATS.items():
        x, y, c = (mat(n + short, *s, dtype=dtype) for n, s in (("x", (9, 33)), ("y", (21, 33)), ("c", (21,))))
        with suite.group(f"linear_{short}", tol="norm") as g:
            g.add("linear", F.linear, x, y, c)
            g.add("mm", lambda s, t: s @ t.t(), x, y)
            g.add("addmm", lambda u, s, t: torch.addmm(u, s, t.t()), c, x, y)
            g.add("bmm", lambda s: torch.bmm(s[None].expand(2, 9, 33), s.t()[None].expand(2, 33, 9)), x)
    w = mat("w", 41, 37)
    with suite.group("epilogue", "zoo", tol="norm") as g:
        c = mat("c41", 41)
        for name in ("relu", "gelu", "silu", "tanh", "hardswish", "sigmoid"):
            g.add(name, lambda x, y, z, f=getattr(F, name): f(F.linear(x, y, z)), a, w, c)
        g.add("gelu_tanh", lambda x, y, z: F.gelu(F.linear(x, y, z), approximate="tanh"), a, w, c)
        g.add("residual", lambda x, y: x + F.linear(x, y[:37]), a, w)
        g.add("residual_scaled", lambda x, y, z: x * 0.5 + torch.relu(F.linear(x, y[:37], z[:37])) * z[:37], a, w, c)
        g.add("two_readers", lambda x, y: (lambda r: (r.relu(), r * 2))(F.linear(x, y)), a, w)
        g.add("gated", lambda x, y: F.silu(F.linear(x, y)) * F.linear(x, y + 1), a, w)
        g.add("prologue", lambda x, y: F.linear(torch.tanh(x) * 2, y), a, w)
        g.add("sum_after", lambda x, y: F.linear(x, y).sum(0), a, w)
        g.add("softmax_after", lambda x, y: torch.softmax(F.linear(x, y), -1), a, w)
        g.add("split_after", lambda x, y: F.linear(x, y[:39]).split(13, -1), a, w)
        g.add("cat_after", lambda x, y: torch.cat([F.linear(x, y), x], -1), a, w)
        g.add("shared_input", lambda x, y, z: (F.linear(x, y, z), F.linear(x, y * 2), F.linear(x, y[:7])), a, w, c)
