"""Floats of eight bits: conversions of every code and of patterns of float32, and what reads and writes them, against eager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
inrush = pytest.importorskip("inrush")

KINDS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def compiled(function, *args):
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(function, backend="inrush")(*args)
        want = function(*args)
    report = inrush.last_compile().graphs[0]
    return got, want, report


def same(got, want):
    """Equal codes, or NaN where there is NaN."""
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    a, b = got.float(), want.float()
    bad = ~((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan())
    assert not bad.any(), f"{int(bad.sum())} differ, the first is {a[bad][0]}, not {b[bad][0]}"


def codes(kind):
    """Every code."""
    return torch.arange(256, dtype=torch.uint8).view(kind)


def patterns(count=40_000):
    """Floats at and around the middle of every two neighbours of each kind, of every exponent, and random ones."""
    numbers = [codes(kind).float() for kind in KINDS]
    numbers = torch.cat([n[n.isfinite()] for n in numbers]).unique()
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = torch.cat([numbers, middles, torch.tensor([464.0, 480.0, 61440.0, 65536.0, 248.0, 256.0, 1e30, float("inf"), float("nan")])])
    around = torch.cat([around.nextafter(torch.tensor(-torch.inf)), around, around.nextafter(torch.tensor(torch.inf))])
    drawn = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(0)).to(torch.int32).view(torch.float32)
    return torch.cat([around, -around, drawn])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_conversions_are_eagers_for_every_code_and_many_floats(kind):
    x = patterns()
    got, want, report = compiled(lambda x: (x.to(kind), x.to(kind).float(), x.double().to(kind), x.to(torch.bfloat16).to(kind)), x)
    assert report.kernels and not report.calls, report.calls
    for a, b in zip(got, want, strict=True):
        same(a, b)
    got, want, report = compiled(lambda c: (c.float(), c.to(torch.float16), c.to(torch.float64) * 2, c.view(torch.uint8) + 1), codes(kind))
    assert not report.calls, report.calls
    for a, b in zip(got[:3], want[:3], strict=True):
        same(a, b)
    # Kernels know one NaN of each sign: `docs/differences.md`.
    known = torch.tensor([kind != torch.float8_e5m2 or code & 0x7F not in (0x7D, 0x7E) for code in range(256)])
    assert got[3][known].equal(want[3][known])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_layouts_and_integers(kind):
    x = torch.randn(7, 33, 5)
    got, want, report = compiled(lambda x: x.transpose(0, 2).to(kind).float().sum(1), x)
    torch.testing.assert_close(got, want)
    assert not report.calls
    for n in (1, 3, 15, 16, 17, 31, 64):
        y = torch.randn(n, 3)[:, 1]
        got, want, _ = compiled(lambda y: (y.to(kind).float() * 2).to(kind), y)
        same(got, want)
    i = torch.arange(-300, 300)
    got, want, report = compiled(lambda i: (i.to(kind), (i > 5).to(kind), i.to(kind).to(torch.int32) if kind is KINDS[1] else i), i)
    assert not report.calls, report.calls
    same(got[0], want[0])
    same(got[1], want[1])


def test_quantised_products_run_without_a_call_of_eager():
    x, w = torch.randn(5, 64), torch.randn(32, 64)
    scale = w.abs().amax(1, keepdim=True) / 448
    packed = (w / scale).to(torch.float8_e4m3fn)
    got, want, report = compiled(lambda x, packed, scale: x @ (packed.float() * scale).t(), x, packed, scale)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert not report.calls, report.calls


def test_packages_hold_float8(tmp_path):
    class Quantised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            w = torch.randn(32, 64)
            self.register_buffer("scale", w.abs().amax(1, keepdim=True) / 448)
            self.register_buffer("packed", (w / self.scale).to(torch.float8_e4m3fn))

        def forward(self, x):
            y = x @ (self.packed.float() * self.scale).t()
            return y, y.to(torch.float8_e5m2)

    module, x = Quantised(), torch.randn(5, 64)
    path = tmp_path / "m.inrush"
    inrush.aot_compile(torch.export.export(module, (x,)), path)
    got, want = inrush.load(path)(x), module(x)
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
    same(got[1], got[0].to(torch.float8_e5m2))


@pytest.mark.parametrize("gpu", ["cuda:h100", "cuda:a100"])
def test_kernels_of_gpus_convert_as_eager_does(gpu, tmp_path):
    """GPUs on which Triton has types for some kinds, and computes with the codes of the others."""
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_float8.py")
    env = os.environ | {"INRUSH_INTERPRET": gpu, "INRUSH_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0 and done.stdout.count("kernels") == len(KINDS), done.stderr[-3000:]
