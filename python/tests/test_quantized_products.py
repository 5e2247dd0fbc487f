"""Products of quantised matrices, which torchao's models call, against eager and against sums in float64, compiled and from a package."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
inrush = pytest.importorskip("inrush")

SHAPES = [(32, 64, 48), (7, 5, 3), (1, 96, 40), (65, 33, 17)]
FLOATS = [(torch.float8_e4m3fn, torch.float8_e4m3fn), (torch.float8_e5m2, torch.float8_e4m3fn), (torch.float8_e5m2, torch.float8_e5m2)]


class Scaled(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, a, b, scale_a, scale_b, bias):
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, bias=bias, out_dtype=self.dtype)


class WholeNumbers(torch.nn.Module):
    def forward(self, a, b, scale):
        return torch._int_mm(a, b.t()) * scale


class Weights(torch.nn.Module):
    def forward(self, x, w, scales):
        return torch._weight_int8pack_mm(x, w, scales)


def results(model, args, tmp_path):
    """Results of compiled code, and of a package."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield torch.compile(model, backend="inrush")(*args)
    path = tmp_path / "m.inrush"
    inrush.aot_compile(torch.export.export(model, args), path)
    yield inrush.load(path)(*args)


def near(got, want, dtype):
    assert got.dtype == dtype and got.shape == want.shape and got.is_contiguous()
    steps = 8 if dtype == torch.float32 else 2
    assert (got.double() - want).abs().max() <= steps * torch.finfo(dtype).eps * want.abs().max() + 1e-6


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kinds", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "a scale for each row"])
def test_scaled_products_of_floats_of_eight_bits(shape, kinds, rows, tmp_path):
    m, k, n = shape
    draw = torch.Generator().manual_seed(m)
    a, b = (torch.randn(size, generator=draw).to(kind) for size, kind in zip([(m, k), (n, k)], kinds, strict=True))
    scale_a, scale_b = (torch.rand(size if rows else (), generator=draw) for size in [(m, 1), (1, n)])
    bias = torch.randn(n, generator=draw).bfloat16()
    wide = a.double() * scale_a @ b.double().t() * scale_b + bias.double()
    for dtype in (torch.float32, torch.bfloat16):
        model = Scaled(dtype)
        if not rows and dtype == torch.bfloat16:
            # Eager knows one scale alone on CPUs.
            near(model(a, b, scale_a, scale_b, bias), wide, dtype)
        for got in results(model, (a, b, scale_a, scale_b, bias), tmp_path):
            near(got, wide, dtype)
    assert not inrush.last_compile().fallbacks


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_whole_numbers(shape, tmp_path):
    m, k, n = shape
    draw = torch.Generator().manual_seed(m)
    a, b = (torch.randint(-128, 128, size, generator=draw, dtype=torch.int8) for size in [(m, k), (n, k)])
    args = (a, b, torch.rand(n, generator=draw))
    want = WholeNumbers()(*args)
    for got in results(WholeNumbers(), args, tmp_path):
        assert got.equal(want)


@pytest.mark.parametrize("shape", [(5, 1025, 7), (9, 2100, 17), (2, 4000, 3), (6, 0, 4), (7, 17000, 5)], ids=str)
@pytest.mark.parametrize("unknown", [False, True], ids=["known sizes", "an unknown summed size"])
def test_long_sums_of_the_smallest_whole_numbers_are_exact(shape, unknown, tmp_path):
    m, k, n = shape
    if unknown and k < 2:
        pytest.skip("PyTorch takes such sizes for constants")
    args = (torch.full((m, k), -128, dtype=torch.int8), torch.full((n, k), -128, dtype=torch.int8), torch.ones(n))
    inner = torch.export.Dim("inner", max=1 << 20)
    program = torch.export.export(WholeNumbers(), args, dynamic_shapes=({1: inner}, {1: inner}, None) if unknown else None)
    inrush.aot_compile(program, tmp_path / "m.inrush")
    got = inrush.load(tmp_path / "m.inrush")(*args)
    assert got.equal(torch.full((m, n), float(k << 14)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_of_eight_bits(shape, dtype, tmp_path):
    m, k, n = shape
    draw = torch.Generator().manual_seed(m)
    x = torch.randn(m, k, generator=draw).to(dtype)
    w = torch.randint(-128, 128, (n, k), generator=draw, dtype=torch.int8)
    scales = torch.rand(n, generator=draw).to(dtype)
    wide = x.double() @ w.double().t() * scales.double()
    for got in results(Weights(), (x, w, scales), tmp_path):
        near(got, wide, dtype)
    assert not inrush.last_compile().fallbacks
