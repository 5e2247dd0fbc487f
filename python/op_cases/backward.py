"""Gradient formulas, called as the graphs of a backward pass call them: with what the forward operators saved."""

import torch

from .core import generator
from .pointwise import INF, NAN, spread

A = torch.ops.aten
FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16}


def cases(suite):
    activations(suite)
    norms(suite)
    losses(suite)
    pools(suite)
    parts(suite)
    convolutions(suite)
    attention(suite)
    sampling(suite)
    bags(suite)
    training(suite)


def sampling(suite):
    x, g = spread("image", torch.float32, 2, 3, 5, 6), spread("grad", torch.float32, 2, 3, 4, 3)
    at = spread("points", torch.float32, 2, 4, 3, 2, low=-1.6, high=1.6)
    with suite.group("grid_backward") as s:
        for mode, kind in enumerate(("linear", "nearest", "cubic")):
            for padding, outside in enumerate(("zeros", "border", "reflection")):
                f = lambda g, x, at, m=mode, p=padding: A.grid_sampler_2d_backward(g, x, at, m, p, m == p, [True, True])
                s.add(f"{kind}_{outside}", f, g, x, at, tol="norm")
                s.add(f"{kind}_{outside}_forward", lambda x, at, m=mode, p=padding: A.grid_sampler_2d(x, at, m, p, m == p), x, at, tol="norm")
        x, g = spread("volume", torch.float32, 1, 2, 3, 4, 5), spread("grad", torch.float32, 1, 2, 2, 3, 2)
        at = spread("points", torch.float32, 1, 2, 3, 2, 3, low=-1.6, high=1.6)
        s.add("volume", lambda g, x, at: A.grid_sampler_3d_backward(g, x, at, 0, 2, False, [True, True]), g, x, at, tol="norm")
        s.add("volume_forward", lambda x, at: A.grid_sampler_3d(x, at, 0, 1, False), x, at, tol="norm")


def bags(suite):
    table, index = spread("table", torch.float32, 7, 4), torch.tensor([1, 5, 2, 2, 6, 0, 5])
    offsets = torch.tensor([0, 3, 3, 5])
    weights, g = spread("weights", torch.float32, 7), spread("grad", torch.float32, 4, 4)
    with suite.group("embedding_bags") as s:
        for mode, how in enumerate(("sum", "mean", "max")):
            f = lambda t, i, o, m=mode: A._embedding_bag(t, i, o, False, m, False, None, False, 2)[0]
            s.add(how, f, table, index, offsets, tol="close")
            back = lambda g, t, i, o, m=mode: A._embedding_bag_backward(g, i, o, *A._embedding_bag(t, i, o, False, m)[1:], 7, False, m, False, None)
            s.add(how + "_backward", back, g, table, index, offsets, tol="close")
        s.add("weighted", lambda t, i, o, w: A._embedding_bag(t, i, o, False, 0, False, w)[0], table, index, offsets, weights, tol="close")
    x = spread("rows", torch.float32, 5, 3)
    with suite.group("pair_distances") as s:
        for p in (0.0, 1.0, 1.5, 2.0, float("inf")):
            s.add(f"pdist_{p}", lambda x, p=p: A._pdist_forward(x, p), x, tol="close")
            s.add(f"pdist_backward_{p}", lambda x, p=p: A._pdist_backward(A._pdist_forward(x, p), x, p, A._pdist_forward(x, p)), x, tol="norm")


