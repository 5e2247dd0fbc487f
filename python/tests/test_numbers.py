"""Python's numbers beside halves and integers: rounded, kept or refused as eager does, bit for bit where operators are exact."""

import os
import sys

import pytest
import torch
from torch.nn import functional as F

import inrush

sys.path.append(os.path.join(os.path.dirname(__file__), ".."))

import numbers_check

NUMBERS = [0.1, -1 / 3, 1e-8, 2049.0]


def halves(dtype):
    """Every 61st half, and the numbers with their neighbours; not those so large or small that eager's vectors give NaN as remainder."""
    x = torch.arange(0, 65536, 61, dtype=torch.int32).to(torch.int16).view(dtype)
    near = torch.tensor(NUMBERS, dtype=dtype)
    x = torch.cat([x, near, near.nextafter(torch.tensor(9.0, dtype=dtype))])
    return x[(x == 0) | ((x.abs() > 1e-4) & (x.abs() < 3e4))]


EXACT = {
    "equal": lambda x, v: x == v,
    "less": lambda x, v: x < v,
    "at least": lambda x, v: x >= v,
    "sum": lambda x, v: x + v,
    "difference": lambda x, v: v - x,
    "product": lambda x, v: x * v,
    "quotient": lambda x, v: x / v,
    "floor": lambda x, v: x // v,
    "whole quotient": lambda x, v: torch.div(x, v, rounding_mode="trunc"),
    "remainder": lambda x, v: x % v,
    "remainder of a number": lambda x, v: torch.remainder(v, x),
    "fmod": lambda x, v: torch.fmod(x, v),
    "choice": lambda x, v: torch.where(x > 0, x, v),
    "bound": lambda x, v: x.clamp(min=v),
    "bounds": lambda x, v: x.clamp(-abs(v), abs(v)),
    "threshold": lambda x, v: F.threshold(x, v, 7.0),
    "hardshrink": lambda x, v: F.hardshrink(x, v),
    # Eager's vectors and the rest of its loop give zeros of other signs.
    "softshrink": lambda x, v: F.softshrink(x, abs(v)).abs(),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "member": lambda x, v: torch.isin(x, v),
    "near": lambda x, v: torch.isclose(x, x.roll(1), rtol=0.0, atol=abs(v)),
}


def bits(x):
    return x.view(torch.int16) if x.dtype.itemsize == 2 else x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_numbers_beside_halves(dtype):
    x = halves(dtype)

    def f(x):
        return {name: [g(x, v) for v in NUMBERS] for name, g in EXACT.items()}

    got = torch.compile(f, backend=inrush.backend, options={"strict": True})(x)
    for name, results in f(x).items():
        for v, a, b in zip(NUMBERS, got[name], results):
            same = (bits(a) == bits(b)) | (a.isnan() & b.isnan())
            at = (~same).nonzero().flatten()[:3]
            assert same.all(), f"{name} with {v}: {a[at]}, eager {b[at]} for {x[at]}"


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_shrinks_of_halves_at_their_number(dynamic):
    """PyTorch's tracing composes them of operators that round 0.7, for sizes that vary and for gradients."""
    near = torch.tensor([0.7, 0.1], dtype=torch.float16)
    x = torch.cat([near, -near, near.nextafter(torch.zeros(2).half())]).requires_grad_()

    def f(x):
        return [shrink(x, v) for shrink in (F.softshrink, F.hardshrink) for v in (0.7, 0.1)]

    got = torch.compile(f, backend=inrush.backend, dynamic=dynamic, options={"strict": True})
    for a, b in zip(got(x), f(x)):
        assert torch.equal(a, b) and torch.equal(*(torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (a, b)))
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(got(x), f(x)))


