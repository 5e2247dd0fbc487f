"""What ATen does at the edges: ties, NaN, signed zero, overflow, rounding, empty tensors, odd strides. Exactly as eager."""

import math

import pytest
import torch

import inrush

INTS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def exact(check):
    """Equal to the last bit; zeros have the same sign."""

    def run(f, *args, **rest):
        def with_signs(*args):
            out = f(*args)
            outs = out if isinstance(out, (list, tuple)) else [out]
            # The sign of NaN means nothing.
            return [*outs, *(torch.signbit(o) & ~o.isnan() for o in outs if isinstance(o, torch.Tensor) and o.is_floating_point())]

        return check(with_signs, *args, rtol=0, atol=0, **rest)

    return run


def specials(dtype):
    tiny = torch.finfo(dtype).smallest_normal
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, NAN, INF, -INF, tiny, -tiny / 4, torch.finfo(dtype).max], dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes_of_nan_and_signed_zero(exact, dtype):
    x = specials(dtype)
    a, b = x[:, None].contiguous(), x[None, :].contiguous()

    def f(a, b):
        return [g(a, b) for g in (torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.lt, torch.le, torch.eq, torch.ne, torch.gt, torch.ge)]

    # Which of the two zeros wins is not defined: eager's own answer depends on the vector lane.
    zero = (a == 0) & (b == 0)
    exact(lambda a, b: [torch.where(zero, 0, o) for o in f(a, b)], a, b)
    exact(lambda a: [a.clamp(-1, 1), a.clamp(min=0.25), a.clamp(max=-0.25), torch.relu(a), a.abs(), a.neg(), a.sign(), a.sgn()], x)
    exact(lambda a: [torch.isnan(a), torch.isinf(a), torch.isfinite(a), torch.nan_to_num(a), a.bool(), torch.logical_not(a)], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions_with_nan(exact, dtype):
    x = torch.tensor([[1, NAN, 3, NAN], [4, 2, 4, 4], [-INF, -INF, -INF, -INF], [NAN, NAN, NAN, NAN]], dtype=dtype)

    def f(x):
        out = [x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), x.argmax(0), *x.max(1), *x.min(1), *x.aminmax(dim=1)]
        out += [*x.cummax(1), *x.cummin(1), x.nansum(1), x.any(1), x.all(1), x.count_nonzero(1), x.argmax(), x.argmin()]
        return out

    exact(f, x)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_ties_go_to_the_first_index(exact, dtype):
    x = torch.tensor([3, 7, 7, 1, 1, 7, 3, 1]).repeat(40).to(dtype)
    exact(lambda x: [x.argmax(), x.argmin(), *x.max(0), *x.min(0), *x.view(8, 40).max(0), x.view(8, 40).argmin(1)], x)
    exact(lambda x: [*torch.sort(x, stable=True), *torch.sort(x, stable=True, descending=True), torch.argsort(x, stable=True)], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sort_puts_nan_last(exact, dtype):
    x = torch.tensor([NAN, 1, -INF, NAN, INF, -1, 0.0, NAN, 2], dtype=dtype)
    exact(lambda x: [*torch.sort(x, stable=True), *torch.sort(x, stable=True, descending=True), torch.topk(x, 5).values, torch.kthvalue(x, 3).values], x)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integer_division_and_remainder(exact, dtype):
    info = torch.iinfo(dtype)
    a = torch.tensor([info.min, info.min + 1, info.max, 7, 6, 1, 0] + ([-7, -6, -1] if info.min else []), dtype=dtype)[:, None]
    b = torch.tensor([1, 2, 3, 7, info.max] + ([-2, -3, -7, info.min] if info.min else []), dtype=dtype)

    def f(a, b):
        return [
            torch.div(a, b, rounding_mode="floor"),
            torch.div(a, b, rounding_mode="trunc"),
            torch.remainder(a, b),
            torch.fmod(a, b),
            a // 3,
            a % 3,
            torch.fmod(a, 3),
            a.float() / b,
        ]

    exact(f, a, b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_wrap(exact, dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, info.max, info.max - 1, 2, 100], dtype=dtype)
    exact(lambda x: [x + x, x * x, x - 1, x + 1, -x, x.abs(), x * 3, torch.add(x, x, alpha=5), x.square(), torch.pow(x, 3)], x)
    exact(lambda x: [x.sum(), x.sum(dtype=x.dtype), x.cumsum(0), x.prod(), x.cumprod(0, dtype=x.dtype), x.sum(dtype=torch.int32)], x)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts_by_too_much(exact, dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 1, 5] + ([-1, -5] if info.min else []), dtype=dtype)[:, None]
    by = torch.tensor([0, 1, info.bits - 1, info.bits, info.bits + 3, 100] + ([-1] if info.min else []), dtype=dtype)
    exact(lambda x, by: [x << by, x >> by, torch.bitwise_left_shift(x, by), torch.bitwise_right_shift(x, by)], x, by)


