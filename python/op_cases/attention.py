"""Scaled dot-product attention: masks, causal, scale, grouped heads, broadcasts, odd extents; and attention written out."""

import math

import torch
import torch.nn.functional as F

from .core import generator
from .pointwise import FLOATS, INF, spread

sdpa = F.scaled_dot_product_attention


def heads(name, *sizes, dtype=torch.float32):
    return spread(name, dtype, *sizes, low=-1.5, high=1.5)


def cases(suite):
    q, k, v = heads("q", 2, 4, 9, 16), heads("k", 2, 4, 13, 16), heads("v", 2, 4, 13, 16)
    keep = torch.rand(2, 1, 9, 13, generator=generator("keep")) > 0.3
    keep[..., 0] = True
    bias = heads("bias", 9, 13)
    with suite.group("sdpa", "zoo", tol="norm") as g:
        g.add("plain", sdpa, q, k, v)
        g.add("scale", lambda a, b, c: sdpa(a, b, c, scale=0.125), q, k, v)
        g.add("bool_mask", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m), q, k, v, keep)
        g.add("bool_mask_all", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m | True), q, k, v, keep)
        g.add("bool_mask_expanded", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m[:1, :, :1].expand(2, 1, 9, 13)), q, k, v, keep)
        g.add("bool_mask_per_query", lambda a, b, c, m: sdpa(a, b, c, attn_mask=(m[..., :1] | True).expand(2, 1, 9, 13)), q, k, v, keep)
        g.add("float_mask", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m), q, k, v, bias)
        g.add("float_mask_inf", lambda a, b, c, m: sdpa(a, b, c, attn_mask=torch.where(m, 0.0, -INF).to(a.dtype)), q, k, v, keep)
        g.add("float_mask_heads", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m), q, k, v, heads("mh", 4, 9, 13))
        g.add("causal", lambda a, b, c: sdpa(a, b, c, is_causal=True), q, k, v)
        g.add("causal_square", lambda b, c: sdpa(b, b, c, is_causal=True), k, v)
        g.add("causal_longer_query", lambda a, b, c: sdpa(b, a, a, is_causal=True), q, k, v)
        g.add("one_query", lambda a, b, c: sdpa(a[:, :, :1], b, c), q, k, v)
        g.add("one_key", lambda a, b, c: sdpa(a, b[:, :, :1], c[:, :, :1]), q, k, v)
        g.add("value_width", lambda a, b, c: sdpa(a, b, c[..., :7]), q, k, v)
        g.add("three_dims", lambda a, b, c: sdpa(a[0], b[0], c[0]), q, k, v)
        g.add("two_dims", lambda a, b, c: sdpa(a[0, 0], b[0, 0], c[0, 0]), q, k, v)
        g.add("broadcast_batch", lambda a, b, c: sdpa(a, b[:1], c[:1]), q, k, v)
        g.add("broadcast_heads", lambda a, b, c: sdpa(a, b[:, :1], c[:, :1]), q, k, v)
        g.add("grouped", lambda a, b, c: sdpa(a, b[:, :2], c[:, :2], enable_gqa=True), q, k, v)
        g.add("grouped_causal", lambda a, b, c: sdpa(a, b[:, :1], c[:, :1], is_causal=True, enable_gqa=True), q, k, v)
        g.add("transposed_layout", lambda a: sdpa(*(t.transpose(1, 2) for t in (a.transpose(1, 2).contiguous(),) * 3)), q)
        g.add("transposed_back", lambda a, b, c: sdpa(a, b, c).transpose(1, 2).reshape(2, 9, 64), q, k, v)
        g.add("empty_batch", lambda a, b, c: sdpa(a[:0], b[:0], c[:0]), q, k, v)
        g.add("large_logits", lambda a, b, c: sdpa(a * 40, b * 40, c), q, k, v, tol={"kind": "norm", "max": 1e-4})
    with suite.group("sdpa_masked_rows", "near", tol="norm") as g:
        rows = keep.clone()
        rows[:, :, 3] = False
        g.add("bool", lambda a, b, c, m: sdpa(a, b, c, attn_mask=m), q, k, v, rows)
        g.add("float", lambda a, b, c, m: sdpa(a, b, c, attn_mask=torch.where(m, 0.0, -INF).to(a.dtype)), q, k, v, rows)
    for short, dtype in FLOATS.items():
        a, b, c = (heads(n + short, 1, 2, s, 8, dtype=dtype) for n, s in (("a", 6), ("b", 11), ("c", 11)))
        with suite.group(f"sdpa_{short}", tol="norm") as g:
            g.add("plain", sdpa, a, b, c)
            g.add("causal", lambda b, c: sdpa(b, b, c, is_causal=True), b, c)
            g.add("mask", lambda a, b, c: sdpa(a, b, c, attn_mask=torch.ones(6, 11, dtype=torch.bool).tril(4)), a, b, c)
    with suite.group("sdpa_edges", tol="norm") as g:
        for length, width in ((1, 1), (17, 3), (64, 64), (130, 40), (257, 33)):
            t = heads(f"l{length}w{width}", 1, 2, length, width)
            g.add(f"{length}x{width}", lambda t: sdpa(t, t, t), t)
            g.add(f"causal_{length}x{width}", lambda t: sdpa(t, t * 0.5, t, is_causal=True), t)

    def by_hand(a, b, c, mask=None):
        scores = a @ b.transpose(-2, -1) / math.sqrt(a.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -INF)
        return torch.softmax(scores, -1) @ c

    with suite.group("attention_by_hand", "near", tol="norm") as g:
        g.add("plain", by_hand, q, k, v)
        g.add("mask", by_hand, q, k, v, keep)
        g.add("bias", lambda a, b, c, m: torch.softmax(torch.baddbmm(m.expand(8, 9, 13), a.flatten(0, 1), b.flatten(0, 1).mT), -1) @ c.flatten(0, 1), q, k, v, bias)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.attention = torch.nn.MultiheadAttention(24, 4, batch_first=True)
            self.norm = torch.nn.LayerNorm(24)

        def forward(self, x):
            y = self.norm(x)
            return x + self.attention(y, y, y, need_weights=False)[0]

    suite.model("multihead_attention", Block().eval(), [heads("mha", 2, 7, 24)], "near", tol="norm")
    torch.manual_seed(4)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True).eval()
    suite.model("encoder_layer", layer, [heads("encoder", 2, 5, 16)], "near", tol="norm")
    decoder = torch.nn.TransformerDecoderLayer(16, 2, 32, batch_first=True).eval()
    suite.model("decoder_layer", decoder, [heads("decoder", 2, 5, 16), heads("memory", 2, 6, 16)], "near", tol="norm")
