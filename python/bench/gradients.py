"""Backward passes for `operators.py --backward`: what is differentiated, and how it is timed beside eager's."""

from __future__ import annotations

import itertools
import statistics
import time
import unittest.mock

import torch
import torch.nn.functional as F

import inrush
from inrush.autograd import aot_cache

N = 1 << 20
SIDE = 1024


def elementwise(table):
    """Differentiable operators of PyTorch's table, of which `table` has name, function and arguments."""
    from torch.testing._internal.common_methods_invocations import op_db

    differentiable = {op.name for op in op_db if op.supports_autograd and not op.variant_test_name}
    for name, f, args in table:
        if name.removesuffix(".rows").removesuffix(".columns") in differentiable:
            yield name, f, args


def lists():
    """Operators with arguments of their own. Tensors of floats get gradients, the others and those behind a `None` do not."""
    x, y = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    vector, places = torch.randn(N), torch.randint(0, SIDE, (SIDE, SIDE))
    short = vector.view(-1, 16)
    weight, bias = torch.randn(SIDE), torch.randn(SIDE)
    queries, matrices = torch.randn(4, 8, 512, 64), torch.randn(16, 256, 256)
    line, triple = torch.randn(4, 64, 4096), torch.randn(64, 64, 3)
    steps = torch.randn(64, 32, 512)
    return {
        "softmax": (lambda x: torch.softmax(x, 1), x),
        "softmax.columns": (lambda x: torch.softmax(x, 0), x),
        "log_softmax": (lambda x: torch.log_softmax(x, 1), x),
        "log_softmax.columns": (lambda x: torch.log_softmax(x, 0), x),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (SIDE,), w, b), x, weight, bias),
        "layer_norm.plain": (lambda x: F.layer_norm(x, (SIDE,)), x),
        "layer_norm.short": (lambda x, w, b: F.layer_norm(x, (64,), w, b), x.view(-1, 64), weight[:64].clone(), bias[:64].clone()),
        "rms_norm": (lambda x, w: F.rms_norm(x, (SIDE,), w), x, weight),
        "normalize": (lambda x: F.normalize(x, dim=1), x),
        "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), x),
        "cumsum": (lambda x: x.cumsum(1), x),
        "cumsum.columns": (lambda x: x.cumsum(0), x),
        "cumprod": (lambda x: x.cumprod(1), x),
        "cummax": (lambda x: x.cummax(1)[0], x),
        "logcumsumexp": (lambda x: x.logcumsumexp(1), x),
        "logsumexp.rows": (lambda x: x.logsumexp(1), x),
        "logsumexp.columns": (lambda x: x.logsumexp(0), x),
        "norm": (lambda x: x.norm(), x),
        "norm.rows": (lambda x: x.norm(dim=1), x),
        "norm.p3": (lambda x: x.norm(3, dim=1), x),
        "std_mean.rows": (lambda x: sum(torch.std_mean(x, 1)), x),
        "max.rows": (lambda x: x.max(1)[0], x),
        "min.columns": (lambda x: x.min(0)[0], x),
        "median.short": (lambda x: x.median(1)[0], short),
        "kthvalue.short": (lambda x: x.kthvalue(3, 1)[0], short),
        "sort": (lambda x: x.sort(1)[0], x),
        "sort.short": (lambda x: x.sort(1)[0], short),
        "topk": (lambda x: x.topk(8, 1)[0], x),
        "topk.short": (lambda x: x.topk(4, 1)[0], short),
        "transpose": (lambda x: x.t().contiguous(), x),
        "view": (lambda x: x.view(-1) * 2, x),
        "slice": (lambda x: x[:, 3:900] * 2, x),
        "slice.step": (lambda x: x[:, ::2] * 2, x),
        "slice.rows": (lambda x: x[10:600] * 2, x),
        "select": (lambda x: x[:, 5] * 2, x),
        "unbind": (lambda x: x.unbind(0)[3] * 2, x),
        "split": (lambda x: x.split(256, 1)[1] * 2, x),
        "chunk.glu": (lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], x),
        "expand": (lambda x: x[:1].expand(SIDE, SIDE) * 2, x),
        "broadcast.row": (lambda x, w: x * w, x, weight),
        "broadcast.column": (lambda x, w: x * w, x, weight[:, None].clone()),
        "diagonal": (lambda x: x.diagonal() * 2, x),
        "unfold": (lambda x: x.unfold(1, 4, 2) * 2, x),
        "as_strided": (lambda x: x.as_strided((SIDE, 512), (SIDE, 2)) * 2, x),
        "cat": (lambda x, y: torch.cat([x, y], 1), x, y),
        "stack": (lambda x, y: torch.stack([x, y], 1), x, y),
        "flip": (lambda x: x.flip(1), x),
        "roll": (lambda x: x.roll(7, 1), x),
        "repeat": (lambda x: x.repeat(2, 2), x),
        "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), x),
        "tril": (torch.tril, x),
        "where": (lambda x, y: torch.where(x > 0, x, y), x, y),
        "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), x),
        "masked_select": (lambda x: x.masked_select(x > 0), x),
        "gather": (lambda x, i: x.gather(1, i), x, places),
        "gather.columns": (lambda x, i: x.gather(0, i), x, places),
        "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), x, places[:, :16].clone()),
        "take": (lambda x, i: x.take(i), x, places * SIDE + places.t()),
        "index_select": (lambda x, i: x.index_select(0, i), x, places[0]),
        "index_select.columns": (lambda x, i: x.index_select(1, i), x, places[0]),
        "index.rows": (lambda x, i: x[i], x, places[0]),
        "index.pairs": (lambda x, i, j: x[i, j], x, places, places.t().contiguous()),
        "embedding": (lambda x, i: F.embedding(i, x), x, places[0]),
        "embedding.padding": (lambda x, i: F.embedding(i, x, padding_idx=3), x, places[0]),
        "embedding.narrow": (lambda x, i: F.embedding(i, x), vector[: SIDE * 64].view(SIDE, 64).clone(), places[:16].clone()),
        "embedding_bag": (lambda x, i: F.embedding_bag(i, x), x, places[:64].clone()),
        "scatter": (lambda x, y, i: x.scatter(1, i, y), x, y, places),
        "scatter_add": (lambda x, y, i: x.scatter_add(1, i, y), x, y, places),
        "scatter_reduce.amax": (lambda x, y, i: x.scatter_reduce(1, i, y, "amax"), x, y, places),
        "index_add": (lambda x, y, i: x.index_add(0, i, y), x, y, places[0]),
        "index_copy": (lambda x, y, i: x.index_copy(0, i, y), x, y, torch.randperm(SIDE)),
        "index_put": (lambda x, y, i: x.index_put((i,), y, accumulate=True), x, y, places[0]),
        "mse_loss": (F.mse_loss, x, y),
        "l1_loss": (F.l1_loss, x, y),
        "smooth_l1_loss": (F.smooth_l1_loss, x, y),
        "huber_loss": (F.huber_loss, x, y),
        "soft_margin_loss": (lambda x, y: F.soft_margin_loss(x, y.detach().sign()), x, y),
        "cross_entropy": (lambda x, i: F.cross_entropy(x, i), x, places[0]),
        "cross_entropy.smooth": (lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1), x, places[0]),
        "cross_entropy.probabilities": (lambda x, y: F.cross_entropy(x, y.detach()), x, y.softmax(1)),
        "cross_entropy.images": (lambda x, i: F.cross_entropy(x, i % 16), torch.randn(4, 16, 128, 128), torch.randint(0, 16, (4, 128, 128))),
        "nll_loss": (lambda x, i: F.nll_loss(x, i), x, places[0]),
        "bce": (lambda x, y: F.binary_cross_entropy(x, y.detach()), x.sigmoid(), y.sigmoid()),
        "bce_with_logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach()), x, y.sigmoid()),
        "kl_div": (lambda x, y: F.kl_div(x, y.detach(), reduction="batchmean"), x.log_softmax(1), y.softmax(1)),
        "cosine_similarity": (F.cosine_similarity, x, y),
        "cosine_embedding_loss": (lambda x, y, i: F.cosine_embedding_loss(x, y, i % 2 * 2 - 1), x, y, places[0]),
        "triplet_margin_loss": (lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)), x, y),
        "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, (x > 0).float() * 2 - 1), x, y),
        "hinge_embedding_loss": (lambda x, y: F.hinge_embedding_loss(x, (y > 0).float() * 2 - 1), x, y),
        "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x, i), x, places[0]),
        "poisson_nll_loss": (F.poisson_nll_loss, x, y),
        "gaussian_nll_loss": (lambda x, y: F.gaussian_nll_loss(x, y, y * y + 1), x, y),
        "pairwise_distance": (F.pairwise_distance, x, y),
        "cdist": (lambda x, y: torch.cdist(x, y), x[:256, :64].clone(), y[:256, :64].clone()),
        "glu": (lambda x: F.glu(x, 1), x),
        "gelu": (F.gelu, x),
        "gelu.tanh": (lambda x: F.gelu(x, approximate="tanh"), x),
        "prelu": (F.prelu, torch.randn(4, 16, 128, 128), torch.rand(16)),
        "dropout": (lambda x: F.dropout(x, 0.5), x),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), x, y),
        "addcdiv": (lambda x, y: torch.addcdiv(x, x, y.abs() + 1), x, y),
        "mm": (torch.mm, x[:512].clone(), y),
        "bmm": (torch.bmm, matrices, matrices.flip(0)),
        "mv": (torch.mv, x, weight),
        "linear": (F.linear, x[:512].clone(), y, bias),
        "linear.narrow": (F.linear, x.view(-1, 64), y[:64, :64].clone(), bias[:64].clone()),
        "bilinear": (lambda x, y, w: F.bilinear(x, y, w), x[:, :32].clone(), y[:, :32].clone(), torch.randn(32, 32, 32)),
        "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), line, triple),
        "attention": (F.scaled_dot_product_attention, queries, queries.flip(0), queries.flip(1)),
        "attention.causal": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), queries, queries.flip(0)),
        "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), line),
        "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), line),
        "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 7), line),
        "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 3), line),
        "upsample_linear": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), line),
        "batch_norm1d": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, weight, bias),
        "gru_cell": (lambda x, g: torch.sigmoid(x) * g + (1 - torch.sigmoid(x)) * torch.tanh(g), steps, steps.flip(0)),
        "pad": (lambda x: F.pad(x, (3, 3)), x),
        "pad.reflect1d": (lambda x: F.pad(x, (3, 3), mode="reflect"), line),
    }