def test_bool_arithmetic(exact):
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    n = torch.tensor([0, 1, 2, 3], dtype=torch.uint8)

    def f(a, b, n):
        out = [a + b, a * b, a & b, a | b, a ^ b, ~a, a + 1, a * 2.5, a + n, a / b.add(1), torch.maximum(a, b), a < b, a == b]
        out += [a.sum(), a.prod(), a.cumsum(0), a.any(), a.all(), a.float().mean(), a.amax(), torch.where(a, n, 7)]
        return out

    exact(f, a, b, n)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_is_to_even(exact, dtype):
    x = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.5, 1e4, 0.49999997, INF, NAN], dtype=dtype)
    exact(lambda x: [x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.round(decimals=1), torch.floor_divide(x, 0.5), x % 1.0], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_round_where_eager_rounds(exact, dtype):
    x = torch.linspace(-3, 3, 257).to(dtype)
    y = torch.linspace(0.1, 2, 257).to(dtype)
    exact(lambda x, y: [x + y, x * y, x - y, x / y, x * y + x, (x + y) * (x - y), torch.addcmul(x, x, y), torch.lerp(x, y, 0.3)], x, y)
    exact(lambda y: [y.logit(0.1), (y - 0.5).logit()], y)
    # Numbers stay float32 in products and quotients; in sums eager rounds them first, which is less exact, and not on every device.
    exact(lambda x: [x * 0.1, x + 2.5, x / 3, x.float() * 0.1, (x * 0.1).float(), torch.where(x > 0, x, 0.1)], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_denormals_are_kept(exact, dtype):
    info = torch.finfo(dtype)
    small = torch.tensor([info.smallest_normal, info.smallest_normal / 2, info.tiny * info.eps, -info.smallest_normal / 8], dtype=dtype).repeat(9)
    exact(lambda x: [x * 0.5, x + x, x - x * 0.5, x.abs(), x > 0, x == 0, x.bool(), x / 2, x.float(), x.double(), torch.sign(x), x.amax()], small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_empty_reductions(exact, dtype):
    x = torch.zeros(3, 0, 2).to(dtype)

    def f(x):
        return [x.sum(1), x.prod(1), x.any(1), x.all(1), x.sum(), x.cumsum(1), x.float().mean(1), x.float().var(1), x.count_nonzero(1), x.float().softmax(1)]

    exact(f, x)
    exact(lambda x: [x.float().logsumexp(1), x.float().norm(dim=1), torch.cat([x, x], 1), x.flip(1), x.sort(1)[0], x.amax(0)], x)


def test_writes_to_no_places(exact):
    none = torch.zeros(0, dtype=torch.int64)
    exact(lambda x, i, s: torch.put(x, i, s), torch.tensor(3.0), none, torch.zeros(0))
    exact(lambda x, i, s: [x.index_copy(0, i, s), x.index_add(0, i, s), x.scatter(0, i, s), x.index_put((i,), s)], torch.ones(1), none, torch.zeros(0))


def test_empty_extremes_raise():
    f = torch.compile(lambda x: x.amax(1), backend="inrush")
    with pytest.raises(Exception, match="amax"):
        f(torch.zeros(3, 0))


def test_zero_strides(exact):
    x = torch.arange(4.0).expand(3, 4)
    y = torch.tensor(2.0).expand(5, 3, 1)
    exact(lambda x, y: [x + y, x.sum(0), x.t().contiguous(), x.reshape(-1), torch.cat([x, x]), x.cumsum(0), x.sort(0)[0]], x, y)


def test_overlapping_strides(exact):
    x = torch.arange(10.0)
    exact(lambda x: [x.unfold(0, 4, 1) * 2, x.unfold(0, 4, 2).sum(1), x.as_strided((4, 3), (1, 2)) + 1, x.as_strided((3, 3), (0, 1), 2).sum(0)], x)
    exact(lambda x: [x * 2, x.sum(1), x.contiguous()], x.as_strided((4, 4), (1, 2)))


def test_negative_steps(exact):
    x = torch.arange(24.0).view(2, 3, 4)
    exact(lambda x: [x.flip(0), x.flip(0, 2) + 1, x.roll(1, 2), x.rot90(1, (1, 2)), x[:, [2, 0, -1]], x[..., ::2] * 2, x[1:, ::2, 3]], x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_memory_formats(check, layout):
    x = torch.randn(2, 4, 6, 5).contiguous(memory_format=layout)
    w = torch.randn(3, 4, 3, 3)
    b = torch.randn(4)

    def f(x, w, b):
        out = [x + 1, x.relu(), x * x.flip(0), x.float(), x.double(), x.clone(), torch.empty_like(x).fill_(1), torch.ones_like(x), x > 0]
        out += [torch.nn.functional.conv2d(x, w), torch.nn.functional.max_pool2d(x, 2), torch.nn.functional.avg_pool2d(x, 2)]
        out += [torch.nn.functional.interpolate(x, scale_factor=2), torch.nn.functional.group_norm(x, 2, b, b), x + x.contiguous()]
        out += [torch.nn.functional.batch_norm(x, b, b * b, b, b), x.permute(0, 2, 3, 1) * 2, x.transpose(1, 3).contiguous(), x.sum(1, keepdim=True)]
        out += [x.softmax(1), x.where(x > 0, x.new_zeros(())), torch.cat([x, x], 1), x.to(memory_format=torch.channels_last), x[:, 1:] * 1, x.cumsum(1)]
        return out

    check(f, x, w, b)


def test_permuted_layouts(check):
    x = torch.randn(3, 4, 5).permute(2, 0, 1)
    check(lambda x: [x + 1, x.exp(), x + x, x + x.contiguous(), x.to(torch.bfloat16), torch.zeros_like(x), x.clone(), x.softmax(0), x.sum(0), x.contiguous()], x)


def test_views_are_written(exact):
    def f(x):
        y = x * 1
        y[1].add_(10)
        z = y.t()
        z[0].zero_()
        y.view(-1)[-1] = 7
        d = y.diagonal()
        d.mul_(3)
        return y, z, d, y.sum()

    exact(f, torch.arange(12.0).view(3, 4), calls=2)


def test_views_of_inputs_are_written(exact):
    def f(x):
        x[::2].mul_(2)
        x.t()[1].fill_(-1)
        x.unfold(0, 2, 2)[0].add_(1)
        return x + 0, x[1:]

    exact(f, torch.arange(12.0).view(4, 3), calls=2)


@pytest.mark.parametrize("dynamic", [None, True], ids=str)
def test_numbers_of_float64_are_written(check, dynamic):
    """Dynamo of 2.11 drops in-place operators on them when it captures a second time."""

    def f(a):
        a.mul_(0.5)
        return a + 1

    check(f, torch.tensor(3.0, dtype=torch.float64), calls=2, dynamic=dynamic)
    check(lambda a, n: (a.add_(n), a.sub_(1), a.clone())[2], torch.tensor(3.0, dtype=torch.float64), 0.25, calls=2, dynamic=dynamic)


def test_a_copy_that_overlaps_is_made_before_writing(exact):
    def f(x):
        x[1:].copy_(x[:-1].clone())
        x[:2] = x[-2:] * 2
        return x + 0

    exact(f, torch.arange(6.0), calls=2)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: x[i],
        lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 3)),
        lambda x, i: torch.index_select(x, 0, i),
        lambda x, i: torch.nn.functional.embedding(i, x),
        lambda x, i: x.index_add(0, i, x[: len(i)]),
        lambda x, i: x.scatter(0, i[:, None].expand(-1, 3), 1.0),
        lambda x, i: x.index_put((i,), x[: len(i)]),
        lambda x, i: x.index_copy(0, i, x[: len(i)]),
        lambda x, i: torch.take(x, i * 3),
        lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 3), x),
        lambda x, i: x.index_fill(0, i, 2.0),
        lambda x, i: torch.nn.functional.nll_loss(x, i[:4] % 1000 + (i[:4] > 3) * 5, reduction="sum"),
    ],
    ids=["index", "gather", "index_select", "embedding", "index_add", "scatter", "index_put", "index_copy", "take", "scatter_add", "index_fill", "nll_loss"],
)
@pytest.mark.parametrize("bad", [4, 1 << 40])
def test_indices_out_of_range_raise(check, f, bad):
    x, good = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    compiled = torch.compile(f, backend="inrush", options={"strict": True})
    torch.testing.assert_close(compiled(x, good), f(x, good))
    wrong = torch.tensor([0, bad, 1, 2])
    with pytest.raises(Exception):
        f(x, wrong)
    with pytest.raises(Exception):
        compiled(x, wrong)


