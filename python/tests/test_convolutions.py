"""Convolutions of images of contiguous layout and of channels last, beside eager in double precision."""

import inrush
import pytest
import torch
import torch.nn.functional as F

CONV = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}

# Input, filters, options: odd sizes, more than one vector of pixels and less than one, phases of a step, all kinds of padding.
CASES = {
    "1x1": ((2, 5, 17, 23), (7, 5, 1, 1), {}),
    "1x1 many channels": ((1, 70, 16, 17), (130, 70, 1, 1), {}),
    "1x1 step": ((2, 5, 33, 35), (9, 5, 1, 1), {"stride": 2}),
    "plain": ((2, 3, 19, 37), (21, 3, 3, 3), {"padding": 1}),
    "short lines": ((5, 6, 9, 7), (13, 6, 3, 3), {"padding": 1}),
    "few pixels": ((2, 20, 7, 7), (33, 20, 3, 3), {"padding": 1}),
    "lines of nearly a vector": ((1, 9, 14, 14), (19, 9, 3, 3), {"padding": 1}),
    "lines of several tiles": ((2, 5, 9, 75), (13, 5, 3, 3), {"padding": 1}),
    "long sums": ((2, 80, 15, 18), (9, 80, 3, 3), {"padding": "same"}),
    "step": ((2, 4, 41, 39), (10, 4, 3, 3), {"padding": 1, "stride": 2}),
    "step of three": ((2, 4, 41, 61), (10, 4, 5, 5), {"padding": 2, "stride": 3}),
    "steps": ((2, 4, 41, 39), (8, 4, 3, 2), {"padding": (2, 0), "stride": (1, 2)}),
    "dilation": ((2, 4, 29, 31), (6, 4, 3, 3), {"padding": (2, 3), "dilation": (2, 3)}),
    "groups": ((2, 12, 21, 19), (15, 4, 3, 3), {"padding": 1, "groups": 3}),
    "groups of four": ((2, 32, 21, 19), (32, 4, 3, 3), {"padding": 1, "groups": 8}),
    "groups of eight with a step": ((2, 64, 23, 37), (64, 8, 3, 3), {"padding": 1, "stride": 2, "groups": 8}),
    "groups of two, apart": ((1, 32, 17, 20), (32, 2, 3, 2), {"padding": (2, 1), "dilation": (2, 1), "groups": 16}),
    "groups of three to four": ((2, 24, 9, 30), (32, 3, 3, 3), {"groups": 8}),
    "line": ((3, 6, 301), (11, 6, 5), {"padding": 2, "dilation": 2}),
    "volume": ((2, 3, 5, 9, 13), (7, 3, 2, 3, 3), {"padding": (1, 0, 1)}),
    "unbatched": ((3, 19, 21), (4, 3, 3, 3), {"padding": 1}),
    "no image": ((0, 3, 19, 21), (4, 3, 3, 3), {"padding": 1}),
    "one channel": ((2, 8, 30, 33), (1, 8, 3, 3), {"padding": 1}),
}


def check(f, *args, tolerance=2e-5):
    """Compiled results against eager's of the same operands in float64, relative to the largest of them."""
    torch._dynamo.reset()
    g = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    with torch.no_grad():
        got, want = g(*args), f(*(a.double() for a in args))
    assert got.shape == want.shape and got.dtype == args[0].dtype
    assert got.stride() == f(*args).stride()
    scale = want.abs().max().clamp(min=1) if want.numel() else 1
    error = (got.double() - want).abs() / scale
    assert error.numel() == 0 or error.max() < tolerance, error.max()
    assert not any(graph.calls for graph in inrush.last_compile().graphs)
    return g


def operands(name, dtype=torch.float32):
    torch.manual_seed(3)
    size, filters, options = CASES[name]
    conv = CONV[len(filters)]
    x, w, b = torch.randn(size), torch.randn(filters), torch.randn(filters[0])
    return conv, options, x.to(dtype), w.to(dtype), b.to(dtype)