def activations(suite):
    for short, dtype in FLOATS.items():
        g, x = spread("grad" + short, dtype, 5, 37), spread("slope" + short, dtype, 5, 37)
        with suite.group(f"activation_backward_{short}") as s:
            s.add("threshold", lambda g, x: A.threshold_backward(g, x, 0.25), g, x)
            s.add("tanh", lambda g, x: A.tanh_backward(g, x.tanh()), g, x, tol="norm")
            s.add("sigmoid", lambda g, x: A.sigmoid_backward(g, x.sigmoid()), g, x, tol="norm")
            s.add("silu", A.silu_backward.default, g, x)
            # 1 + erf(x) cancels where x is negative, in any f32.
            s.add("gelu", A.gelu_backward.default, g, x, tol="norm")
            s.add("gelu_tanh", lambda g, x: A.gelu_backward(g, x, approximate="tanh"), g, x, tol="norm")
            s.add("elu", lambda g, x: A.elu_backward(g, 0.7, 1.5, 2.0, False, x), g, x)
            s.add("elu_result", lambda g, x: A.elu_backward(g, 0.7, 1.5, 2.0, True, x), g, x)
            s.add("leaky_relu", lambda g, x: A.leaky_relu_backward(g, x, 0.2, False), g, x)
            s.add("hardtanh", lambda g, x: A.hardtanh_backward(g, x, -1, 1), g, x)
            s.add("hardswish", A.hardswish_backward.default, g, x)
            s.add("hardsigmoid", A.hardsigmoid_backward.default, g, x)
            s.add("softplus", lambda g, x: A.softplus_backward(g, x, 2.0, 3.0), g, x)
            s.add("mish", A.mish_backward.default, g, x)
            s.add("log_sigmoid", lambda g, x: A.log_sigmoid_backward(g, x, torch.exp(-x.abs())), g, x)
            s.add("softshrink", lambda g, x: A.softshrink_backward(g, x, 0.5), g, x)
            s.add("hardshrink", lambda g, x: A.hardshrink_backward(g, x, 0.5), g, x)
            s.add("glu", lambda g, x: A.glu_backward(g[:, :18], x[:, :36], -1), g, x)
            s.add("prelu", lambda g, x: A._prelu_kernel_backward(g, x, x[:1]), g, x)
            s.add("dropout", lambda g, x: A.native_dropout_backward(g, x > 0, 1.0 / 0.7), g, x)
            s.add("softmax", lambda g, x: A._softmax_backward_data(g, x.softmax(-1), -1, x.dtype), g, x, tol="norm")
            s.add("softmax_first", lambda g, x: A._softmax_backward_data(g, x.softmax(0), 0, x.dtype), g, x, tol="norm")
            s.add("log_softmax", lambda g, x: A._log_softmax_backward_data(g, x.log_softmax(-1), -1, x.dtype), g, x, tol="norm")
    odd = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0, INF, -INF, 88.0, -88.0])
    g = torch.ones_like(odd)
    with suite.group("activation_backward_special") as s:
        s.add("threshold", lambda g, x: A.threshold_backward(g, x, 0), g, odd)
        s.add("threshold_nan", lambda g, x: A.threshold_backward(g, x + NAN, 0), g, odd)
        s.add("sigmoid", lambda g, x: A.sigmoid_backward(g, x.sigmoid()), g, odd)
        s.add("hardswish", A.hardswish_backward.default, g, odd)
        s.add("hardsigmoid", A.hardsigmoid_backward.default, g, odd)
        s.add("hardtanh", lambda g, x: A.hardtanh_backward(g, x, -1, 1), g, odd)
        s.add("leaky_relu", lambda g, x: A.leaky_relu_backward(g, x, 0.2, False), g, odd)
        # Without -0.0, for which eager gives -inf in whole vectors and inf in what is left of them.
        s.add("logit", lambda g, x: A.logit_backward(g, x), g, odd + 0.0)
        s.add("logit_eps", lambda g, x: A.logit_backward(g, x, 0.1), g, odd)
        s.add("softplus", lambda g, x: A.softplus_backward(g, x, 1.0, 20.0), g, odd)
        s.add("log_sigmoid", lambda g, x: A.log_sigmoid_backward(g, x, torch.exp(-x.abs())), g, odd)