DIVISIONS = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("f", DIVISIONS.values(), ids=DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64], ids=str)
def test_integer_division_by_zero_raises(exact, f, dtype):
    """Wherever the zero is: in a whole vector, among the last few elements, broadcast; and only if there is one."""
    a = torch.arange(-30, 39).to(dtype)[:67]
    b = torch.arange(67).to(dtype) % 5 + 1
    compiled = torch.compile(f, backend="inrush", options={"strict": True})
    torch.testing.assert_close(compiled(a, b), f(a, b), rtol=0, atol=0)
    for at in (0, 17, 66):
        zero = b.clone()
        zero[at] = 0
        for divide in (f, compiled):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                divide(a, zero)
    for divide in (f, torch.compile(lambda a, b: f(a, b) + 1, backend="inrush", options={"strict": True})):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(a, 0)
    # What a mask leaves out divides nothing.
    exact(lambda a, b: [torch.nn.functional.pad(f(a, b), (3, 2)), torch.cat([f(a, b), a[:3]])], a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_division_by_zero_of_floats(exact, dtype):
    a = torch.tensor([1, -1, 0.0, -0.0, NAN, INF], dtype=dtype)[:, None]
    b = torch.tensor([0.0, -0.0, 2, -INF, NAN], dtype=dtype)
    # The sign of NaN means nothing.
    f = lambda a, b: [torch.where(o.isnan(), 0, o) for o in (a / b, torch.fmod(a, b), torch.remainder(a, b), torch.floor_divide(a, b), a**b)]
    exact(f, a, b)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_ranges_of_integers_count_in_whole_steps(exact, dtype):
    """A fraction of the start, the end or the step says how many there are, but is no part of them."""
    f = lambda: [
        torch.arange(0.9, 6.7, 1.5, dtype=dtype),
        torch.arange(5.7, dtype=dtype),
        torch.arange(6.9, 1.2, -1.9, dtype=dtype),
        torch.linspace(0.9, 7.8, 50, dtype=dtype),
        torch.linspace(9.9, 0.1, 7, dtype=dtype),
    ]
    exact(f)


def test_running_products_pass_through_what_float32_cannot_hold(exact):
    """Eager multiplies in double on CPUs."""
    x = torch.tensor([[1e30, 1e30, 1e-30, 1e-30, 2.0], [1e-30, 1e-30, 1e30, 1e30, 3.0]])
    exact(lambda x: [x.cumprod(1), x.t().cumprod(0)], x)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "shape, dims",
    [((9000, 64), 0), ((64, 9000), 1), ((9000, 5), 0), ((5, 9001), 1), ((4, 900, 33), (0, 1)), ((90_001,), 0), ((3, 7000, 3), (0, 1)), ((2, 30_000, 130), 1)],
    ids=str,
)
def test_long_sums_are_as_exact_as_eager(shape, dims, dynamic):
    """Eager adds in a cascade: a plain running sum of these would be ten to a hundred times less exact."""
    torch.manual_seed(0)
    x = torch.rand(shape)
    along = dims if isinstance(dims, int) else dims[0]
    f = lambda x: [x.sum(dims), x.mean(dims), x.square().sum(dims), (x - x.mean(dims, keepdim=True)).square().mean(dims), x.cumsum(along)]
    wanted = f(x.double())
    got = torch.compile(f, backend="inrush", dynamic=dynamic, options={"strict": True})(x)
    for g, e, w in zip(got, f(x), wanted):
        error = lambda v: ((v.double() - w).abs() / w).max().item()
        assert error(g) <= 2 * error(e) + 1e-7


