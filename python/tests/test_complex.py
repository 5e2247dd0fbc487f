"""Complex numbers ahead of time: each program is compiled into a package and compared with eager, types and strides included."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import inrush


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args):
        return self.function(self, *args)


def check(tmp_path, function, *args, dynamic=None, more=(), **buffers):
    """Compiles ``function`` and compares it with eager for ``args`` and for each entry of ``more``."""
    model = function if isinstance(function, torch.nn.Module) else Of(function, **buffers)
    shapes = (dynamic,)
    if isinstance(model, Of):
        # Its parameters are one tuple.
        shapes = (shapes,)
    if dynamic is None:
        shapes = None
    with torch.no_grad():
        program = torch.export.export(model, copy.deepcopy(args), dynamic_shapes=shapes)
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"))
    for inputs in (args, *more):
        with torch.no_grad():
            wanted = pytree.tree_leaves(model(*copy.deepcopy(inputs)))
        got = pytree.tree_leaves(loaded(*copy.deepcopy(inputs)))
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, equal_nan=True, check_stride=a.numel() > 0)


def c(*sizes, dtype=torch.complex64):
    return torch.randn(sizes, dtype=dtype)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def angles(length, half):
    return torch.outer(torch.arange(float(length)), 10000.0 ** (-torch.arange(float(half)) / half))


class Rotary(torch.nn.Module):
    """Attention with rotary embeddings as Llama's reference writes them."""

    def __init__(self, width=32, heads=2, length=16):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        half = width // heads // 2
        self.register_buffer("freqs", torch.polar(torch.ones(length, half), angles(length, half)), persistent=False)

    def rotate(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        freqs = self.freqs[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k = self.rotate(q), self.rotate(k)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return out.transpose(1, 2).reshape(batch, length, width)


def test_rotary_embeddings_of_several_lengths(tmp_path):
    length = torch.export.Dim("length", min=2, max=16)
    more = [(torch.randn(2, 9, 32),), (torch.randn(2, 2, 32),)]
    check(tmp_path, Rotary().eval(), torch.randn(2, 5, 32), dynamic={1: length}, more=more)


def test_angles_that_are_made_in_the_program(tmp_path):
    def rotate(_, x):
        freqs = torch.polar(torch.ones(6, 8), angles(6, 8)).view(1, 6, 1, 8)
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * freqs).flatten(3)

    check(tmp_path, rotate, torch.randn(2, 6, 3, 16))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_arithmetic(tmp_path, dtype):
    def f(_, z, w, x):
        sums = z + w, z - w, z + x, x - z, z + 1j, 1 - z, torch.add(z, w, alpha=2)
        products = z * w, z * x, z * 2, z * (1 + 2j), z / w, x / z, z / x, 1 / z, z / 2j
        return *sums, *products, -z, z**2, z**-3, z**0, z**0.5, z**1.5, z**w, 2**z

    check(tmp_path, f, c(3, 4, dtype=dtype), c(3, 4, dtype=dtype), torch.randn(4))


def test_promotion(tmp_path):
    check(tmp_path, lambda _, z, w, x, n: (z * w, z + x, z * n), c(3), c(3, dtype=torch.complex128), torch.randn(3).half(), torch.arange(3))


def test_functions(tmp_path):
    def f(_, z):
        powers = z.exp(), torch.exp2(z), z.log(), z.log2(), z.log10(), z.sqrt(), z.rsqrt(), z.square(), z.sigmoid()
        waves = z.sin(), z.cos(), z.tan(), z.sinh(), z.cosh(), z.tanh()
        parts = z.abs(), z.angle(), z.sgn(), z.real, z.imag, z.conj(), torch.conj_physical(z), z.reciprocal()
        return *powers, *waves, *parts

    check(tmp_path, f, c(3, 4))


def test_large_and_small_numbers(tmp_path):
    z = torch.tensor([1e30 + 1e30j, 1e-30 + 2e-30j, 3e38 + 0j, 0j, 1e-20j])
    check(tmp_path, lambda _, z: (z.abs(), z / z, z / (1e20 + 1e30j), z.sqrt()), z)


def test_comparisons(tmp_path):
    z = torch.tensor([1 + 1j, 1 + 0j, complex("nan"), complex(0, float("inf")), 0j])
    check(tmp_path, lambda _, z, w: (z == w, z != w, z == 1, z.isnan(), z.isinf(), z.isfinite(), torch.isreal(z), z.bool()), z, z.flip(0))


def test_views(tmp_path):
    def f(_, z):
        shapes = z.view(12), z.reshape(4, 3), z.T, z.unsqueeze(0), z.flatten(), z.mH, z.diagonal()
        return *shapes, z[1:], z[:, ::2], z[0], z.split(2, 1)[1], z.unbind()[2], z.flip(0), z.roll(1, 0)

    check(tmp_path, f, c(3, 4))


def test_joins_and_selections(tmp_path):
    def f(_, z, w, i):
        joins = torch.cat([z, w]), torch.stack([z, w], -1), torch.cat([z, w.real]), z.repeat(2, 2), F.pad(z, (1, 2)), F.pad(z, (1, 2), value=2.0)
        picks = z[i], z.index_select(1, i), torch.where(w.real > 0, z, w), z.masked_fill(w.real > 0, 0), z.tril()
        return *joins, *picks

    check(tmp_path, f, c(3, 4), c(3, 4), torch.tensor([0, 2]))


def test_reductions(tmp_path):
    check(
        tmp_path,
        lambda _, z: (z.sum(), z.sum(0), z.mean(1, keepdim=True), z.cumsum(1), z.var(), z.std(0), z.norm(), torch.linalg.vector_norm(z, dim=1)),
        c(3, 4),
    )


def test_products(tmp_path):
    def f(_, z, w, b):
        pairs = z @ w, torch.mm(z, w), torch.einsum("ij,jk->ki", z, w), torch.einsum("ij,jk,kl->il", z, w, z)
        vectors = torch.vdot(b, b), torch.dot(b, b), torch.outer(b, b), torch.mv(z, b)
        return *pairs, *vectors, F.linear(z, z, z[:, 0]), torch.addmm(z @ w, z, w, beta=2, alpha=0.5)

    check(tmp_path, f, c(3, 4), c(4, 3), c(4))


def test_convolutions(tmp_path):
    check(tmp_path, lambda _, z, w, b: (F.conv1d(z, w, b), F.conv1d(z, w)), c(2, 3, 9), c(4, 3, 3), c(4))


def test_tensors_that_are_made(tmp_path):
    def f(_, z):
        made = torch.zeros(2, 3, dtype=torch.complex64), torch.ones_like(z), torch.full((3,), 1 + 2j), torch.eye(3, dtype=torch.complex64)
        return *(z + m for m in made), torch.complex(z.real, z.imag), z.to(torch.complex128), z.real.to(torch.complex64)

    check(tmp_path, f, c(3))


def test_writes_reach_the_parts(tmp_path):
    def into_views(_, z):
        y = z.clone()
        y[0] = 1j
        y[1] = y[2] * 2
        y[:, 1].mul_(2)
        return y

    def through_pairs(_, x):
        x = x.clone()
        torch.view_as_complex(x).mul_(1j)
        return x + 1

    check(tmp_path, into_views, c(4, 3))
    check(tmp_path, through_pairs, torch.randn(4, 2))


def test_an_input_that_is_written(tmp_path):
    model = Of(lambda _, z: z.mul_(2j).abs())
    program = torch.export.export(model, (c(4),))
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"))
    z = c(4)
    wanted = z * 2j
    torch.testing.assert_close(loaded(z), wanted.abs())
    torch.testing.assert_close(z, wanted)


def test_inputs_outputs_and_weights_keep_their_type(tmp_path):
    n = torch.export.Dim("n", min=2, max=9)
    check(tmp_path, lambda _, z: (z.exp(), z.abs()), c(3, 4), dynamic={0: n}, more=[(c(7, 4),)])
    check(tmp_path, lambda _, z: (z * z.conj(), (z * z).T), c(3, 4).T)
    check(tmp_path, lambda m, x: (m.w * x, m.w.T), torch.randn(4), w=c(3, 4))
    check(tmp_path, lambda _, z: (z * z, z.abs()), c())
    check(tmp_path, lambda _, z: (z * z, z.sum(0), torch.cat([z, z])), c(0, 4))


def test_what_cannot_be_rewritten_is_named(tmp_path):
    def seen_twice(_, x):
        z = torch.view_as_complex(x).clone()
        pairs = torch.view_as_real(z)
        z.mul_(2)
        return pairs

    for function, message, args in (
        (lambda _, z: z.cumprod(0), "aten.cumprod.default", c(4)),
        (seen_twice, "seen as complex and as real", torch.randn(4, 2)),
    ):
        program = torch.export.export(Of(function), (args,))
        with pytest.raises(inrush.Error, match=message):
            inrush.aot_compile(program, tmp_path / "model.inrush")


def test_an_input_that_is_conjugated_when_it_is_read(tmp_path):
    check(tmp_path, lambda _, z: (z * 2, z.abs()), c(4, 3), more=[(c(4, 3).conj(),)])
