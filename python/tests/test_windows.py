"""Operators over windows and their gradients beside eager in float64: sizes that leave windows and vectors incomplete."""

import pytest
import torch
from torch.nn import functional as F

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}

POOLS = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max.overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max.every": lambda x: F.max_pool2d(x, 5, 1, 2),
    "max.dilated": lambda x: F.max_pool2d(x, 3, (2, 1), 1, 2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 2),
    "avg.overlapping": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg.inside": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg.divisor": lambda x: F.avg_pool2d(x, (5, 3), (3, 1), (2, 0), divisor_override=4),
    "avg.every": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "avg.gaps": lambda x: F.avg_pool2d(x, 2, 3, ceil_mode=True),
    "adaptive.avg": lambda x: F.adaptive_avg_pool2d(x, (7, 5)),
    "adaptive.avg.more": lambda x: F.adaptive_avg_pool2d(x, (40, 60)),
    "adaptive.max": lambda x: F.adaptive_max_pool2d(x, (7, 5)),
    "adaptive.max.few": lambda x: F.adaptive_max_pool2d(x, (19, 23)),
}
VOLUMES = {
    "max": lambda x: F.max_pool3d(x, 3, 2, 1),
    "avg": lambda x: F.avg_pool3d(x, 3, 2, 1),
    "avg.every": lambda x: F.avg_pool3d(x, 3, 1, 1, count_include_pad=False),
    "adaptive.avg": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 7)),
    "adaptive.max": lambda x: F.adaptive_max_pool3d(x, (3, 4, 7)),
}
RESAMPLING = {
    "nearest": dict(scale_factor=2),
    "nearest.down": dict(scale_factor=0.5),
    "nearest.sizes": dict(size=(50, 31)),
    "nearest-exact.factors": dict(scale_factor=(1.7, 0.3)),
    "bilinear": dict(scale_factor=2),
    "bilinear.corners": dict(size=(64, 90), align_corners=True),
    "bilinear.one": dict(size=(1, 2), align_corners=True),
    "bilinear.down": dict(scale_factor=(0.3, 0.77)),
    "bilinear.much": dict(scale_factor=(9, 2)),
    "bicubic": dict(scale_factor=2),
    "bicubic.corners": dict(size=(50, 31), align_corners=True),
}


