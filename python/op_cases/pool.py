"""Pooling and resampling."""

import torch
import torch.nn.functional as F

from .pointwise import spread


def cases(suite):
    x, y = spread("pooled", torch.float32, 2, 3, 13, 11), spread("pooled1", torch.float32, 2, 3, 17)
    with suite.group("max_pool", "zoo", tol="exact") as g:
        g.add("two", lambda t: F.max_pool2d(t, 2), x)
        g.add("resnet", lambda t: F.max_pool2d(t, 3, 2, 1), x)
        g.add("uneven", lambda t: F.max_pool2d(t, (3, 2), (1, 2), (1, 0)), x)
        g.add("dilation", lambda t: F.max_pool2d(t, 3, 1, 1, dilation=2), x)
        g.add("ceil", lambda t: F.max_pool2d(t, 3, 2, ceil_mode=True), x)
        g.add("ceil_padding", lambda t: F.max_pool2d(t, 2, 2, 1, ceil_mode=True), x)
        g.add("no_batch", lambda t: F.max_pool2d(t[0], 2), x)
        g.add("one_d", lambda t: F.max_pool1d(t, 3, 2, 1), y)
        g.add("negative", lambda t: F.max_pool2d(t - 100, 3, 2, 1), x)
        g.add("nan", lambda t: F.max_pool2d(torch.where(t > 3.5, float("nan"), t), 2), x)
        g.add("channels_last", lambda t: F.max_pool2d(t.to(memory_format=torch.channels_last), 3, 2, 1), x)
        g.add("indices", lambda t: F.max_pool2d(t, 2, return_indices=True), x)
        g.add("adaptive", lambda t: F.adaptive_max_pool2d(t, (4, 5)), x)
        g.add("adaptive_indices", lambda t: F.adaptive_max_pool2d(t, (4, 5), return_indices=True), x)
        nan, low = float("nan"), -float("inf")
        g.add("several_nans", lambda t: F.max_pool2d(torch.where(t > 0.5, nan, t), 3, 2, 1, return_indices=True), x)
        g.add("several_nans_adaptive", lambda t: F.adaptive_max_pool2d(torch.where(t > 0.5, nan, t), (4, 5), return_indices=True), x)
        g.add("all_lowest", lambda t: F.max_pool2d(torch.full_like(t, low), 3, 2, 1, return_indices=True), x)
        g.add("all_lowest_dilated", lambda t: F.max_pool2d(torch.full_like(t, low), 2, 1, 1, dilation=2, return_indices=True), x)
        g.add("some_lowest", lambda t: F.max_pool1d(torch.where(t > -1, low, t), 3, 2, 1, return_indices=True), y)
        g.add("three_d", lambda t: F.max_pool3d(t[:, None], 2), x)
    with suite.group("avg_pool", "zoo", tol="norm") as g:
        g.add("two", lambda t: F.avg_pool2d(t, 2), x)
        g.add("padding", lambda t: F.avg_pool2d(t, 3, 2, 1), x)
        g.add("exclude_padding", lambda t: F.avg_pool2d(t, 3, 2, 1, count_include_pad=False), x)
        g.add("ceil", lambda t: F.avg_pool2d(t, 3, 2, ceil_mode=True), x)
        g.add("ceil_padding", lambda t: F.avg_pool2d(t, (3, 2), (3, 2), (1, 1), ceil_mode=True), x)
        g.add("divisor", lambda t: F.avg_pool2d(t, 2, divisor_override=3), x)
        g.add("one_d", lambda t: F.avg_pool1d(t, 4, 3, 2), y)
        g.add("three_d", lambda t: F.avg_pool3d(t[:, None], 2), x)
        g.add("adaptive_one", lambda t: F.adaptive_avg_pool2d(t, 1), x)
        g.add("adaptive_uneven", lambda t: F.adaptive_avg_pool2d(t, (5, 3)), x)
        g.add("adaptive_keep", lambda t: F.adaptive_avg_pool2d(t, (None, 1)), x)
        g.add("adaptive_same", lambda t: F.adaptive_avg_pool2d(t, (13, 11)), x)
        g.add("adaptive_larger", lambda t: F.adaptive_avg_pool2d(t, (20, 11)), x)
        g.add("adaptive_one_d", lambda t: F.adaptive_avg_pool1d(t, 5), y)
        g.add("global_mean", lambda t: t.mean((2, 3)), x)
        g.add("lp", lambda t: F.lp_pool2d(t.abs(), 2, 2), x)
    with suite.group("resample", "near", tol="norm") as g:
        for mode in ("nearest", "nearest-exact"):
            g.add(mode, lambda t, m=mode: F.interpolate(t, scale_factor=2, mode=m), x)
            g.add(mode + "_size", lambda t, m=mode: F.interpolate(t, (9, 20), mode=m), x)
        for align in (False, True):
            g.add(f"bilinear_{align}", lambda t, a=align: F.interpolate(t, (9, 20), mode="bilinear", align_corners=a), x)
            g.add(f"bilinear_scale_{align}", lambda t, a=align: F.interpolate(t, scale_factor=1.5, mode="bilinear", align_corners=a), x)
            g.add(f"linear_{align}", lambda t, a=align: F.interpolate(t, 30, mode="linear", align_corners=a), y)
    with suite.group("resample_cubic", "later", tol="norm") as g:
        g.add("bicubic", lambda t: F.interpolate(t, (9, 20), mode="bicubic"), x)
        g.add("antialias", lambda t: F.interpolate(t, (7, 5), mode="bilinear", antialias=True), x)