def images():
    """What goes over images: function of the image, and further arguments. Each is measured contiguous and with channels last."""
    w, taps = torch.randn(16, 16, 3, 3), torch.randn(16, 1, 3, 3)
    weight, bias = torch.rand(16) + 0.5, torch.randn(16)
    grid = torch.rand(4, 128, 128, 2) * 2 - 1
    near = F.affine_grid(torch.eye(2, 3).repeat(4, 1, 1) * 0.9, [4, 16, 128, 128], align_corners=False)
    return {
        "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), weight, bias),
        "batch_norm.eval": (lambda x, w, b: F.batch_norm(x, w.detach(), w.detach(), w, b, False), weight, bias),
        "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), weight, bias),
        "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), weight, bias),
        "local_response_norm": (lambda x: F.local_response_norm(x, 5),),
        "softmax.channels": (lambda x: torch.softmax(x, 1),),
        "relu": (torch.relu,),
        "max_pool2d": (lambda x: F.max_pool2d(x, 2),),
        "max_pool2d.overlap": (lambda x: F.max_pool2d(x, 3, 2, 1),),
        "avg_pool2d": (lambda x: F.avg_pool2d(x, 2),),
        "avg_pool2d.overlap": (lambda x: F.avg_pool2d(x, 3, 1, 1),),
        "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 2),),
        "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7),),
        "adaptive_avg_pool2d.one": (lambda x: F.adaptive_avg_pool2d(x, 1),),
        "adaptive_avg_pool2d.even": (lambda x: F.adaptive_avg_pool2d(x, 32),),
        "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 7),),
        "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2),),
        "nearest.down": (lambda x: F.interpolate(x, scale_factor=0.5),),
        "nearest.odd": (lambda x: F.interpolate(x, size=(200, 171)),),
        "nearest_exact": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),),
        "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),),
        "bilinear.corners": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),),
        "bilinear.down": (lambda x: F.interpolate(x, size=(50, 61), mode="bilinear"),),
        "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),),
        "bilinear.antialias": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),),
        "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), grid),
        "grid_sample.near": (lambda x, g: F.grid_sample(x, g, align_corners=False), near),
        "grid_sample.border": (lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False), near),
        "grid_sample.nearest": (lambda x, g: F.grid_sample(x, g.detach(), "nearest", align_corners=False), near),
        "grid_sample.bicubic": (lambda x, g: F.grid_sample(x, g, "bicubic", align_corners=False), near),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2),),
        "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2),),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)),),
        "pad.reflect": (lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"),),
        "pad.replicate": (lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"),),
        "pad.circular": (lambda x: F.pad(x, (3, 3, 3, 3), mode="circular"),),
        "unfold": (lambda x: F.unfold(x, 3, padding=1),),
        "fold": (lambda x: F.fold(x.reshape(4, 64, 4096), (128, 128), 2, stride=2),),
        "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous(),),
        "mean.pixels": (lambda x: x.mean((2, 3)),),
        "amax.pixels": (lambda x: x.amax((2, 3)),),
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), w),
        "conv2d.bias": (lambda x, w, b: F.conv2d(x, w, b, padding=1), w, bias),
        "conv2d.1x1": (F.conv2d, w[:, :, :1, :1].clone()),
        "conv2d.stride": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), w),
        "conv2d.dilation": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), w),
        "conv2d.groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), w[:, :4].clone()),
        "conv2d.depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=16), taps),
        "conv2d.depthwise.stride": (lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=16), taps),
        "conv2d.depthwise.5x5": (lambda x, w: F.conv2d(x, w, padding=2, groups=16), torch.randn(16, 1, 5, 5)),
        "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), w),
        "conv_transpose2d.depthwise": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=16), taps),
        "squeeze_excite": (lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),),
    }


