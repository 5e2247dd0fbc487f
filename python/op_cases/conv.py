"""Convolutions of one, two and three dimensions: strides, padding, dilation, groups, depthwise, transposed, layouts."""

import torch
import torch.nn.functional as F

from .pointwise import FLOATS, spread

LAST = torch.channels_last


def mat(name, *sizes, dtype=torch.float32):
    return spread(name, dtype, *sizes, low=-1.0, high=1.0)


def cases(suite):
    x = mat("image", 2, 6, 13, 11)
    w3, w1, w5, b = mat("w3", 8, 6, 3, 3), mat("w1", 10, 6, 1, 1), mat("w5", 4, 6, 5, 5), mat("b", 8)
    with suite.group("conv2d", "zoo", tol="norm") as g:
        g.add("plain", F.conv2d, x, w3)
        g.add("bias", F.conv2d, x, w3, b)
        g.add("padding", lambda t, w, c: F.conv2d(t, w, c, padding=1), x, w3, b)
        g.add("stride", lambda t, w: F.conv2d(t, w, stride=2, padding=1), x, w3)
        g.add("stride_uneven", lambda t, w, c: F.conv2d(t, w, c, stride=(3, 2), padding=(0, 2)), x, w3, b)
        g.add("dilation", lambda t, w: F.conv2d(t, w, padding=2, dilation=2), x, w3)
        g.add("dilation_uneven", lambda t, w: F.conv2d(t, w, dilation=(1, 3)), x, w3)
        g.add("one_by_one", F.conv2d, x, w1)
        g.add("one_by_one_stride", lambda t, w: F.conv2d(t, w, stride=2), x, w1)
        g.add("one_by_one_padding", lambda t, w: F.conv2d(t, w, padding=1), x, w1)
        g.add("five", lambda t, w: F.conv2d(t, w, padding=2), x, w5)
        g.add("padding_beyond_kernel", lambda t, w: F.conv2d(t, w, padding=4), x, w3)
        g.add("same", lambda t, w: F.conv2d(t, w, padding="same"), x, w3)
        g.add("same_even_kernel", lambda t, w: F.conv2d(t, w[:, :, :2, :2], padding="same"), x, w3)
        g.add("valid", lambda t, w: F.conv2d(t, w, padding="valid"), x, w5)
        g.add("no_batch", lambda t, w, c: F.conv2d(t[0], w, c, padding=1), x, w3, b)
        g.add("empty_batch", lambda t, w: F.conv2d(t[:0], w), x, w3)
        g.add("kernel_is_image", lambda t, w: F.conv2d(t[:, :, :5, :5], w), x, w5)
        g.add("rectangular", lambda t, w: F.conv2d(t, w[:, :, :1], padding=(0, 1)), x, w3)
    with suite.group("conv2d_groups", "zoo", tol="norm") as g:
        wg, wd = mat("wg", 9, 2, 3, 3), mat("wd", 6, 1, 3, 3)
        g.add("groups", lambda t, w: F.conv2d(t, w, groups=3, padding=1), x, wg)
        g.add("groups_bias_stride", lambda t, w, c: F.conv2d(t, w, torch.cat([c, c[:1]]), groups=3, stride=2), x, wg, b)
        g.add("depthwise", lambda t, w: F.conv2d(t, w, groups=6, padding=1), x, wd)
        g.add("depthwise_stride", lambda t, w: F.conv2d(t, w, groups=6, stride=2, padding=1), x, wd)
        g.add("depthwise_dilation", lambda t, w: F.conv2d(t, w, groups=6, dilation=2, padding=2), x, wd)
        g.add("depthwise_five", lambda t, w: F.conv2d(t, w, groups=6, padding=2), x, mat("wd5", 6, 1, 5, 5))
        g.add("depthwise_multiplier", lambda t, w: F.conv2d(t, w, groups=6), x, mat("wdm", 12, 1, 3, 3))
        g.add("depthwise_one", lambda t, w: F.conv2d(t[:, :1], w[:1], padding=1), x, wd)
        g.add("groups_one_by_one", lambda t, w: F.conv2d(t, w, groups=2), x, mat("wg1", 4, 3, 1, 1))
    with suite.group("conv2d_layouts", tol="norm") as g:
        g.add("input_last", lambda t, w: F.conv2d(t.to(memory_format=LAST), w, padding=1), x, w3)
        g.add("both_last", lambda t, w: F.conv2d(t.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST)), x, w3)
        g.add("sliced_channels", lambda t, w: F.conv2d(t[:, 1:5], w[:, :4]), x, w3)
        g.add("transposed_image", lambda t, w: F.conv2d(t.transpose(2, 3), w), x, w3)
        g.add("strided_image", lambda t, w: F.conv2d(t[:, :, ::2, 1::2], w), x, w3)
        g.add("expanded_channels", lambda t, w: F.conv2d(t[:, :1].expand(2, 6, 13, 11), w), x, w3)
        g.add("flattened_after", lambda t, w: F.conv2d(t, w, stride=3).flatten(2).transpose(1, 2), x, w3)
        g.add("computed_weight", lambda t, w: F.conv2d(t, w * 2 + 1), x, w3)
    sizes = ((1, 1, 1, 1, 3), (1, 3, 33, 17, 7), (3, 16, 16, 9, 3), (1, 17, 31, 8, 1), (1, 64, 32, 14, 3), (5, 8, 24, 6, 5))
    with suite.group("conv2d_edges", tol="norm") as g:
        for n, c, o, s, k in sizes:
            label = f"n{n}c{c}o{o}s{s}k{k}"
            image, weight = mat(label, n, c, s, s), mat("w" + label, o, c, k, k)
            g.add(label, lambda t, w, p=k // 2: F.conv2d(t, w, w[:, 0, 0, 0], padding=p), image, weight)
    with suite.group("conv2d_fused", "zoo", tol="norm") as g:
        scale, shift = mat("scale", 8) + 1.5, mat("shift", 8)
        norm = lambda t, s, h: F.batch_norm(t, h * 0.3, s, s, h, eps=1e-3)
        g.add("relu", lambda t, w, c: F.relu(F.conv2d(t, w, c)), x, w3, b)
        g.add("batch_norm", lambda t, w, s, h: norm(F.conv2d(t, w), s, h), x, w3, scale, shift)
        g.add("batch_norm_bias_relu", lambda t, w, c, s, h: F.relu(norm(F.conv2d(t, w, c, padding=1), s, h)), x, w3, b, scale, shift)
        g.add("hardswish", lambda t, w, s, h: F.hardswish(norm(F.conv2d(t, w), s, h)), x, w3, scale, shift)
        g.add("residual", lambda t, w: F.relu(F.conv2d(t, w[:6], padding=1) + t), x, w3)
        g.add("residual_inplace", lambda t, w: F.conv2d(t, w[:6], padding=1).add_(t).relu_(), x, w3)
        g.add("squeeze_excite", lambda t, w: t * F.hardsigmoid(F.conv2d(F.adaptive_avg_pool2d(t, 1), w[:6])), x, w1)
        g.add("two_readers", lambda t, w: (lambda y: (F.relu(y), y.mean((2, 3))))(F.conv2d(t, w)), x, w3)
        g.add("cat_after", lambda t, w, v: torch.cat([F.conv2d(t, w, padding=1), F.conv2d(t, v)], 1), x, w3, w1)
        g.add("pool_after", lambda t, w: F.max_pool2d(F.relu(F.conv2d(t, w)), 2), x, w3)
        g.add("chain", lambda t, w: F.conv2d(F.relu(F.conv2d(t, w[:6], padding=1)), w[:, :], stride=2), x, w3)
    for short, dtype in FLOATS.items():
        with suite.group(f"conv2d_{short}", tol="norm") as g:
            t, w, c = mat("t" + short, 1, 5, 9, 9, dtype=dtype), mat("w" + short, 7, 5, 3, 3, dtype=dtype), mat("c" + short, 7, dtype=dtype)
            g.add("conv", lambda t, w, c: F.conv2d(t, w, c, padding=1), t, w, c)
            g.add("depthwise", lambda t, w: F.conv2d(t, w[:5, :1], groups=5), t, w)
    y = mat("signal", 3, 4, 29)
    with suite.group("conv1d", "near", tol="norm") as g:
        w = mat("w1d", 6, 4, 5)
        g.add("plain", F.conv1d, y, w)
        g.add("options", lambda t, w: F.conv1d(t, w, w[:, 0, 0], stride=2, padding=3, dilation=2), y, w)
        g.add("groups", lambda t, w: F.conv1d(t, w[:, :2], groups=2), y, w)
        g.add("depthwise", lambda t, w: F.conv1d(t, w[:4, :1], groups=4, padding=4)[..., :29], y, w)
        g.add("one", lambda t, w: F.conv1d(t, w[:, :, :1]), y, w)
        g.add("same", lambda t, w: F.conv1d(t, w, padding="same"), y, w)
        g.add("no_batch", lambda t, w: F.conv1d(t[0], w), y, w)
    with suite.group("conv_transpose", "near", tol="norm") as g:
        w = mat("wt", 6, 5, 3, 3)
        g.add("plain", F.conv_transpose2d, x, w)
        g.add("stride", lambda t, w: F.conv_transpose2d(t, w, stride=2), x, w)
        g.add("options", lambda t, w: F.conv_transpose2d(t, w, w[0, :, 0, 0], stride=(2, 3), padding=1, output_padding=(1, 2)), x, w)
        g.add("dilation", lambda t, w: F.conv_transpose2d(t, w, dilation=2, padding=2), x, w)
        g.add("groups", lambda t, w: F.conv_transpose2d(t, w, groups=2, stride=2), x, w)
        g.add("blocks", lambda t, w: F.conv_transpose2d(t, w, w[0, :, 0, 0], stride=3), x, w)
        g.add("gaps", lambda t, w: F.conv_transpose2d(t, w[:, :, :1, :2], w[0, :, 0, 0], stride=3, output_padding=1), x, w)
        g.add("cut_off", lambda t, w: F.conv_transpose2d(t, w, stride=2, padding=3), x, w)
        g.add("one_d", lambda t, w: F.conv_transpose1d(t, w, stride=2, padding=1), y, mat("wt1", 4, 3, 4))
    with suite.group("conv3d", "near", tol="norm") as g:
        v, w = mat("volume", 1, 3, 5, 7, 6), mat("w3d", 4, 3, 2, 3, 3)
        g.add("plain", F.conv3d, v, w)
        g.add("options", lambda t, w: F.conv3d(t, w, w[:, 0, 0, 0, 0], stride=(1, 2, 1), padding=1), v, w)
