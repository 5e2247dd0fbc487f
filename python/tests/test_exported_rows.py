"""Compares operators of exported programs with eager, in packages and under ``torch.compile``, whose graphs mostly do not hold them."""

import inrush
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
import torch.nn.functional as F

Q = torch.ops.quantized_decomposed


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def packaged(function, *args, folder, **tolerance):
    """Results of a package, next to eager's."""
    with torch.no_grad():
        program = torch.export.export(Calls(function), args, strict=False)
        path = inrush.aot_compile(program, folder / "model.inrush")
        torch.testing.assert_close(inrush.load(path)(*args), function(*args), equal_nan=True, **tolerance)


def compiled(function, *args, **tolerance):
    """Results of ``torch.compile`` and gradients of what wants them, next to eager's; nothing is called."""
    torch._dynamo.reset()
    wanted = function(*args)
    got = torch.compile(function, backend="inrush", fullgraph=True, options={"strict": True})(*args)
    torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
    leaves = [a for a in args if a.requires_grad]
    if leaves:
        weight = torch.randn_like(wanted)
        want = torch.autograd.grad((wanted * weight).sum(), leaves)
        have = torch.autograd.grad((got * weight).sum(), leaves)
        torch.testing.assert_close(have, want, equal_nan=True, **tolerance)
    assert not [c.op for graph in inrush.last_compile().graphs for c in graph.calls]


SIZES = [((7, 9), (3, 11)), ((5, 5), (5, 2)), ((64, 33), (1, 9)), ((1, 3), (4, 1)), ((300, 7), (23, 5))]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_antialiased_resampling(sizes, mode, corners):
    given, size = sizes
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 3, *given, dtype=dtype).requires_grad_()
        compiled(lambda x: F.interpolate(x, size, mode=mode, antialias=True, align_corners=corners), x)


def test_antialiased_resampling_by_factors_keeps_what_is_not_read(tmp_path):
    x = torch.randn(1, 2, 12, 20)
    x[0, 0, 3, 4], x[0, 1, 0, 0] = float("inf"), float("nan")
    for layout in (torch.contiguous_format, torch.channels_last):
        y = x.to(memory_format=layout)
        packaged(lambda x: F.interpolate(x, scale_factor=(0.4, 1.5), mode="bicubic", antialias=True), y, folder=tmp_path)
        compiled(lambda x: F.interpolate(x, scale_factor=0.3, mode="bilinear", antialias=True), y)


def test_antialiased_resampling_of_bytes_is_called():
    """Eager computes bytes in fixed point."""
    torch._dynamo.reset()
    x = torch.randint(0, 256, (1, 3, 9, 9), dtype=torch.uint8)
    f = lambda x: F.interpolate(x, (4, 5), mode="bilinear", antialias=True)  # noqa: E731
    torch.testing.assert_close(torch.compile(f, backend="inrush")(x), f(x))
    assert [c.op for graph in inrush.last_compile().graphs for c in graph.calls]


@pytest.mark.parametrize("padding", [None, 0, -2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode, padding, tmp_path):
    bag = torch.nn.EmbeddingBag(6, 4, mode=mode, padding_idx=padding).eval()
    indices, offsets = torch.tensor([0, 3, 4, 4, 5, 0, 1]), torch.tensor([0, 2, 2, 4])
    packaged(lambda i, o: bag(i, o), indices, offsets, folder=tmp_path)
    packaged(lambda i: bag(i), indices.view(1, 7), folder=tmp_path)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, float("inf")])
def test_distances_of_pairs(p, tmp_path):
    packaged(lambda x: F.pdist(x, p), torch.randn(7, 5), folder=tmp_path)


@pytest.mark.parametrize("count", [None, 0, 1, 2, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16, torch.bool], ids=str)
def test_vandermonde_matrices(dtype, count, tmp_path):
    x = torch.tensor([-2, 0, 1, 3]).to(dtype)
    packaged(lambda x: (torch.vander(x, count), torch.vander(x, count, increasing=True)), x, folder=tmp_path)
    if dtype in (torch.float32, torch.int32) and count not in (0, 1):
        packaged(lambda x: torch.linalg.vander(x.view(2, 2), N=count), x, folder=tmp_path)


def test_fake_quantisation(tmp_path):
    x = torch.cat([torch.randn(4, 9) * 3, torch.full((1, 9), float("inf")), torch.full((1, 9), float("nan"))])
    scale, zero = torch.rand(9) + 0.01, torch.randint(-3, 3, (9,), dtype=torch.int32)
    packaged(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -10, 12), x, folder=tmp_path)
    packaged(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -10, 12), x, scale[:1], zero[:1], folder=tmp_path)
    packaged(lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -10, 12), x[:5], scale, zero, folder=tmp_path)


INTEGERS = [(torch.int8, -128, 127), (torch.uint8, 0, 255), (torch.int16, -3000, 3000)]


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: str(k[0]))
def test_quantised_values(kind, given, tmp_path):
    """Round trips of exported quantised models: halves that fall between two steps are kept away by random data."""
    dtype, low, high = kind
    x = (torch.randn(4, 6) * 20).to(given)
    scales, zeros = torch.rand(6) + 0.05, torch.randint(0, 9, (6,))

    def by_tensor(x):
        q = Q.quantize_per_tensor(x, 0.23, 5, low, high, dtype)
        return q, Q.dequantize_per_tensor(q, 0.23, 5, low, high, dtype)

    def by_scales(x, s, z):
        q = Q.quantize_per_tensor.tensor(x, s, z, low, high, dtype)
        return q, Q.dequantize_per_tensor.tensor(q, s, z, low, high, dtype, out_dtype=torch.float32)

    def by_channel(x, s, z):
        q = Q.quantize_per_channel(x, s, z, 1, low, high, dtype)
        return q, Q.dequantize_per_channel(q, s, z, 1, low, high, dtype), Q.dequantize_per_channel(q, s, None, 1, low, high, dtype)

    packaged(by_tensor, x, folder=tmp_path)
    packaged(by_scales, x, scales[:1], zeros[:1], folder=tmp_path)
    packaged(by_channel, x, scales, zeros, folder=tmp_path)


@pytest.mark.parametrize("low", [-20.0, 0.0, 3.0, -0.0])
def test_quantisation_that_chooses_its_parameters(low, tmp_path):
    """Dynamic quantisation: of the whole tensor, and of each row; ranges on both sides of 0, of one number, of zeros."""

    def whole(x):
        s, z = Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
        q = Q.quantize_per_tensor.tensor(x, s, z, -128, 127, torch.int8)
        return s, z, q, Q.dequantize_per_tensor.tensor(q, s, z, -128, 127, torch.int8)

    def rows(x):
        s, z = Q.choose_qparams_per_token_asymmetric(x, torch.int8)
        q = Q.quantize_per_token(x, s, z, -128, 127, torch.int8)
        return s, z, q, Q.dequantize_per_token(q, s, z, -128, 127, torch.int8, torch.float32)

    for sizes in ((5, 33), (2, 3, 7), (1, 1), (4, 1)):
        x = torch.rand(sizes) * 9 + low
        x[0] = 0.0
        for f in (whole, rows):
            packaged(f, x, folder=tmp_path)
