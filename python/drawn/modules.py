"""Modules that a program may call: for a value's shape the text that makes one."""

from __future__ import annotations

import random
from typing import Callable

Shape = tuple[int, ...]


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def conv(rng: random.Random, shape: Shape, rank: int, transposed: bool = False) -> str | None:
    channels = shape[1]
    groups = rng.choice([1, 1, channels, rng.choice(divisors(channels))]) if channels else 1
    out = rng.choice([1, 3, 8, 16, 17, channels]) if groups == 1 else groups * rng.choice([1, 1, 1, 2])
    kernel = tuple(rng.choice([1, 1, 2, 3, 3, 3, 4, 5, 7]) for _ in range(rank)) if rng.random() < 0.4 else (rng.choice([1, 2, 3, 3, 5, 7]),) * rank
    stride, dilation = rng.choice([1, 1, 1, 2, 3]), rng.choice([1, 1, 1, 1, 2])
    padding: object = tuple(rng.choice([0, k // 2, k - 1]) for k in kernel)
    extra = f", stride={stride}, dilation={dilation}, groups={groups}, bias={rng.random() < 0.7}"
    if transposed:
        more = f", output_padding={rng.choice([0, 0, max(stride, dilation) - 1])}"
        return f"nn.ConvTranspose{rank}d({channels}, {out}, {kernel}, padding={padding}{extra}{more})"
    if stride == 1 and rng.random() < 0.2:
        padding = "'same'"
    mode = rng.choice(["", "", "", "", ", padding_mode='reflect'", ", padding_mode='circular'", ", padding_mode='replicate'"])
    return f"nn.Conv{rank}d({channels}, {out}, {kernel}, padding={padding}{extra}{mode})"


def pool(rng: random.Random, rank: int) -> str:
    k, s = rng.choice([1, 2, 3, 3, 5]), rng.choice([1, 2, 2, 3])
    p, ceil = rng.choice([0, k // 2]), rng.random() < 0.4
    if rng.random() < 0.5:
        return f"nn.MaxPool{rank}d({k}, {s}, {p}, dilation={rng.choice([1, 1, 1, 2])}, ceil_mode={ceil})"
    return f"nn.AvgPool{rank}d({k}, {s}, {p}, ceil_mode={ceil}, count_include_pad={rng.random() < 0.5})"


def adaptive(rng: random.Random, rank: int) -> str:
    size = tuple(rng.choice([1, 1, 2, 3, 5, 7]) for _ in range(rank))
    return f"nn.Adaptive{rng.choice(['Avg', 'Avg', 'Max'])}Pool{rank}d({size if rank > 1 else size[0]})"


def batch_norm(rng: random.Random, shape: Shape) -> str:
    rank = len(shape) - 2
    text = f"nn.BatchNorm{max(rank, 1)}d({shape[1]}, affine={rng.random() < 0.8}, track_running_stats={rng.random() < 0.8})"
    return text + rng.choice(["", ".eval()"])


def group_norm(rng: random.Random, shape: Shape) -> str:
    return f"nn.GroupNorm({rng.choice(divisors(shape[1]))}, {shape[1]}, affine={rng.random() < 0.7})"


def upsample(rng: random.Random, shape: Shape) -> str:
    rank = len(shape) - 2
    modes = {1: ["nearest", "linear"], 2: ["nearest", "bilinear", "bicubic", "nearest-exact"], 3: ["nearest", "trilinear"]}[rank]
    mode = rng.choice(modes)
    corners = f", align_corners={rng.random() < 0.5}" if "linear" in mode or "cubic" in mode else ""
    return f"nn.Upsample(scale_factor={rng.choice([2, 2, 3, 0.5, 1.5])}, mode={mode!r}{corners})"


def padded(rng: random.Random, shape: Shape) -> str:
    rank = len(shape) - 2
    kind = rng.choice(["ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"])
    return f"nn.{kind}{rank}d({tuple(rng.choice([0, 1, 1, 2]) for _ in range(2 * rank))})"


def attention(rng: random.Random, shape: Shape) -> str:
    heads = rng.choice(divisors(shape[2]))
    return f"nn.MultiheadAttention({shape[2]}, {heads}, batch_first=True)"


def encoder(rng: random.Random, shape: Shape) -> str:
    heads = rng.choice(divisors(shape[2]))
    return (
        f"nn.TransformerEncoderLayer({shape[2]}, {heads}, {rng.choice([4, 17])}, dropout=0.0, "
        f"activation={rng.choice(['relu', 'gelu'])!r}, batch_first=True, norm_first={rng.random() < 0.5})"
    )


def recurrent(rng: random.Random, shape: Shape) -> str:
    kind = rng.choice(["LSTM", "GRU", "RNN"])
    return f"nn.{kind}({shape[-1]}, {rng.choice([3, 8])}, num_layers={rng.choice([1, 2])}, batch_first=True, bidirectional={rng.random() < 0.3})"


def block(rng: random.Random, shape: Shape) -> str | None:
    first = conv(rng, shape, len(shape) - 2)
    out = int(first.split(",")[1])
    act = rng.choice(["nn.ReLU()", "nn.SiLU()", "nn.Hardswish()", "nn.GELU()", "nn.ReLU6(inplace=True)"])
    return f"nn.Sequential({first}, nn.BatchNorm{len(shape) - 2}d({out}){rng.choice(['', '.eval()'])}, {act})"


# Name -> ranks of the value, maker of the module, call.
MODULES: dict[str, tuple[tuple[int, ...], Callable[[random.Random, Shape], str | None], str]] = {
    "Conv1d": ((3,), lambda r, s: conv(r, s, 1), "{m}({x})"),
    "Conv2d": ((4,), lambda r, s: conv(r, s, 2), "{m}({x})"),
    "Conv3d": ((5,), lambda r, s: conv(r, s, 3), "{m}({x})"),
    "ConvTranspose1d": ((3,), lambda r, s: conv(r, s, 1, True), "{m}({x})"),
    "ConvTranspose2d": ((4,), lambda r, s: conv(r, s, 2, True), "{m}({x})"),
    "Conv-Norm-Act": ((3, 4), block, "{m}({x})"),
    "Pool": ((3, 4, 5), lambda r, s: pool(r, len(s) - 2), "{m}({x})"),
    "AdaptivePool": ((3, 4), lambda r, s: adaptive(r, len(s) - 2), "{m}({x})"),
    "LPPool": ((4,), lambda r, s: f"nn.LPPool2d({r.choice([1, 2])}, {r.choice([2, 3])}, ceil_mode={r.random() < 0.5})", "{m}({x}.abs() + 0.5)"),
    "BatchNorm": ((2, 3, 4, 5), batch_norm, "{m}({x})"),
    "GroupNorm": ((2, 3, 4), group_norm, "{m}({x})"),
    "InstanceNorm": ((3, 4), lambda r, s: f"nn.InstanceNorm{len(s) - 2}d({s[1]}, affine={r.random() < 0.5})", "{m}({x})"),
    "LayerNorm": ((1, 2, 3, 4), lambda r, s: f"nn.LayerNorm({tuple(s[-r.randint(1, len(s)):])})", "{m}({x})"),
    "RMSNorm": ((1, 2, 3, 4), lambda r, s: f"nn.RMSNorm({s[-1]})", "{m}({x})"),
    "LocalResponseNorm": ((3, 4), lambda r, s: f"nn.LocalResponseNorm({r.choice([1, 2, 3, 5])})", "{m}({x})"),
    "Linear": ((1, 2, 3, 4), lambda r, s: f"nn.Linear({s[-1]}, {r.choice([1, 3, 8, 17, 32])}, bias={r.random() < 0.7})", "{m}({x})"),
    "Bilinear": ((2,), lambda r, s: f"nn.Bilinear({s[-1]}, {s[-1]}, {r.choice([1, 4])})", "{m}({x}, {x})"),
    "PReLU": ((2, 3, 4), lambda r, s: f"nn.PReLU({r.choice([1, s[1]])})", "{m}({x})"),
    "Upsample": ((3, 4, 5), upsample, "{m}({x})"),
    "Pad": ((3, 4), padded, "{m}({x})"),
    "PixelShuffle": ((4,), lambda r, s: r.choice(["nn.PixelShuffle(2)", "nn.PixelUnshuffle(2)", "nn.ChannelShuffle(2)"]), "{m}({x})"),
    "Unfold": ((4,), lambda r, s: f"nn.Unfold({r.choice([1, 2, 3])}, padding={r.choice([0, 1])}, stride={r.choice([1, 2])})", "{m}({x})"),
    "Attention": ((3,), attention, "{m}({x}, {x}, {x})[0]"),
    "EncoderLayer": ((3,), encoder, "{m}({x})"),
    "Recurrent": ((2, 3), recurrent, "{m}({x})[0]"),
}
# Modules of integers: the value gives the rows.
TABLES: dict[str, tuple[str, str]] = {
    "Embedding": ("nn.Embedding(11, {k})", "{m}({i}.long() % 11)"),
    "Embedding with padding": ("nn.Embedding(11, {k}, padding_idx=0)", "{m}({i}.long() % 11)"),
    "EmbeddingBag": ("nn.EmbeddingBag(11, {k}, mode={mode!r})", "{m}({i}.long().reshape(-1, {i}.shape[-1]) % 11)"),
}