def volumes():
    """What goes over volumes, as :func:`images`."""
    w, taps = torch.randn(16, 16, 3, 3, 3), torch.randn(16, 1, 3, 3, 3)
    grid = torch.rand(2, 16, 32, 64, 3) * 2 - 1
    near = F.affine_grid(torch.eye(3, 4).repeat(2, 1, 1) * 0.9, [2, 16, 16, 32, 64], align_corners=False)
    return {
        "batch_norm3d": (lambda x, w: F.batch_norm(x, None, None, w, w, True), torch.rand(16) + 0.5),
        "max_pool3d": (lambda x: F.max_pool3d(x, 2),),
        "max_pool3d.overlap": (lambda x: F.max_pool3d(x, 3, 2, 1),),
        "avg_pool3d": (lambda x: F.avg_pool3d(x, 2),),
        "avg_pool3d.overlap": (lambda x: F.avg_pool3d(x, 3, 2, 1),),
        "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 7),),
        "adaptive_avg_pool3d.one": (lambda x: F.adaptive_avg_pool3d(x, 1),),
        "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 7),),
        "max_unpool3d": (lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2),),
        "nearest3d": (lambda x: F.interpolate(x, scale_factor=2),),
        "trilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),),
        "grid_sample3d": (lambda x, g: F.grid_sample(x, g, align_corners=False), grid),
        "grid_sample3d.near": (lambda x, g: F.grid_sample(x, g, align_corners=False), near),
        "pad.replicate3d": (lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),),
        "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), w),
        "conv3d.depthwise": (lambda x, w: F.conv3d(x, w, padding=1, groups=16), taps),
    }