@pytest.mark.parametrize("name", CASES)
def test_alone(name):
    conv, options, x, w, b = operands(name)
    check(lambda x, w: conv(x, w, **options), x, w)
    check(lambda x, w, b: conv(x, w, b, **options), x, w, b)


@pytest.mark.parametrize("name", CASES)
def test_channels_last(name):
    conv, options, x, w, b = operands(name)
    if x.dim() == 4:
        check(lambda x, w, b: conv(x, w, b, **options), x.to(memory_format=torch.channels_last), w, b)


@pytest.mark.parametrize("name", CASES)
def test_between_others(name):
    """What comes before and behind, with operands of other shapes."""
    conv, options, x, w, b = operands(name)
    like = conv(x, w, b, **options)
    rest, scale = torch.randn_like(like), torch.randn(like.shape[-1])

    def f(x, w, b, rest, scale):
        y = conv(x.tanh(), w, b, **options)
        return (y + rest).relu() * scale

    check(f, x, w, b, rest, scale)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(name, dtype):
    conv, options, x, w, b = operands(name, dtype)
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-13}[dtype]
    check(lambda x, w, b: conv(x, w, b, **options), x, w, b, tolerance=tolerance)


@pytest.mark.parametrize("name", ["1x1", "plain", "step", "groups", "line", "volume"])
def test_sizes_that_change(name):
    conv, options, x, w, b = operands(name)
    for d in (0, *range(2, x.dim())):
        torch._dynamo.mark_dynamic(x, d)
    g = check(lambda x, w, b: conv(x, w, b, **options), x, w, b)
    for size in ((3, 5), (1, 11), (4, 24)):
        images, more = size
        y = torch.randn(images, x.shape[1], *(n + more for n in x.shape[2:]))
        want = conv(y.double(), w.double(), b.double(), **options)
        with torch.no_grad():
            torch.testing.assert_close(g(y, w, b).double(), want, rtol=1e-4, atol=1e-4)


class Layer(torch.nn.Module):
    def __init__(self, options, w, b):
        super().__init__()
        self.options = options
        self.weight, self.bias = torch.nn.Parameter(w), torch.nn.Parameter(b)

    def forward(self, x):
        return CONV[self.weight.dim()](x, self.weight, self.bias, **self.options).sigmoid()


@pytest.mark.parametrize("name", ["1x1", "plain", "short lines", "long sums", "step", "groups", "line"])
def test_weights_of_a_model(name):
    """Filters that are laid out when the model is loaded."""
    conv, options, x, w, b = operands(name)
    layer = Layer(options, w, b).eval()
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(layer, backend="inrush", fullgraph=True, options={"strict": True})(x)
        want = layer.double()(x.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["1x1", "plain", "step", *(name for name in CASES if "groups" in name)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients(name, layout):
    conv, options, x, w, b = operands(name)
    x = x.to(memory_format=layout)
    f = lambda x, w, b: conv(x, w, b, **options).relu()
    torch._dynamo.reset()
    g = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    leaves = [t.requires_grad_() for t in (x, w, b)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    got, want = g(*leaves), f(*exact)
    weight = torch.randn_like(got)
    have = torch.autograd.grad((got * weight).sum(), leaves)
    wanted = torch.autograd.grad((want * weight.double()).sum(), exact)
    for h, v in zip(have, wanted):
        torch.testing.assert_close(h.double(), v, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("side", [3, 5, 7])
def test_depthwise_rows_of_every_remainder(side):
    """Channels last, rows of 4 to 12 pixels: groups of jammed pixels leave every remainder, a single pixel among them."""
    torch._dynamo.reset()
    filters = torch.randn(32, 1, side, side)
    images = [torch.randn(1, 32, 4, n).to(memory_format=torch.channels_last) for n in range(4, 13)]

    def f(images, filters):
        return [F.conv2d(x, filters, padding=side // 2, groups=32) for x in images]

    compiled = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    with torch.no_grad():
        got, want = compiled(images, filters), f([x.double() for x in images], filters.double())
    for a, b in zip(got, want):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