def norms(suite):
    for short, dtype in FLOATS.items():
        x, g = spread("nb" + short, dtype, 3, 6, 5, 4), spread("ng" + short, dtype, 3, 6, 5, 4)
        w, c = spread("nw" + short, dtype, 6), spread("nv" + short, dtype, 5, 4)
        mean, var = spread("nm" + short, dtype, 6), spread("ns" + short, dtype, 6).abs() + 0.1
        every = [True] * 3
        # Sums of halves are rounded in another order than eager's.
        tol = "norm" if dtype in (torch.float32, torch.float64) else {"kind": "norm", "max": 2e-2 if dtype is torch.bfloat16 else 4e-3}

        def layer(g, x, w, mask=every):
            _, m, r = A.native_layer_norm(x, [5, 4], w, w, 1e-5)
            return [o for o, wanted in zip(A.native_layer_norm_backward(g, x, [5, 4], m, r, w, w, mask), mask) if wanted]

        def batch(g, x, w, mask=every):
            _, m, r = A.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
            return [o for o, wanted in zip(A.native_batch_norm_backward(g, x, w, None, None, m, r, True, 1e-5, mask), mask) if wanted]

        def group(g, x, w, mask=every):
            _, m, r = A.native_group_norm(x, w, w, 3, 6, 20, 2, 1e-5)
            return [o for o, wanted in zip(A.native_group_norm_backward(g, x, m, r, w, 3, 6, 20, 2, mask), mask) if wanted]

        with suite.group(f"norm_backward_{short}", tol=tol) as s:
            s.add("layer", layer, g, x, c)
            s.add("layer_input", lambda g, x, w: layer(g, x, w, [True, False, False]), g, x, c)
            s.add("layer_parameters", lambda g, x, w: layer(g, x, w, [False, True, True]), g, x, c)
            s.add("batch", batch, g, x, w)
            s.add("batch_plain", lambda g, x: batch(g, x, None, [True, False, False]), g, x)
            s.add("batch_weight", lambda g, x, w: batch(g, x, w, [False, True, False]), g, x, w)
            s.add("batch_eval", lambda g, x, w, m, v: A.native_batch_norm_backward(g, x, w, m, v, None, None, False, 1e-5, every), g, x, w, mean, var)
            s.add("group", group, g, x, w)
            s.add("group_plain", lambda g, x: group(g, x, None, [True, False, False]), g, x)
    x, g = spread("nb", torch.float32, 3, 6, 5, 4), spread("ng", torch.float32, 3, 6, 5, 4)
    w, mean, var = spread("nw", torch.float32, 6), spread("nm", torch.float32, 6), spread("ns", torch.float32, 6).abs() + 0.1
    with suite.group("batch_norm_saved", tol="norm") as s:
        s.add("functional", lambda x, w, m, v: A._native_batch_norm_legit_functional(x, w, w, m, v, True, 0.3, 1e-5), x, w, mean, var)
        s.add("with_update", lambda x, w, m, v: A._batch_norm_with_update_functional(x, w, w, m, v, 0.3, 1e-5), x, w, mean, var)
        s.add("no_update", lambda x, w, m, v: A._batch_norm_no_update(x, w, w, m, v, 0.3, 1e-5)[0], x, w, mean, var)


def losses(suite):
    x, t = spread("lx", torch.float32, 6, 5), spread("lt", torch.float32, 6, 5)
    one = torch.tensor(0.7)
    classes = torch.tensor([4, 0, 2, 2, 1, 3])
    weight = torch.rand(5, generator=generator("lw")) + 0.5
    with suite.group("loss_backward") as s:
        for r, g in ((0, x), (1, one), (2, one)):
            s.add(f"mse_{r}", lambda g, x, t, r=r: A.mse_loss_backward(g, x, t, r), g, x, t)
            s.add(f"smooth_l1_{r}", lambda g, x, t, r=r: A.smooth_l1_loss_backward(g, x, t, r, 0.5), g, x, t)
            s.add(f"huber_{r}", lambda g, x, t, r=r: A.huber_loss_backward(g, x, t, r, 0.7), g, x, t)
            s.add(f"soft_margin_{r}", lambda g, x, t, r=r: A.soft_margin_loss_backward(g, x, t.sign(), r), g, x, t)
            s.add(f"bce_{r}", lambda g, x, t, r=r: A.binary_cross_entropy_backward(g, x.sigmoid(), t.sigmoid(), None, r), g, x, t)
            for w in (None, weight):
                for ignore in (-100, 2):
                    rows = x[:, 0] if r == 0 else one
                    name = f"nll_{r}_{w is not None}_{ignore}"
                    s.add(name, lambda g, x, c, w=w, r=r, i=ignore: A.nll_loss_backward(g, x, c, w, r, i, A.nll_loss_forward(x, c, w, r, i)[1]), rows, x, classes)
        s.add("bce_edges", lambda g, x: A.binary_cross_entropy_backward(g, (x > 0).float(), (x > 0.5).float(), None, 1), one, x)
        s.add("bce_weight", lambda g, x, t: A.binary_cross_entropy_backward(g, x.sigmoid(), t.sigmoid(), t.abs(), 1), one, x, t)
        s.add("smooth_l1_sharp", lambda g, x, t: A.smooth_l1_loss_backward(g, x, t, 1, 0.0), one, x, t)
        s.add("soft_margin", lambda x, t: A.soft_margin_loss(x, t.sign(), 1), x, t)
        image = classes.reshape(2, 3, 1)
        s.add("nll_2d", lambda g, x, c: A.nll_loss2d_backward(g, x, c, None, 1, 3, A.nll_loss2d_forward(x, c, None, 1, 3)[1]), one, x.reshape(2, 3, 5).transpose(1, 2).unsqueeze(-1).contiguous(), image)
        s.add("nll_one", lambda g, x, c: A.nll_loss_backward(g, x[0], c[0], None, 1, -100, A.nll_loss_forward(x[0], c[0], None, 1, -100)[1]), one, x, classes)


