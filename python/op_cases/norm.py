"""Normalisations and softmax."""

import torch
import torch.nn.functional as F

from .pointwise import FLOATS, INF, NAN, spread


def cases(suite):
    for short, dtype in FLOATS.items():
        x, w, b = spread("norm" + short, dtype, 4, 7, 24), spread("w" + short, dtype, 24), spread("b" + short, dtype, 24)
        with suite.group(f"layer_norm_{short}", "zoo", tol="norm") as g:
            g.add("affine", lambda t, p, q: F.layer_norm(t, (24,), p, q), x, w, b)
            g.add("weight", lambda t, p: F.layer_norm(t, (24,), p), x, w)
            g.add("plain", lambda t: F.layer_norm(t, (24,)), x)
            g.add("two_dims", lambda t: F.layer_norm(t, (7, 24), eps=1e-3), x)
            g.add("all", lambda t: F.layer_norm(t, (4, 7, 24)), x)
            g.add("rms_norm", lambda t, p: F.rms_norm(t, (24,), p, 1e-6), x, w)
            g.add("rms_norm_plain", lambda t: F.rms_norm(t, (24,)), x)
            g.add("normalize", lambda t: F.normalize(t, dim=-1), x)
            g.add("normalize_l1", lambda t: F.normalize(t, p=1.0, dim=1), x)
            for dim in (-1, 0, 1):
                g.add(f"softmax_{dim}", lambda t, d=dim: torch.softmax(t, d), x)
                g.add(f"log_softmax_{dim}", lambda t, d=dim: torch.log_softmax(t, d), x)
            g.add("softmin", lambda t: F.softmin(t, -1), x)
    x = spread("norm", torch.float32, 3, 8, 5, 6)
    w, b, mean, var = (spread(n, torch.float32, 8) for n in ("w8", "b8", "mean8", "var8"))
    var = var.abs() + 0.1
    with suite.group("batch_norm", "zoo", tol="norm") as g:
        g.add("eval", lambda t, m, v, p, q: F.batch_norm(t, m, v, p, q), x, mean, var, w, b)
        g.add("plain", lambda t, m, v: F.batch_norm(t, m, v, eps=1e-3), x, mean, var)
        g.add("two_d", lambda t, m, v, p, q: F.batch_norm(t[:, :, 0, 0], m, v, p, q), x, mean, var, w, b)
        g.add("three_d", lambda t, m, v, p, q: F.batch_norm(t[:, :, 0], m, v, p, q), x, mean, var, w, b)
        g.add("relu", lambda t, m, v, p, q: F.relu(F.batch_norm(t, m, v, p, q)), x, mean, var, w, b)
        g.add("channels_last", lambda t, m, v, p: F.batch_norm(t.to(memory_format=torch.channels_last), m, v, p), x, mean, var, w)
        g.add("batch_statistics", lambda t, p, q: F.batch_norm(t, None, None, p, q, training=True), x, w, b)
        g.add("group_norm", lambda t, p, q: F.group_norm(t, 4, p, q), x, w, b)
        g.add("group_norm_plain", lambda t: F.group_norm(t, 2), x)
        g.add("group_norm_one", lambda t, p: F.group_norm(t[:, :, 0, 0], 1, p), x, w)
        g.add("instance_norm", lambda t, p, q: F.instance_norm(t, weight=p, bias=q), x, w, b)
        g.add("local_response_norm", lambda t: F.local_response_norm(t, 3), x)
    m = spread("softmax", torch.float32, 5, 33)
    with suite.group("softmax", "zoo", tol="norm") as g:
        g.add("dtype", lambda t: torch.softmax(t, -1, dtype=torch.float64), m)
        g.add("of_half", lambda t: torch.softmax(t.half(), -1, dtype=torch.float32), m)
        g.add("scaled", lambda t: torch.softmax(t * 50, -1), m)
        g.add("shifted", lambda t: torch.softmax(t + 1e4, -1), m, tol={"kind": "norm", "max": 1e-4})
        g.add("masked", lambda t: torch.softmax(t.masked_fill(t > 1, -INF), -1), m)
        g.add("log_masked", lambda t: torch.log_softmax(t.masked_fill(t > 1, -INF), -1), m)
        g.add("one_column", lambda t: torch.softmax(t[:, :1], -1), m)
        g.add("scalar", lambda t: torch.softmax(t[0, 0], 0), m)
        g.add("strided", lambda t: torch.softmax(t.t(), 1), m)
        g.add("long", lambda t: torch.softmax(t, -1), spread("softmax2", torch.float32, 3, 5003))
        g.add("empty", lambda t: torch.softmax(t[:0], -1), m)
        g.add("then_sum", lambda t: (torch.softmax(t, 0) * t).sum(0), m)
        g.add("cross_entropy", lambda t: F.cross_entropy(t, torch.tensor([3, 0, 32, 7, 7]), reduction="none"), m)
    odd = torch.tensor([[INF, 1.0, 2.0], [-INF, -INF, -INF], [NAN, 0.0, 1.0], [-INF, 3.0, 3.0], [3e38, 3e38, -3e38]])
    with suite.group("softmax_special", tol="close") as g:
        g.add("softmax", lambda t: torch.softmax(t, -1), odd)
        g.add("log_softmax", lambda t: torch.log_softmax(t, -1), odd)
        g.add("logsumexp", lambda t: torch.logsumexp(t, -1), odd)
        g.add("layer_norm", lambda t: F.layer_norm(t[:3], (3,)), odd)
    with suite.group("norm_sizes", tol="norm") as g:
        for n in (1, 2, 7, 8, 9, 31, 64, 127, 769, 4099):
            t = spread(f"norm{n}", torch.float32, 3, n)
            if n > 1:
                g.add(f"layer_norm_{n}", lambda t: F.layer_norm(t, t.shape[-1:]), t)
            g.add(f"softmax_{n}", lambda t: torch.softmax(t, -1), t)
            g.add(f"rms_norm_{n}", lambda t: t * torch.rsqrt((t * t).mean(-1, keepdim=True) + 1e-6), t)
        g.add("layer_norm_of_one", lambda t: F.layer_norm(t, (1,)), spread("norm1", torch.float32, 3, 1), tol="exact")
    with suite.group("norm_fused", "zoo", tol="norm") as g:
        a, c = spread("fuse", torch.float32, 9, 65), spread("fuse2", torch.float32, 65)
        g.add("normact", lambda t, u: torch.softmax(F.gelu(F.layer_norm(t + u, (65,), u, u)) * torch.sigmoid(u), -1), a, c)
        g.add("residual", lambda t, u: (lambda h: h + F.layer_norm(h, (65,), u))(t * 2 + u), a, c)
        g.add("of_transposed", lambda t: F.layer_norm(t.t(), (9,)), a)
        g.add("cat", lambda t, u: F.layer_norm(torch.cat([t, t + u], 1), (130,)), a, c)
        g.add("twice", lambda t: F.layer_norm(F.layer_norm(t, (65,)) * 3 + 1, (65,)), a)
        g.add("mean_over_rows", lambda t: F.layer_norm(t, (65,)).mean(0), a)