@pytest.mark.parametrize("dim", [0, 1, None], ids=str)
def test_long_products_do_not_vanish_on_their_way(dim):
    """The first half alone is far below the smallest float32, the second one far above the greatest."""
    x = torch.cat([torch.full((200, 64), 0.1), torch.full((200, 64), 10.0)])
    x = x.T.contiguous() if dim == 1 else x[:, :1].contiguous() if dim is None else x
    f = (lambda x: x.prod()) if dim is None else (lambda x: x.prod(dim))
    got = torch.compile(f, backend="inrush", options={"strict": True})(x)
    torch.testing.assert_close(got, f(x.double()).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_halves_by_index_lose_nothing(dtype):
    """They are rounded once, when all have arrived: 1000 steps of 1/1000 of the sum would vanish one by one."""
    i, v = torch.zeros(4096, dtype=torch.int64), torch.ones(4096, dtype=dtype)
    f = lambda x, i, v: [x.index_add(0, i, v), x.scatter_add(0, i, v), x.index_put((i,), v, accumulate=True), x.scatter_reduce(0, i, v, "sum")]
    for got in torch.compile(f, backend="inrush", options={"strict": True})(torch.zeros(1, dtype=dtype), i, v):
        assert got.item() == 4096 and got.dtype == dtype


ARRIVALS = {
    "scatter_add": lambda x, y, i: x.scatter_add(1, i, y),
    "scatter_add of columns": lambda x, y, i: x.scatter_add(0, i, y),
    "index_add": lambda x, y, i: x.index_add(0, i[0], y),
    "index_add of columns": lambda x, y, i: x.index_add(1, i[:, 0], y),
    "index_put": lambda x, y, i: x.index_put((i[0],), y, accumulate=True),
    "sum": lambda x, y, i: x.scatter_reduce(1, i, y, "sum"),
    "prod": lambda x, y, i: x.scatter_reduce(1, i, y * 1e-3, "prod"),
    "mean": lambda x, y, i: x.scatter_reduce(1, i, y, "mean", include_self=False),
    "amax": lambda x, y, i: x.scatter_reduce(0, i, y, "amax"),
    "amin": lambda x, y, i: x.scatter_reduce(1, i, y, "amin", include_self=False),
    "embedding": lambda x, y, i: torch.ops.aten.embedding_dense_backward(y, i[0], 384, -1, False),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_threads_keep_the_order_of_what_arrives_by_index(name):
    """Threads share out places, never what arrives in one: each place combines in the order of the index, as one thread does."""
    f, threads = ARRIVALS[name], torch.get_num_threads()
    args = torch.randn(384, 384), torch.randn(384, 384) * 1e3, torch.randint(0, 40, (384, 384))
    try:
        torch.set_num_threads(1)
        wanted = f(*args)
        torch.set_num_threads(3)
        compiled = torch.compile(f, backend="inrush", options={"strict": True})
        for _ in range(3):
            assert torch.equal(compiled(*args), wanted)
    finally:
        torch.set_num_threads(threads)


def test_deterministic_mode(check):
    """Writes by index are in a fixed order in any mode."""
    index = torch.randint(0, 7, (5000,))
    values = torch.randn(5000) * 1e3
    torch.use_deterministic_algorithms(True)
    try:
        f = torch.compile(
            lambda v, i: [
                torch.zeros(7).index_add(0, i, v),
                torch.zeros(7).index_put((i,), v, accumulate=True),
                torch.zeros(7).index_put((i,), v),
                torch.zeros(7).scatter_add(0, i, v),
                torch.zeros(7).scatter(0, i, v),
            ],
            backend="inrush",
            options={"strict": True},
        )
        first = f(values, index)
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(f(values, index), first))
    finally:
        torch.use_deterministic_algorithms(False)


def test_zero_dimensional_tensors_and_numbers_promote_alike(exact):
    line = [torch.arange(3, dtype=d) for d in (torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32)]
    points = [torch.tensor(2, dtype=d) for d in (torch.bool, torch.int32, torch.int64, torch.float32, torch.float64)]

    def f(line, points):
        return [a + p for a in line for p in points] + [p * q for p in points for q in points] + [a * 1.5 for a in line] + [a + 2 for a in line]

    exact(f, line, points)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_the_least_integer(exact, dtype):
    """It has no negative; minus one divides it without a trap."""
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, info.max], dtype=dtype)
    exact(lambda x: [x.abs(), -x if dtype.is_signed else x, x.sign(), x * x, x.square(), torch.bitwise_not(x)], x)
    if dtype.is_signed:
        minus = torch.full_like(x, -1)
        exact(lambda x, m: [x % m, torch.fmod(x, m), torch.remainder(x, m)], x, minus)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_powers_of_integers(exact, dtype):
    x = torch.tensor([0, 1, 2, 3, 7] + ([-1, -2, -3] if dtype.is_signed else []), dtype=dtype)
    exact(lambda x: [x**0, x**1, x**3, x**20, torch.pow(x, torch.tensor(5, dtype=dtype))], x)


