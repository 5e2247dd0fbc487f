"""Packages call functions of the runtime's library: linear algebra, recurrent layers, sorts, grouped products."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import inrush


class Function(nn.Module):
    """A module of one function, whose results are a flat tuple."""

    def __init__(self, function, parts=None):
        super().__init__()
        self.function = function
        self.parts = parts

    def forward(self, *inputs):
        given = inputs if self.parts is None else (self.parts, *inputs)
        return tuple(tree_leaves(self.function(*given)))


def compare(tmp_path, function, *inputs, parts=None, dynamic=None, again=(), close=None):
    """Compiles a function into a package and compares it with eager, on `inputs` and on each of `again`."""
    module = Function(function, parts).eval()
    path = str(tmp_path / "m.inrush")
    with torch.no_grad():
        shapes = None if dynamic is None else (dynamic,)
        program = torch.export.export(module, inputs, dynamic_shapes=shapes)
        inrush.aot_compile(program, path)
        package = inrush.load(path)
        for given in (inputs, *again):
            wanted, got = module(*given), package(*given)
            assert len(wanted) == len(got)
            for want, have in zip(wanted, got):
                assert want.dtype == have.dtype and want.stride() == have.stride()
                torch.testing.assert_close(have, want, **(close or {}))
    return package


def matrices(*sizes, dtype=torch.float64):
    """Random matrices that are far from singular."""
    x = torch.randn(*sizes, dtype=dtype)
    n = min(sizes[-2:])
    x[..., :n, :n] += 4 * torch.eye(n, dtype=dtype)
    return x


def symmetric(*sizes):
    x = torch.randn(*sizes, dtype=torch.float64)
    return x @ x.mT + torch.eye(sizes[-1], dtype=torch.float64)


L = torch.linalg
SQUARE = {
    "inv": L.inv,
    "inverse": torch.inverse,
    "inv_ex": L.inv_ex,
    "det": L.det,
    "slogdet": lambda x: tuple(L.slogdet(x)),
    "matrix_exp": lambda x: torch.matrix_exp(x / 8),
    "matrix_power": lambda x: L.matrix_power(x, 5),
    "matrix_power_negative": lambda x: L.matrix_power(x, -3),
    "matrix_power_none": lambda x: L.matrix_power(x, 0),
    "lu": lambda x: tuple(L.lu(x)),
    "lu_factor": lambda x: tuple(L.lu_factor(x)),
    "svdvals": L.svdvals,
    "pinv": L.pinv,
}


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("sizes", [(4, 4), (2, 3, 5, 5), (1, 1), (0, 3, 3), (17, 17)])
def test_square_matrices(tmp_path, name, sizes):
    torch.manual_seed(0)
    compare(tmp_path, SQUARE[name], matrices(*sizes))


def test_single_precision(tmp_path):
    torch.manual_seed(0)
    x = matrices(3, 6, 6, dtype=torch.float32)
    compare(tmp_path, lambda x: (L.inv(x), L.det(x)), x, close={"rtol": 1e-4, "atol": 1e-4})


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(tmp_path, upper):
    torch.manual_seed(0)
    compare(tmp_path, lambda x: L.cholesky(x, upper=upper), symmetric(2, 6, 6))


@pytest.mark.parametrize("left", [True, False])
def test_solutions(tmp_path, left):
    torch.manual_seed(0)
    a = matrices(5, 5)
    compare(tmp_path, lambda a, b: L.solve(a, b, left=left), a, torch.randn(3, 5, 5, dtype=torch.float64))
    lower = a.tril()
    compare(
        tmp_path,
        lambda a, b: L.solve_triangular(a, b, upper=False, left=left),
        lower,
        torch.randn(3, 5, 5, dtype=torch.float64),
    )


def test_a_vector_is_solved_for(tmp_path):
    torch.manual_seed(0)
    compare(tmp_path, L.solve, matrices(5, 5), torch.randn(5, dtype=torch.float64))
    compare(tmp_path, L.solve, matrices(2, 5, 5), torch.randn(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("sizes", [(6, 4), (4, 6), (2, 5, 5), (3, 0)])
def test_factors_multiply_to_their_matrix(tmp_path, sizes):
    # The signs of singular vectors are not unique, so products are compared.
    def factors(x):
        q, r = L.qr(x)
        u, s, vh = L.svd(x, full_matrices=False)
        return q @ r, (u * s.unsqueeze(-2)) @ vh, s

    torch.manual_seed(0)
    compare(tmp_path, factors, torch.randn(*sizes, dtype=torch.float64))


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvectors_rebuild_their_matrix(tmp_path, uplo):
    def rebuilt(x):
        values, vectors = L.eigh(x, UPLO=uplo)
        return values, (vectors * values.unsqueeze(-2)) @ vectors.mT, L.eigvalsh(x, UPLO=uplo)

    torch.manual_seed(0)
    compare(tmp_path, rebuilt, symmetric(2, 5, 5))


def test_small_products(tmp_path):
    torch.manual_seed(0)
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    compare(tmp_path, lambda a, b, c: L.multi_dot([a, b, c]), a, b, c)
    compare(tmp_path, lambda a, b: L.vecdot(a, b, dim=0), torch.randn(3, 4), torch.randn(4))


def test_a_singular_matrix_is_an_error(tmp_path):
    package = compare(tmp_path, L.inv, matrices(2, 3, 3))
    with pytest.raises(Exception, match="linalg_inv"):
        package(torch.zeros(2, 3, 3, dtype=torch.float64))


def test_what_surrounds_a_function_is_fused_and_sizes_may_vary(tmp_path):
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    compare(
        tmp_path,
        lambda x: (L.inv(x.exp() + 9 * torch.eye(4)) * 2).sum(-1),
        torch.randn(3, 4, 4),
        dynamic=({0: batch},),
        again=[(torch.randn(1, 4, 4),), (torch.randn(64, 4, 4),)],
        close={"rtol": 1e-4, "atol": 1e-5},
    )


RECURRENT = {
    "lstm": lambda **k: nn.LSTM(6, 5, **k),
    "lstm_projected": lambda **k: nn.LSTM(6, 5, proj_size=3, **k),
    "gru": lambda **k: nn.GRU(6, 5, **k),
    "rnn_tanh": lambda **k: nn.RNN(6, 5, **k),
    "rnn_relu": lambda **k: nn.RNN(6, 5, nonlinearity="relu", **k),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NAN = {"rtol": 0, "atol": 0, "equal_nan": True}


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}],
    ids=["plain", "deep", "batch_first"],
)
def test_recurrent_layers(tmp_path, name, options):
    torch.manual_seed(0)
    compare(tmp_path, lambda m, x: m(x), torch.randn(7, 3, 6), parts=RECURRENT[name](**options), close=CLOSE)


def test_a_sequence_without_a_batch_and_states_that_are_given(tmp_path):
    torch.manual_seed(0)
    states = (torch.randn(1, 5), torch.randn(1, 5))
    compare(tmp_path, lambda m, x, h, c: m(x, (h, c)), torch.randn(7, 6), *states, parts=nn.LSTM(6, 5), close=CLOSE)


@pytest.mark.parametrize("n", [65, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_long_rows_are_sorted(tmp_path, n, dtype):
    torch.manual_seed(0)
    x = torch.randint(-40, 40, (3, n)).to(dtype)

    def sorts(x):
        values, places = x.sort(dim=1, stable=True)
        down, _ = x.sort(dim=1, descending=True, stable=True)
        first, _ = x.sort(dim=0, stable=True)
        return values, places, down, first

    compare(tmp_path, sorts, x)


def test_the_first_of_long_rows(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(4, 500)
    x[1, 7] = float("nan")
    compare(tmp_path, lambda x: tuple(x.topk(20, dim=1)), x, close=NAN)
    compare(tmp_path, lambda x: tuple(x.topk(20, dim=1, largest=False)), x, close=NAN)


def test_grouped_products(tmp_path):
    torch.manual_seed(0)
    x, w = torch.randn(32, 16).bfloat16(), torch.randn(4, 16, 32).bfloat16()
    offs = torch.tensor([8, 8, 24, 32], dtype=torch.int32)
    compare(tmp_path, lambda x, w, o: torch._grouped_mm(x, w, offs=o), x, w, offs, close={"rtol": 2e-2, "atol": 2e-2})


FFT = torch.fft
TRANSFORMS = {
    "fft": lambda x: torch.view_as_real(FFT.fft(x)),
    "rfft": lambda x: FFT.rfft(x).abs(),
    "irfft": lambda x: FFT.irfft(FFT.rfft(x), n=x.shape[-1]),
    "padded": lambda x: torch.view_as_real(FFT.rfft(x, n=x.shape[-1] + 3, norm="ortho")),
    # Eager lays these out by columns, which exported programs do not tell.
    "trimmed": lambda x: FFT.ifft(x, n=3, dim=0).real.clone(memory_format=torch.contiguous_format),
    "fft2": lambda x: FFT.ifft2(FFT.fft2(x)).real,
    "rfftn": lambda x: FFT.irfftn(FFT.rfftn(x, norm="forward") * 2, s=x.shape, norm="forward"),
    "hfft": lambda x: FFT.hfft(torch.complex(x, x.flip(-1)), n=2 * x.shape[-1]),
    "shifted": lambda x: FFT.fftshift(FFT.fft(x)).imag + FFT.fftfreq(x.shape[-1], 0.5) + FFT.rfftfreq(2 * x.shape[-1] - 1),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("sizes", [(4, 16), (3, 7), (6, 1), (5, 31)])
def test_transforms(tmp_path, name, sizes):
    torch.manual_seed(0)
    compare(tmp_path, TRANSFORMS[name], torch.randn(*sizes), close={"rtol": 1e-4, "atol": 1e-5})


def test_complex_results_and_arguments(tmp_path):
    torch.manual_seed(0)
    compare(tmp_path, lambda x: FFT.fft(x) * 1j, torch.randn(4, 6), close={"rtol": 1e-4, "atol": 1e-5})
    z = torch.randn(4, 6, dtype=torch.complex128)
    compare(tmp_path, lambda z: (FFT.ifft(z), z.conj() @ z.mT), z)


WINDOWS = {
    "hann": torch.hann_window,
    "hamming": torch.hamming_window,
    "blackman": torch.blackman_window,
    "bartlett": torch.bartlett_window,
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(tmp_path, name):
    window = WINDOWS[name]
    compare(tmp_path, lambda x: (x + window(8), window(9, periodic=False), window(1), window(2)), torch.zeros(8))


@pytest.mark.parametrize("center", [True, False])
def test_short_time_transforms(tmp_path, center):
    def spectrogram(x):
        window = torch.hann_window(32)
        z = torch.stft(x, 32, 8, window=window, center=center, return_complex=True)
        back = torch.istft(z, 32, 8, window=window, length=200) if center else z.real
        return z.abs().log1p(), back

    torch.manual_seed(0)
    compare(tmp_path, spectrogram, torch.randn(2, 200), close={"rtol": 1e-3, "atol": 1e-4})


class GlobalFilter(nn.Module):
    """A block of GFNet: a filter in the frequencies of an image."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 5, 2))
        self.norm = nn.LayerNorm(5)

    def forward(self, x):
        z = FFT.rfft2(self.norm(x), dim=(1, 2), norm="ortho")
        z = z * torch.view_as_complex(self.weight)
        return x + FFT.irfft2(z, s=x.shape[1:3], dim=(1, 2), norm="ortho")


def test_a_filter_of_frequencies(tmp_path):
    torch.manual_seed(0)
    compare(tmp_path, lambda m, x: m(x), torch.randn(3, 6, 6, 5), parts=GlobalFilter(), close={"rtol": 1e-3, "atol": 1e-4})


def test_mixing_by_transforms(tmp_path):
    # FNet: tokens and features are mixed by one transform over both.
    torch.manual_seed(0)
    compare(tmp_path, lambda x: x + FFT.fft(FFT.fft(x, dim=-1), dim=-2).real, torch.randn(2, 12, 8), close={"rtol": 1e-3, "atol": 1e-4})