def pools(suite):
    x = spread("pb", torch.float32, 2, 3, 13, 11)
    d = spread("pb3", torch.float32, 2, 2, 5, 6, 7)

    def grad(y):
        return torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) * 0.01 + 1

    def max2(t, k, s, p, dil=(1, 1), ceil=False):
        y, i = A.max_pool2d_with_indices(t, k, s, p, dil, ceil)
        return A.max_pool2d_with_indices_backward(grad(y), t, k, s, p, dil, ceil, i)

    def avg2(t, k, s, p, ceil=False, count=True, divisor=None):
        y = A.avg_pool2d(t, k, s, p, ceil, count, divisor)
        return A.avg_pool2d_backward(grad(y), t, k, s, p, ceil, count, divisor)

    with suite.group("pool_backward", tol="norm") as s:
        s.add("max", lambda t: max2(t, [2, 2], [2, 2], [0, 0]), x)
        s.add("max_overlap", lambda t: max2(t, [3, 3], [2, 2], [1, 1]), x)
        s.add("max_dense", lambda t: max2(t, [3, 2], [1, 1], [1, 0]), x)
        s.add("max_dilated", lambda t: max2(t, [3, 3], [1, 2], [1, 1], (2, 2)), x)
        s.add("max_ceil", lambda t: max2(t, [3, 3], [2, 2], [0, 0], ceil=True), x)
        s.add("max_ties", lambda t: max2(t.round(), [3, 3], [1, 1], [1, 1]), x)
        s.add("max_no_batch", lambda t: max2(t[0], [3, 3], [2, 2], [1, 1]), x)
        s.add("max_channels_last", lambda t: max2(t.to(memory_format=torch.channels_last), [3, 3], [2, 2], [1, 1]), x)
        s.add("max_3d", lambda t: (lambda y, i: A.max_pool3d_with_indices_backward(grad(y), t, [2, 3, 2], [1, 2, 2], [0, 1, 1], [1, 1, 1], False, i))(*A.max_pool3d_with_indices(t, [2, 3, 2], [1, 2, 2], [0, 1, 1])), d)
        s.add("max_adaptive", lambda t: (lambda y, i: A.adaptive_max_pool2d_backward(grad(y), t, i))(*A.adaptive_max_pool2d(t, [4, 5])), x)
        s.add("max_adaptive_3d", lambda t: (lambda y, i: A.adaptive_max_pool3d_backward(grad(y), t, i))(*A.adaptive_max_pool3d(t, [2, 3, 4])), d)
        s.add("avg", lambda t: avg2(t, [2, 2], [2, 2], [0, 0]), x)
        s.add("avg_padding", lambda t: avg2(t, [3, 3], [2, 2], [1, 1]), x)
        s.add("avg_exclude_padding", lambda t: avg2(t, [3, 3], [2, 2], [1, 1], count=False), x)
        s.add("avg_ceil", lambda t: avg2(t, [3, 2], [3, 2], [1, 1], ceil=True), x)
        s.add("avg_dense", lambda t: avg2(t, [4, 3], [1, 2], [2, 1], count=False), x)
        s.add("avg_divisor", lambda t: avg2(t, [2, 2], [2, 2], [0, 0], divisor=3), x)
        s.add("avg_3d", lambda t: A.avg_pool3d_backward(grad(A.avg_pool3d(t, [2, 2, 3], [1, 2, 2], [1, 0, 1])), t, [2, 2, 3], [1, 2, 2], [1, 0, 1], False, True, None), d)
        for size in ((1, 1), (4, 5), (13, 3), (20, 11)):
            s.add(f"adaptive_{size[0]}_{size[1]}", lambda t, z=size: A._adaptive_avg_pool2d_backward(grad(A._adaptive_avg_pool2d(t, z)), t), x)
        s.add("adaptive_3d", lambda t: A._adaptive_avg_pool3d_backward(grad(A._adaptive_avg_pool3d(t, [2, 3, 4])), t), d)