# Numbers that halves do not have, small and large, in kernels whose steps eager rounds to the dtype of halves, or computes in float32.
SWEPT = [0.1, 1e-5, 1 / 3, 1e5]
STEPS = {
    "xlogy": lambda x, v: torch.xlogy(x.abs(), v),
    "xlogy of a number": lambda x, v: torch.xlogy(v, x.abs()),
    "xlog1py": lambda x, v: torch.special.xlog1py(x, v),
    "xlog1py of a number": lambda x, v: torch.special.xlog1py(v, x.abs()),
    "logit": lambda x, v: torch.logit(x.abs() / 16, min(v, 0.4)),
    "smooth_l1": lambda x, v: F.smooth_l1_loss(x, x.roll(1), beta=v, reduction="none"),
    "huber": lambda x, v: F.huber_loss(x, x.roll(1), delta=v, reduction="none"),
    "sum": lambda x, v: x + v,
    "scaled sum": lambda x, v: torch.add(x, x.roll(1), alpha=min(v, 1e3)),
    "product": lambda x, v: x * v,
    "quotient": lambda x, v: x / v,
    "quotient of a number": lambda x, v: v / x,
    "remainder": lambda x, v: torch.fmod(x, v),
    "power": lambda x, v: x.abs() ** min(v, 2.5),
    "choice": lambda x, v: torch.where(x > v, x, min(v, 1e3)),
    "bounds": lambda x, v: x.clamp(-min(v, 1e3), min(v, 1e3)),
    "threshold": lambda x, v: F.threshold(x, v, min(v, 1e3)),
    "hardshrink": lambda x, v: F.hardshrink(x, min(v, 1e3)),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -min(v, 1e3), min(v, 1e3)),
    "addcmul": lambda x, v: torch.addcmul(x, x.roll(1), x, value=v),
    "lerp": lambda x, v: torch.lerp(x, x.roll(1), v),
    "fill": lambda x, v: x.masked_fill(x > 0, min(v, 1e3)),
    "list": lambda x, v: torch._foreach_mul(torch._foreach_add([x, x.roll(1)], min(v, 1e3)), v)[1],
    "addr": lambda x, v: torch.addr(x.view(8, -1), x[:8], x[: len(x) // 8], alpha=min(v, 1e3), beta=min(v, 1e3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_numbers_and_halves_forward_and_backward(dtype, dynamic):
    """Results and gradients bit for bit. Each call has an argument of its own: gradients of several would be added."""
    generator = torch.Generator().manual_seed(0)
    cases = [(name, g, v) for name, g in STEPS.items() for v in SWEPT]
    values = 3 * torch.randn(96, generator=generator)
    weights = torch.randn(96, generator=generator).to(dtype)

    def f(xs):
        return [g(x, v) for x, (_, g, v) in zip(xs, cases)]

    def outcome(f):
        xs = [values.to(dtype).requires_grad_() for _ in cases]
        results = f(xs)
        gradients = torch.autograd.grad(results, xs, [weights[: y.numel()].view_as(y) for y in results])
        return [(y.detach(), g) for y, g in zip(results, gradients)]

    got = outcome(torch.compile(f, backend=inrush.backend, dynamic=dynamic, options={"strict": True}))
    for (name, _, v), ours, theirs in zip(cases, got, outcome(f)):
        for what, a, b in zip(("result", "gradient"), ours, theirs):
            at = (~((a == b) | (a.isnan() & b.isnan()))).nonzero().flatten()[:3]
            assert not at.numel(), f"{what} of {name} with {v}: {a.flatten()[at]}, eager {b.flatten()[at]}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_evenly_spaced_halves(dtype):
    def f():
        return [torch.linspace(a, v, n, dtype=dtype) for v in (0.1, 1e-5, 1 / 3) for a in (-v, 0.3) for n in (1, 7, 40, 300)]

    for a, b in zip(torch.compile(f, backend=inrush.backend, options={"strict": True})(), f()):
        assert torch.equal(a, b), (a, b)


CLOSE = {
    "layer_norm": lambda x, v: F.layer_norm(x.view(8, -1), [x.numel() // 8], eps=v),
    "group_norm": lambda x, v: F.group_norm(x.view(2, 4, -1), 2, eps=v),
    "index_add": lambda x, v: x.view(8, -1).index_add(0, torch.tensor([0, 1, 1, 7]), x.view(8, -1)[:4], alpha=min(v, 1e3)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("g", CLOSE.values(), ids=CLOSE)
def test_numbers_of_reductions_are_as_exact_as_eager(g, dtype, dynamic):
    """Rounded in other places than eager's: the largest error is no larger than twice eager's against float64, with the number
    as eager has it."""
    values = torch.randn(96, generator=torch.Generator().manual_seed(1)).to(dtype)
    values[40:44] = torch.tensor([0.1, 1e-5, 1 / 3, 1000.0]).to(dtype)
    weights = torch.linspace(0.5, 1.5, 96, dtype=torch.float64).to(dtype)

    def outcome(f, x):
        x = x.clone().requires_grad_()
        y = f(x)
        return y.detach(), torch.autograd.grad(y, x, weights.to(x.dtype).view_as(y))[0]

    for v in [*SWEPT, 1e-8]:
        torch._dynamo.reset()
        got = outcome(torch.compile(lambda x: g(x, v), backend=inrush.backend, dynamic=dynamic, options={"strict": True}), values)
        stored = float(torch.tensor(min(v, 1e3), dtype=dtype)) if g is CLOSE["index_add"] else v
        for a, b, c in zip(got, outcome(lambda x: g(x, v), values), outcome(lambda x: g(x, stored), values.double())):
            assert (a.double() - c).abs().max() <= 2 * (b.double() - c).abs().max()


def test_addcdiv_of_halves_rounds_once():
    x = torch.tensor([0.7, -0.7, 0.3], dtype=torch.float16)
    f = lambda x: torch.addcdiv(x, x.roll(1), x, value=0.7)
    assert torch.equal(torch.compile(f, backend=inrush.backend, options={"strict": True})(x), f(x))


def test_tensors_without_dimensions_are_numbers():
    x, v = halves(torch.float16), torch.tensor(0.1)

    def f(x, v):
        return x * v, x / v, x + v, x == v

    for a, b in zip(torch.compile(f, backend=inrush.backend, options={"strict": True})(x, v), f(x, v)):
        assert ((bits(a) == bits(b)) | (a.isnan() & b.isnan())).all()


def test_bounds_that_are_no_numbers():
    x, nan = torch.tensor([-1.0, 2.0, float("nan")]), float("nan")

    def f(x):
        bound = torch.tensor(nan)
        return x.clamp(min=nan), x.clamp(max=nan), x.clamp(nan, 1.0), torch.clamp_min(x, nan), x.clamp(min=bound)

    for a, b in zip(torch.compile(f, backend=inrush.backend)(x), f(x)):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_activations_at_zero():
    x = torch.tensor([0.0, -0.0, -2.0, 3.0] * 16)

    def f(x):
        inf = float("inf")
        return F.elu(x, inf), F.celu(x, inf), F.elu(x, float("nan")), F.elu(x, -0.7), F.softshrink(x)

    for a, b in zip(torch.compile(f, backend=inrush.backend, options={"strict": True})(x), f(x)):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-6, atol=0)
        assert (a.signbit() == b.signbit())[~b.isnan()].all()


BYTES, HALF, INTS = torch.tensor([1, 44, 200], dtype=torch.uint8), torch.ones(2).half(), torch.tensor([1, 2], dtype=torch.int32)
REFUSED = {
    "fill": (lambda x: x.clone().fill_(300), BYTES),
    "fill of halves": (lambda x: torch.full_like(x, 65520.0), HALF),
    "masked": (lambda x: x.masked_fill(x > 1, 10**10), INTS),
    "choice": (lambda x: torch.where(x > 1, x, 300), BYTES),
    "bound": (lambda x: x.clamp(min=70000.0), HALF),
    "alpha": (lambda x: torch.add(x, x, alpha=1e6), HALF),
    "truth as alpha": (lambda x: torch.add(x, x, alpha=True), INTS),
    "minus a truth": (lambda x: x - True, INTS),
    "exponent": (lambda x: x**300, BYTES),
    "padding": (lambda x: F.pad(x, (1, 1), value=300), BYTES),
    "slope": (lambda x: F.leaky_relu(x, 1e39), HALF),
    "beta": (lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0), HALF),
    "remainder of truths": (lambda x: (x > 1) % True, INTS),
    "bounds of truths": (lambda x: (x > 1).clamp(min=True), INTS),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_numbers_that_eager_refuses(case):
    f, x = case
    with pytest.raises(Exception) as eager:
        f(x)
    with pytest.raises(eager.type):
        torch.compile(f, backend=inrush.backend)(x)


def test_negative_numbers_wrap_in_bytes():
    f = torch.compile(lambda x: (x.clone().fill_(-1), x == 300, x + 300), backend=inrush.backend, options={"strict": True})
    for a, b in zip(f(BYTES), (torch.full_like(BYTES, 255), BYTES == 300, BYTES + 300)):
        assert a.dtype == b.dtype and (a == b).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_sums_of_negative_zeros(dtype, size):
    x = torch.full((3, size), -0.0, dtype=dtype)

    def f(x):
        sums = x.sum(1), x.sum(), x.sum(1, keepdim=True), x.nansum(1), x.cumsum(1), x.prod(1), x.norm(1, 1)
        return (*sums, x.mean(1), x[:, None].expand(-1, 1, -1).sum(1), torch.einsum("ij->i", x), x[:, :1].sum(1) + x[:, :1].sum(1))

    for a, b in zip(torch.compile(f, backend=inrush.backend, options={"strict": True})(x), f(x)):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert (a.signbit() == b.signbit())[~b.isnan()].all()


def test_lines_of_numbers_agree_with_eager(monkeypatch, capsys):
    """Those of a family here, all of them when the script runs."""
    monkeypatch.setattr(sys, "argv", ["numbers_check.py", "shrink"])
    assert not numbers_check.main(), capsys.readouterr().out
    assert capsys.readouterr().out.startswith("8 tried, 0 wrong")


SINGLE = {
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cumsum": lambda x: x.cumsum(1),
    "amax": lambda x: x.amax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "nansum": lambda x: x.nansum(1),
    "deviation": lambda x: x.std(1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "matrix and vector": lambda x: x @ torch.ones(1, dtype=x.dtype),
    "vectors": lambda x: torch.dot(x[0], torch.ones(1, dtype=x.dtype)),
    "outer product": lambda x: torch.outer(x[:, 0], torch.ones(2, dtype=x.dtype)),
    "einsum": lambda x: torch.einsum("ij,ij->i", x, torch.ones_like(x)),
    "convolution": lambda x: F.conv2d(x.reshape(1, 1, -1, 1), torch.ones(1, 1, 1, 1, dtype=x.dtype)),
    "average": lambda x: F.avg_pool2d(x[None, None], 1),
    "fold": lambda x: F.fold(x.reshape(1, 1, -1), (len(x), 1), 1),
    "linear": lambda x: F.interpolate(x[None], size=1, mode="linear"),
    "bilinear": lambda x: F.interpolate(x[None, None], size=(len(x), 1), mode="bilinear"),
    "index_add": lambda x: torch.full_like(x, -0.0).index_add(0, torch.arange(len(x)), x),
    "segments": lambda x: torch.segment_reduce(x[:, 0], "sum", lengths=torch.ones(len(x), dtype=torch.int64)),
    "distance": lambda x: torch.cdist(x.float(), x.float() * 0),
    "bags": lambda x: F.embedding_bag(torch.arange(len(x))[:, None], x, mode="sum"),
    "softmax": lambda x: x.softmax(1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_reductions_of_one_element(dtype):
    x = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.0], dtype=dtype)[:, None]

    def f(x):
        return {name: reduction(x) for name, reduction in SINGLE.items()}

    wanted = f(x)
    for name, a in torch.compile(f, backend=inrush.backend, options={"strict": True})(x).items():
        b = wanted[name]
        same = torch.isclose(a, b, equal_nan=True) & ((a.signbit() == b.signbit()) | b.isnan())
        assert same.all(), f"{name}: {a}, eager {b}"


def test_resampling_to_the_same_size_copies():
    """Eager's linear modes on CPUs ignore a scale that does not change the size."""
    x = torch.rand(1, 2, 4, 4, requires_grad=True)

    def f(x):
        images = [F.interpolate(x, scale_factor=s, mode="bilinear", align_corners=c) for s in (1.2, (1.0, 2.0)) for c in (False, True)]
        return *images, F.interpolate(x[0], scale_factor=1.2, mode="linear"), F.interpolate(x[None], scale_factor=(1.0, 1.1, 0.5), mode="trilinear")

    got = torch.compile(f, backend=inrush.backend, options={"strict": True})(x)
    for a, b in zip(got, f(x)):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x, retain_graph=True)[0] for y in (a, b)))


def test_numbers_looked_up_among_halves():
    x, v = torch.tensor([0.05, 0.1, 0.1, 0.2], dtype=torch.float16), torch.tensor(0.1)

    def f(x, v):
        return torch.bucketize(0.1, x), torch.searchsorted(x, 0.1, right=True), torch.bucketize(v, x), torch.bucketize(0.1, x.float())

    assert torch.compile(f, backend=inrush.backend, options={"strict": True})(x, v) == f(x, v)