def test_a_number_shifted_by_a_tensor(exact):
    by = torch.tensor([0, 1, 7, 8, 31, 63, 64, -1])
    exact(lambda by: [torch.bitwise_left_shift(3, by), torch.bitwise_right_shift(-100, by)], by)
    exact(lambda by: [torch.bitwise_left_shift(3, by), torch.bitwise_right_shift(100, by)], by[:4].to(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_casts_to_eight_bits_at_the_edges(exact, dtype):
    top = torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, top, -top, top * 1.02, NAN, torch.finfo(dtype).smallest_normal / 8, 1.0625, 1.1875])
    exact(lambda x: x.to(dtype).float(), x)
    exact(lambda x: x.to(dtype).to(torch.bfloat16), x.bfloat16())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_of_infinities(check, dtype):
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [INF, INF], [-INF, 0.0], [NAN, 0.0]], dtype=dtype)
    check(lambda x: [x.softmax(1), x.log_softmax(1), x.logsumexp(1), x.sum(1), x.mean(1), x.var(1), x.var(1, correction=2)], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [3, 16, 37, 131])
def test_parts_of_rows_are_moved_as_they_are(exact, dtype, size):
    x = torch.randint(-2, 3, (5, size)).to(dtype)
    exact(lambda x: (x.roll(2, 1), x.roll(-1, 1), x.roll((1, 2), (0, 1))), x)
    exact(lambda x: (x.tril(1), x.triu(-2), torch.tril(x.t(), 3)), x)
    exact(lambda x: torch.cat([x[:, 1:], x, x[:, :2]], 1), x)
    exact(lambda x: torch.nn.functional.pad(x, (1, 4), value=0), x)
    if dtype.is_floating_point:
        # Nothing is read where the mask is false, and what is filled in is not always zero.
        exact(lambda x: (torch.where(x > 0, x, -3.0), torch.nn.functional.pad(x, (3, 2), value=2.5)), x)
        for mode in ("reflect", "replicate", "circular"):
            exact(lambda x: torch.nn.functional.pad(x[None], (2, 1), mode=mode), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_as_wide_integers(exact, dtype):
    x = torch.tensor([0.0, -0.0, 0.9, -0.9, 1.5, -2.5, 1e3, -(2.0**30), 2.0**15 - 8], dtype=dtype)
    exact(lambda x: (x.long(), (x * 3).long()), x.repeat(7))
    if dtype in (torch.float32, torch.float64):
        # Both sides of what the fast way takes.
        big = torch.tensor([2.0**50 + 1, -(2.0**51), 2.0**51, 2.0**52 + 1, -(2.0**62), 2.0**62, 4503599627370495.5, 1.0], dtype=dtype)
        exact(lambda x: x.long(), big.repeat(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_remainders_of_floats(exact, dtype):
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 7.5, -7.5, 1e-3, -1e4, INF, -INF, NAN], dtype=dtype)
    a, b = edges[:, None].expand(13, 13).reshape(-1), edges.repeat(13)
    exact(lambda a, b: (torch.fmod(a, b), torch.remainder(a, b)), a, b)
    # Quotients that need more digits than there are, where eager gives NaN.
    edges = torch.tensor([1.0, -0.3, 1e-40, -3e38, 1e10], dtype=dtype)
    a, b = edges[:, None].expand(5, 5).reshape(-1), edges.repeat(5)
    want = torch.tensor([math.fmod(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], dtype=dtype)
    torch.testing.assert_close(torch.compile(torch.fmod, backend="inrush")(a, b), want, rtol=0, atol=0)
    exact(lambda a: (torch.fmod(a, 3.0), torch.remainder(a, -0.7)), torch.randn(1003, dtype=dtype) * 100)


def test_variance_of_a_large_mean():
    """Rows whose deviation is small keep eager's precision, rows of equal elements have none at all."""

    F = torch.nn.functional

    def f(x):
        images = x.reshape(2, 4, 25, -1)
        rows = torch.var_mean(x, 1), torch.std(x, 0), F.layer_norm(x, (1000,))
        return *rows, F.group_norm(images, 2), F.batch_norm(images, None, None, training=True)

    torch.manual_seed(0)
    mean = torch.tensor([0.1, 100.3, 3000.7, -7.7, 1.0, 0.0, 1e-3, 30.3], dtype=torch.float64)[:, None]
    step = mean.abs() / 1000
    for x in (mean.expand(8, 1000), mean + step * torch.randn(8, 1000, dtype=torch.float64)):
        x = x.to(torch.float32)
        got = torch.utils._pytree.tree_leaves(torch.compile(f, backend=inrush.backend, options={"strict": True})(x))
        eager, exact = (torch.utils._pytree.tree_leaves(f(x.to(d))) for d in (torch.float32, torch.float64))
        for ours, theirs, want in zip(got, eager, exact):
            allowed = 3 * (theirs.double() - want).abs().max() + 4e-6 * want.abs().max()
            assert (ours.double() - want).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_factors_of_renorm_are_rounded(exact, dtype):
    numbers = torch.tensor([0.1, 0.7, -0.1, 0.3, 0.0, 1.0, -0.5, 2.0, 3.0, 7.0], dtype=dtype)
    exact(lambda x: x.renorm(2, 0, 0.7), numbers[torch.randint(0, 10, (70, 7))])