def check(f, *args, tolerance=2e-6):
    """Results and gradients of ``f`` in float32, compiled, beside those of eager in float64."""
    inputs = [a.detach().clone(memory_format=torch.preserve_format).requires_grad_() for a in args]
    exact = [a.detach().double().requires_grad_() for a in args]
    y = torch.compile(f, backend="inrush", options={"strict": True})(*inputs)
    want = f(*exact)
    torch.manual_seed(1)
    weight = torch.empty_like(want, dtype=torch.float32).copy_(torch.randn(want.shape))
    grads = torch.autograd.grad(y, inputs, weight)
    wanted = torch.autograd.grad(want, exact, weight.double())
    for a, b in zip((y, *grads), (want, *wanted), strict=True):
        assert a.shape == b.shape
        scale = max(1.0, float(b.detach().abs().max()))
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        # As eager's in float32 lie.
        assert a.stride() == b.stride() or 1 in a.shape


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, channels_last):
    x = torch.randn(2, 19, 37, 53, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.to(memory_format=LAYOUTS[4])
    check(POOLS[name], x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", VOLUMES)
def test_pools_of_volumes(name, channels_last):
    x = torch.randn(2, 5, 9, 18, 37, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.to(memory_format=LAYOUTS[5])
    check(VOLUMES[name], x)


def test_no_windows():
    def f(x):
        return F.adaptive_avg_pool2d(x, (0, 3)), *F.adaptive_max_pool2d(x, (3, 0), return_indices=True), F.adaptive_avg_pool3d(x, (2, 0, 1))

    x = torch.randn(2, 3, 5, 7)
    for y, want in zip(torch.compile(f, backend="inrush", options={"strict": True})(x), f(x), strict=True):
        assert y.shape == want.shape and y.dtype == want.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("window", [(3, 2, 1, 1), (2, 2, 1, 1), (3, 1, 1, 2), (5, 3, 2, 1)])
def test_positions_of_the_greatest(window, dtype):
    """Of equal ones the first, of several NaNs the last, of minus infinities the first inside."""
    torch.manual_seed(0)
    x = torch.randint(0, 4, (2, 3, 23, 35)).to(dtype)
    x[torch.rand(x.shape) < 0.05] = float("nan")
    x[0, 0] = -float("inf")
    x[0, 1, 3:] = float("nan")
    pools = [
        lambda x: F.max_pool2d(x, *window, return_indices=True),
        lambda x: F.max_pool2d(x, *window, ceil_mode=True, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (11, 13), return_indices=True),
    ]
    for f in pools:
        got = torch.compile(f, backend="inrush", options={"strict": True})(x)
        torch.testing.assert_close(got, f(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kernel, stride", [(3, 1), (3, 2), (4, 2), (2, 3), (7, 4)])
def test_columns_become_images(kernel, stride):
    generator = torch.Generator().manual_seed(0)
    for size, padding, dilation in (((41, 70), 1, 1), ((30, 44), 2, 2)):
        spans = [(n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for n in size]
        x = torch.randn(2, 3 * kernel**2, spans[0] * spans[1], generator=generator)
        check(lambda x, s=size, p=padding, d=dilation: F.fold(x, s, kernel, d, p, stride), x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kernel, stride, padding, dilation", [(3, 1, 1, 1), (3, 2, 1, 1), (5, 2, 2, 1), (3, 1, 2, 2), (4, 3, 0, 1)])
def test_depthwise(kernel, stride, padding, dilation, channels_last):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, 37, 70, generator=generator)
    w = torch.randn(24, 1, kernel, kernel, generator=generator)
    if channels_last:
        x = x.to(memory_format=LAYOUTS[4])
    check(lambda x, w: F.conv2d(x, w, None, stride, padding, dilation, 24), x, w, tolerance=4e-6)


@pytest.mark.parametrize("kernel, stride, padding, dilation", [(9, 1, 4, 1), (5, 1, 2, 1), (7, 1, 6, 2), (4, 2, 3, 1)])
@pytest.mark.parametrize("size", [(14, 14), (7, 6), (3, 4)])
def test_depthwise_of_small_images(size, kernel, stride, padding, dilation):
    """Rows that fill a vector in part, and a half or a quarter of one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, *size, generator=generator)
    w = torch.randn(24, 1, kernel, kernel, generator=generator)
    check(lambda x, w: F.conv2d(x, w, None, stride, padding, dilation, 24), x, w, tolerance=4e-6)


@pytest.mark.parametrize("kernel, padding, dilation", [(9, 4, 1), ((5, 7), (0, 3), 1), ((11, 3), (5, 1), 1), (7, 6, 2), (12, 5, 1), ((6, 5), 2, 1), ((7, 1), (3, 0), 1)])
@pytest.mark.parametrize("size", [(14, 14), (13, 20), (28, 31), (6, 33), (70, 9), (12, 65)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_depthwise_rows_side_by_side(size, kernel, padding, dilation, dtype):
    """Long filters, with what is fused into them: some rows at a time, and what is left over."""
    generator = torch.Generator().manual_seed(0)
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    pads = padding if isinstance(padding, tuple) else (padding, padding)
    if any(n + 2 * p <= dilation * (k - 1) for n, p, k in zip(size, pads, kernel)):
        pytest.skip("the filter is larger than the image")
    x = torch.randn(2, 6, *size, generator=generator).to(dtype)
    w, b = torch.randn(6, 1, *kernel, generator=generator).to(dtype), torch.randn(6, generator=generator).to(dtype)
    f = lambda x, w, b: F.conv2d(x, w, b, 1, padding, dilation, 6)  # noqa: E731
    want = f(x.double(), w.double(), b.double())
    got = torch.compile(f, backend="inrush", options={"strict": True})(x, w, b)
    bound = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 5e-2}[dtype]
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound * 4)
    g = lambda x, w, b: torch.relu(f(x.cos(), w, b)) + 1  # noqa: E731
    torch.testing.assert_close(
        torch.compile(g, backend="inrush", options={"strict": True})(x, w, b).double(), g(x.double(), w.double(), b.double()), rtol=bound * 2, atol=bound * 8
    )


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation",
    [(7, 1, 3, 1), (3, 1, 1, 1), (5, 2, 2, 1), ((5, 7), 1, (0, 3), 1), ((11, 3), 1, (5, 1), 1), (7, (1, 2), 6, 2), (9, 1, 0, 1), ((6, 5), 1, 2, 1), ((1, 12), 1, (0, 7), 1), ((7, 1), 1, (3, 0), 1)],
)
@pytest.mark.parametrize("channels, size", [(16, (7, 7)), (67, (13, 23)), (50, (3, 2)), (131, (19, 57)), (1, (14, 14)), (33, (1, 28))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_depthwise_pixels_side_by_side(channels, size, kernel, stride, padding, dilation, dtype):
    """Channels last: some pixels of a row at a time, at the edges and between them, and what is left over."""
    generator = torch.Generator().manual_seed(0)
    pair = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    if any(n + 2 * p <= dilation * (k - 1) for n, p, k in zip(size, pair(padding), pair(kernel))):
        pytest.skip("the filter is larger than the image")
    x = torch.randn(2, channels, *size, generator=generator).to(dtype, memory_format=LAYOUTS[4])
    w = torch.randn(channels, 1, *pair(kernel), generator=generator).to(dtype)
    b = torch.randn(channels, generator=generator).to(dtype)
    f = lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, channels)  # noqa: E731
    bound = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 5e-2}[dtype]
    got = torch.compile(f, backend="inrush", options={"strict": True})(x, w, b)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), f(x.double(), w.double(), b.double()), rtol=bound, atol=bound * 4)
    g = lambda x, w, b: torch.relu(f(x.cos(), w, b)) + 1  # noqa: E731
    torch.testing.assert_close(
        torch.compile(g, backend="inrush", options={"strict": True})(x, w, b).double(), g(x.double(), w.double(), b.double()), rtol=bound * 2, atol=bound * 8
    )


def test_an_index_beyond_the_plane_is_refused():
    x, g = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2)
    places = torch.tensor([[[[0, 3], [9, 16]]]])

    def f(g, x, places):
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

    with pytest.raises(IndexError, match="size 16"):
        torch.compile(f, backend="inrush", options={"strict": True})(g, x, places)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", RESAMPLING)
def test_resampling(name, channels_last):
    x = torch.randn(2, 5, 29, 41, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.to(memory_format=LAYOUTS[4])
    # Positions are computed in float32, whatever the compared values are; what an element gets adds up to some hundred terms.
    check(lambda x: F.interpolate(x, mode=name.split(".")[0], **RESAMPLING[name]), x, tolerance=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
@pytest.mark.parametrize("size", [(7, 5, 30), (3, 11, 8)])
def test_resampling_of_volumes(mode, size):
    x = torch.randn(2, 3, 5, 9, 17, generator=torch.Generator().manual_seed(0))
    check(lambda x: F.interpolate(x, size=size, mode=mode), x, tolerance=2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resampling_of_lines(mode):
    x = torch.randn(2, 3, 41, generator=torch.Generator().manual_seed(0))
    check(lambda x: F.interpolate(x, scale_factor=2.5, mode=mode), x, tolerance=2e-5)


def test_outputs_that_do_not_read_an_element_do_not_change_its_gradient():
    """Weights that are 0 are not multiplied by what is no number."""
    x = torch.randn(1, 1, 1, 41, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for size in (82, 60, 30):
        f = lambda x: F.interpolate(x, size=(1, size), mode="bilinear", align_corners=True)  # noqa: E731, B023
        y = torch.compile(f, backend="inrush", options={"strict": True})(x)
        grad = torch.ones_like(y)
        grad[..., size // 2] = float("nan")
        (a,), (b,) = torch.autograd.grad(y, x, grad), torch.autograd.grad(f(x), x, grad)
        assert torch.equal(a.isnan(), b.isnan())


def test_resampling_of_no_images():
    x = torch.randn(0, 3, 8, 8, requires_grad=True)
    y = torch.compile(lambda x: F.interpolate(x, scale_factor=2), backend="inrush")(x)
    y.sum().backward()
    assert y.shape == (0, 3, 16, 16) and x.grad.shape == x.shape