def parts(suite):
    x = spread("vb", torch.float32, 3, 8)
    with suite.group("view_backward", tol="norm") as s:
        s.add("slice", lambda g: A.slice_backward(g, [3, 11], 1, 2, 10, 1), x)
        s.add("slice_step", lambda g: A.slice_backward(g, [3, 18], 1, 3, 9223372036854775807, 2), x)
        s.add("slice_negative", lambda g: A.slice_backward(g, [3, 11], -1, -8, 9223372036854775807, 1), x)
        s.add("select", lambda g: A.select_backward(g, [3, 4, 8], 1, -2), x)
        s.add("diagonal", lambda g: A.diagonal_backward(g, [3, 8, 9], 1, 1, 2), x)
        s.add("unfold", lambda g: A.unfold_backward(g.unfold(1, 3, 2), [3, 8], 1, 3, 2), x)
        s.add("unfold_gaps", lambda g: A.unfold_backward(g.unfold(1, 2, 3), [3, 8], 1, 2, 3), x)
        s.add("unfold_first", lambda g: A.unfold_backward(g.unfold(0, 2, 1), [3, 8], 0, 2, 1), x)
        s.add("fold", lambda g: torch.nn.functional.fold(g.repeat(4, 2)[:, :15], (4, 6), 2), x)
        s.add("fold_stride", lambda g: torch.nn.functional.fold(g.repeat(6, 2)[:, :6], (5, 6), (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 2)), x)
        image = spread("vi", torch.float32, 2, 3, 9, 10)
        s.add("reflection", lambda g: A.reflection_pad2d_backward(g, g[:, :, :5, :6], [2, 2, 3, 1]), image)
        s.add("reflection_one_side", lambda g: A.reflection_pad1d_backward(g[0], g[0, :, :, :7].contiguous(), [3, 0]), image)
        s.add("replication", lambda g: A.replication_pad2d_backward(g, g[:, :, :5, :6], [2, 2, 3, 1]), image)
        s.add("replication_3d", lambda g: A.replication_pad3d_backward(g, g[:, :1, :8, :8], [1, 1, 1, 0, 2, 0]), image)
        words = torch.tensor([[0, 3, 3], [5, 0, 3]])
        rows = spread("ve", torch.float32, 2, 3, 4)
        s.add("embedding", lambda g, i: A.embedding_dense_backward(g, i, 7, -1, False), rows, words)
        s.add("embedding_padding", lambda g, i: A.embedding_dense_backward(g, i, 7, 3, False), rows, words)
        s.add("embedding_frequency", lambda g, i: A.embedding_dense_backward(g, i, 7, 0, True), rows, words)
        s.add("embedding_half", lambda g, i: A.embedding_dense_backward(g.bfloat16(), i, 7, -1, False), rows, words, tol={"kind": "norm", "max": 2e-2})
        s.add("put", lambda g, i: A.put(g, i, g[0, :6].reshape(2, 3), True), x, words)