def cases(table):
    yield from elementwise(table)
    for name, (f, *args) in lists().items():
        yield name, f, tuple(args)
    image, volume = torch.randn(4, 16, 128, 128), torch.randn(2, 16, 16, 32, 64)
    for kind, x, last in ((images(), image, torch.channels_last), (volumes(), volume, torch.channels_last_3d)):
        for name, (f, *args) in kind.items():
            yield name, f, (x, *args)
            yield name + ".channels_last", f, (x.to(memory_format=last), *args)


def differentiable(args):
    """`args` as leaves, and those of them that get gradients."""
    fresh = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
    leaves = [a.requires_grad_() for a in fresh if isinstance(a, torch.Tensor) and a.is_floating_point()]
    return fresh, leaves


def of_results(out):
    """The result that is differentiated."""
    return out if isinstance(out, torch.Tensor) else out[0]


def measure(f, args, seconds):
    """Times of a backward pass by inrush, of the compiled code that it ends in, and of eager's, as `operators.measure` gives them."""
    torch._dynamo.reset()
    args, leaves = differentiable(args)
    # What a function detaches gets none.
    out = of_results(f(*args))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        grad = torch.empty_like(out).normal_()
    used = torch.autograd.grad(out, leaves, grad, allow_unused=True)
    leaves = [leaf for leaf, g in zip(leaves, used) if g is not None]
    compiled = torch.compile(f, backend="inrush", fullgraph=True, dynamic=False, options={"strict": True, "cache": False})
    entered = []
    call = aot_cache.Code.__call__

    def recorded(code, inputs):
        entered.append((code, list(inputs)))
        return call(code, inputs)

    with unittest.mock.patch.object(aot_cache.Code, "__call__", recorded):
        torch.autograd.grad(of_results(compiled(*args)), leaves, grad)
    ((code, inputs),) = [(c.function, inputs) for c, inputs in entered if c.kind == "backward"]
    (report,) = [g for g in inrush.last_compile().graphs if g.kind == "backward"]

    def backward(function):
        out = of_results(function(*args))
        start = time.perf_counter()
        torch.autograd.grad(out, leaves, grad)
        return time.perf_counter() - start

    def alone():
        start = time.perf_counter()
        code(*inputs)
        return time.perf_counter() - start

    times = {"inrush": [], "code": [], "eager": []}
    turns = [("inrush", lambda: backward(compiled)), ("code", alone), ("eager", lambda: backward(f))]
    end = time.perf_counter() + seconds
    for order in itertools.cycle(itertools.permutations(turns)):
        for name, function in order:
            times[name].append(function())
        if time.perf_counter() > end and len(times["eager"]) >= 6:
            break
    figures = {k: {"median": 1e6 * statistics.median(v), "best": 1e6 * min(v)} for k, v in times.items()}
    return figures, [c.op for c in report.calls if c.op != "inrush.seed.default"]