def convolutions(suite):
    x, d = spread("cb", torch.float32, 2, 4, 9, 8), spread("cb3", torch.float32, 2, 4, 5, 6, 5)
    line = spread("cb1", torch.float32, 3, 4, 17)

    def conv(t, w, s, p, dil=(1, 1), transposed=False, extra=(0, 0), groups=1, mask=(True, True, True)):
        y = A.convolution(t, w, None, s, p, dil, transposed, extra, groups)
        g = y.cos()
        outs = A.convolution_backward(g, t, w, [g.shape[1]], s, p, dil, transposed, extra, groups, mask)
        return [o for o, wanted in zip(outs, mask) if wanted]

    def weight(*sizes):
        return spread("cw" + repr(sizes), torch.float32, *sizes)

    with suite.group("convolution_backward", tol="norm") as s:
        s.add("plain", lambda t, w: conv(t, w, [1, 1], [1, 1]), x, weight(6, 4, 3, 3))
        s.add("stride", lambda t, w: conv(t, w, [2, 2], [1, 1]), x, weight(6, 4, 3, 3))
        s.add("uneven", lambda t, w: conv(t, w, [2, 3], [2, 0], (1, 2)), x, weight(6, 4, 3, 2))
        s.add("one_by_one", lambda t, w: conv(t, w, [1, 1], [0, 0]), x, weight(6, 4, 1, 1))
        s.add("one_by_one_stride", lambda t, w: conv(t, w, [2, 2], [0, 0]), x, weight(6, 4, 1, 1))
        s.add("groups", lambda t, w: conv(t, w, [1, 1], [1, 1], groups=2), x, weight(6, 2, 3, 3))
        s.add("depthwise", lambda t, w: conv(t, w, [1, 1], [1, 1], groups=4), x, weight(4, 1, 3, 3))
        s.add("depthwise_stride", lambda t, w: conv(t, w, [2, 2], [2, 2], groups=4), x, weight(8, 1, 5, 5))
        s.add("weight_only", lambda t, w: conv(t, w, [2, 2], [1, 1], mask=[False, True, False]), x, weight(6, 4, 3, 3))
        s.add("input_only", lambda t, w: conv(t, w, [2, 2], [1, 1], mask=[True, False, False]), x, weight(6, 4, 3, 3))
        s.add("transposed", lambda t, w: conv(t, w, [2, 2], [1, 1], (1, 1), True, (1, 0)), x, weight(4, 6, 3, 3))
        s.add("transposed_groups", lambda t, w: conv(t, w, [2, 1], [0, 1], (1, 2), True, (0, 0), 2), x, weight(4, 3, 2, 3))
        s.add("one_d", lambda t, w: conv(t, w, [2], [1], (1,), extra=(0,)), line, weight(5, 4, 3))
        s.add("three_d", lambda t, w: conv(t, w, [1, 2, 1], [1, 0, 1], (1, 1, 1), extra=(0, 0, 0)), d, weight(3, 4, 3, 2, 2))
        s.add("channels_last", lambda t, w: conv(t.to(memory_format=torch.channels_last), w, [2, 2], [1, 1]), x, weight(6, 4, 3, 3))


def attention(suite):
    q, k, v = (spread("ab" + n, torch.float32, 2, 3, 5, 8) for n in "qkv")
    mask = torch.rand(5, 5, generator=generator("ab")) > 0.3
    mask[:, 0] = True

    def attend(q, k, v, causal=False, mask=None, scale=None):
        out, lse = A._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return A._scaled_dot_product_flash_attention_for_cpu_backward(out.cos(), q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)

    with suite.group("attention_backward", tol="norm") as s:
        s.add("plain", attend, q, k, v)
        s.add("causal", lambda q, k, v: attend(q, k, v, True), q, k, v)
        s.add("scale", lambda q, k, v: attend(q, k, v, scale=0.2), q, k, v)
        s.add("mask", lambda q, k, v, m: attend(q, k, v, mask=torch.where(m, 0.0, -INF)), q, k, v, mask)
        s.add("longer_keys", lambda q, k, v: attend(q[:, :, :2], k, v), q, k, v)
        s.add("bf16", lambda q, k, v: attend(q.bfloat16(), k.bfloat16(), v.bfloat16()), q, k, v, tol={"kind": "norm", "max": 2e-2})


def training(suite):
    """Training mode moves the running statistics, which some schemas do not say."""

    class Norm(torch.nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn
            self.register_buffer("mean", spread("tm", torch.float32, 6))
            self.register_buffer("var", spread("tv", torch.float32, 6).abs() + 0.1)

        def forward(self, x):
            return self.fn(x, self.mean, self.var)

    x = spread("tx", torch.float32, 3, 6, 4)
    runs = [(x * 2 + 1,), (x.flip(0).neg(),)]
    suite.model("native_batch_norm_training", Norm(lambda x, m, v: A.native_batch_norm(x, None, None, m, v, True, 0.2, 1e-5)), [x], runs=runs, stateful=True, tol="norm")
    suite.model("batch_norm_legit_training", Norm(lambda x, m, v: A._native_batch_norm_legit(x, None, None, m, v, True, 0.2, 1e-5)), [x], runs=runs, stateful=True, tol="norm")
    suite.model("batch_norm_with_update", Norm(lambda x, m, v: A._batch_norm_with_update(x, torch.ones(6), torch.zeros(6), m, v, 0.2, 1e-5)[0]), [x], runs=runs, stateful=True, tol="norm")
