"""Operators that only training or inference graphs of PyTorch contain, beside eager, with their gradients."""

import math

import inrush
import pytest
import torch
import torch.nn.functional as F


def compare(f, *args, calls=(), **tolerance):
    """Results, and gradients of float arguments that want them; nothing but ``calls`` may be called."""
    torch._dynamo.reset()
    g = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    wanted, got = f(*args), g(*args)
    torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if leaves:
        weight = torch.randn_like(wanted)
        want = torch.autograd.grad((wanted * weight).sum(), leaves)
        have = torch.autograd.grad((got * weight).sum(), leaves)
        torch.testing.assert_close(have, want, equal_nan=True, **tolerance)
    called = {c.op for graph in inrush.last_compile().graphs for c in graph.calls}
    assert called == set(calls), called


def leaf(*sizes, **kind):
    return torch.randn(*sizes, **kind).requires_grad_()


@pytest.mark.parametrize("options", [{"mode": "sum"}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 3}, {"mode": "sum", "include_last_offset": True}])
def test_embedding_bag(options):
    table, indices = torch.randn(10, 6), torch.tensor([1, 3, 3, 9, 0, 2, 3])
    offsets = torch.tensor([0, 2, 2, 5, 7] if "include_last_offset" in options else [0, 2, 2, 5])
    compare(lambda i, w, o: F.embedding_bag(i, w, o, **options), indices, table, offsets)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -7])
def test_embedding_bag_at_its_edges(mode, padding):
    """NaN and infinities in the table, empty bags, padding alone in a bag."""
    table = torch.randn(7, 3)
    table[2, 1], table[4], table[0, 2] = float("nan"), float("nan"), -float("inf")
    indices = torch.tensor([1, 2, 2, 6, 4, 0, 5, 2, 0, 4])
    for offsets in ([0, 3, 3, 10], [0, 1, 2, 10], [0, 10, 10]):
        for end in (False, True):
            bags = torch.tensor(offsets)
            compare(
                lambda i, w, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=padding, include_last_offset=end),
                indices,
                table.clone().requires_grad_(),
                bags,
            )
            if mode == "sum":
                compare(
                    lambda i, w, o, p: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p, include_last_offset=end),
                    indices,
                    torch.randn(7, 3).requires_grad_(),
                    bags,
                    leaf(10),
                )


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["sum", "mean", "max"])
@pytest.mark.parametrize("name", ["_embedding_bag", "_embedding_bag_forward_only"])
def test_all_results_of_embedding_bag(name, mode):
    """What gradients read: each index' bag, sizes of bags (zeros for sums), places of the greatest elements."""
    bag, indices, table = getattr(torch.ops.aten, name).default, torch.tensor([1, 2, 4, 5, 2, 3]), torch.randn(7, 4)
    arguments = [(torch.tensor(offsets), padding) for offsets in ([0, 2, 3], [0, 2, 2, 6], [0]) for padding in (-1, 2)]

    def f(w, i):
        return [bag(w, i, o, False, mode, False, None, False, p) for o, p in arguments]

    got = torch.compile(f, backend="inrush", options={"strict": True})(table, indices)
    torch.testing.assert_close(got, f(table, indices))


def test_embedding_bag_gradients():
    indices, offsets = torch.tensor([1, 3, 3, 9, 0, 2, 3]), torch.tensor([0, 2, 2, 5])
    for options in ({"mode": "sum"}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 3}):
        compare(lambda i, w, o: F.embedding_bag(i, w, o, **options), indices, leaf(10, 6), offsets)


def test_gradients_of_special_functions():
    x = leaf(50, dtype=torch.float64)
    compare(lambda x: torch.lgamma(x.abs() + 0.5) + torch.digamma(x.abs() + 0.5), x)
    compare(lambda x: torch.special.i0(x) + torch.special.i1e(x) + torch.special.ndtri(torch.sigmoid(x)), x)
    compare(lambda x: torch.erfinv(torch.tanh(x)) + torch.special.log_ndtr(x), x)


def test_masked_scatter_and_medians():
    x, mask, source = leaf(6, 5), torch.rand(6, 5) < 0.5, leaf(30)
    compare(lambda x, s: x.masked_scatter(mask, s) * 2, x, source)
    compare(lambda x: torch.median(x, 1)[0] + torch.nanmedian(x, 1)[0], x)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances(p):
    compare(lambda a, b: torch.cdist(a, b, p), leaf(5, 7), leaf(6, 7), rtol=1e-4, atol=1e-5)


def test_weight_norm():
    linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(5, 4))
    compare(lambda x: linear(x), leaf(3, 5))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margin_losses(reduction):
    x = leaf(5, 7)
    target = torch.randint(0, 7, (5,))
    # Rows of labels that end early are left to the operator cases: PyTorch decomposes this loss, and its decomposition counts
    # what follows the end.
    labels = torch.stack([torch.randperm(7) for _ in range(5)])
    labels[0] = 2
    compare(lambda x: F.multi_margin_loss(x, target, p=2, weight=torch.arange(7.0), reduction=reduction), x)
    compare(lambda x: F.multilabel_margin_loss(x, labels, reduction=reduction), x)


def test_long_rows_are_sorted_by_pytorch():
    x = torch.randn(4, 1000)
    compare(lambda x: torch.sort(x, dim=1, stable=True)[1] + 1, x, calls=["aten.sort.stable"])
    compare(lambda x: torch.sort(x, dim=1, stable=True)[1] + 1, x[:, :16])


KINDS = [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]


@pytest.mark.parametrize("name", KINDS)
def test_chebyshev_polynomials(name):
    f = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-1.6, 1.6, 23, dtype=torch.float64), torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)])
    # Below zero, by the recurrence, by closed forms, fractions.
    n = torch.tensor([-1.0, 0, 1, 2, 3, 7, 8, 9, 10, 25, 40, 2.9, 9.9], dtype=torch.float64)
    compare(lambda x, n: f(x[:, None], n), x, n, rtol=1e-9, atol=1e-11)
    compare(lambda x: f(x, -2) + f(x, 0) + f(x, 1) + f(x, 5) + f(x, 2.5), x)
    compare(lambda n: f(0.3, n), torch.arange(-2, 12))
    assert f(x[:0], n[:0]).shape == torch.compile(f, backend="inrush")(x[:0], n[:0]).shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"])
def test_polynomials_by_recurrence(name, dtype):
    f = getattr(torch.special, name)
    x = torch.tensor([-1.5, -1.0, -0.3, -0.0, 0.0, 0.4, 1.0, 2.0, 1e30, float("inf")], dtype=dtype)
    for n in (-1, 0, 1, 2, 9, 3.7):
        compare(lambda x: f(x, n), x)
    # Sums that overflow, numbers that are no degrees.
    n = torch.tensor([-3, -0.5, 0, 1, 2, 2.9, 3, 4, 8, 13, 20, 127, 128, 129, 600], dtype=dtype)
    tight = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    compare(lambda x, n: f(x[:, None], n) * 2, x, n, **tight)
    compare(lambda x, n: f(x, n), x, torch.full((10,), 4))
    # Without a million steps where every degree has one value.
    known = {"laguerre_polynomial_l": 0.0, "legendre_polynomial_p": -1.0}
    if name in known:
        compare(lambda x, n: f(x, n), torch.full((9,), known[name], dtype=dtype), torch.arange(9) + 10**12)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_common_divisors_and_multiples(dtype):
    info = torch.iinfo(dtype)
    edges = torch.tensor([0, 1, 2, 3, 6, 12, 60, 97, 100, info.max, info.max - 1, info.min, info.min + 1], dtype=dtype)
    a, b = edges[:, None].expand(13, 13).reshape(-1), edges.repeat(13)
    compare(torch.gcd, a, b)
    compare(torch.gcd, edges[:, None], edges)
    # The quotient of the least number and minus one traps in eager.
    some = (a != info.min) & (b != info.min) if info.min else slice(None)
    compare(torch.lcm, a[some].clone(), b[some].clone())
    compare(lambda a: torch.gcd(a, a.flip(0)) + 1, torch.randint(0, info.max, (1001,), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_the_greatest_few(dtype):
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0], dtype=torch.float64)
    x = torch.randn(7, 131) * 50
    if dtype.is_floating_point:
        x[torch.rand(7, 131) < 0.1] = float("nan")
        x[0], x[1, 4:] = -float("inf"), float("nan")
        x[2] = special.repeat(22)[:131]
    else:
        x = x.abs()
    x = x.to(dtype)
    for dim, k in ((1, 1), (1, 8), (0, 3), (-1, 5)):
        torch._dynamo.reset()
        values, indices = torch.compile(lambda x: torch.topk(x, k, dim), backend="inrush", fullgraph=True)(x)
        assert inrush.last_compile().extern_calls == 0
        # Places of equal elements are anyone's in eager: here the first ones, each once.
        torch.testing.assert_close(values, torch.topk(x, k, dim)[0], equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(x.gather(dim, indices), values, equal_nan=True, rtol=0, atol=0)
        assert all(len(set(row.tolist())) == k for row in indices.movedim(dim, -1).reshape(-1, k))
        first = torch.sort(x, dim=dim, descending=True, stable=True)[1].narrow(dim, 0, k)
        assert torch.equal(indices, first)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_in_inference(norm_first, activation):
    layer = torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=norm_first, activation=activation).eval()
    x, padding = torch.randn(3, 5, 16), torch.arange(5) >= torch.tensor([[5], [3], [4]])
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad():
        compare(layer, x, rtol=1e-4, atol=1e-5)
        compare(lambda x, m: layer(x, src_mask=m), x, causal, rtol=1e-4, atol=1e-5)
        compare(lambda x, m: layer(x, src_key_padding_mask=m), x, padding, rtol=1e-4, atol=1e-5)
        compare(lambda x, m, p: layer(x, src_mask=m, src_key_padding_mask=p), x, causal.isinf(), padding, rtol=1e-4, atol=1e-5)
        # A query without keys.
        compare(lambda x, m: layer(x, src_key_padding_mask=m), x, padding | torch.tensor([[True], [False], [False]]), rtol=1e-4, atol=1e-5)


def test_the_logarithm_of_gamma_at_its_edges():
    edges = [0.0, -0.0, 1e-45, -1e-45, 1.0, 2.0, -1.0, -2.0, -7.0, 8.0, -8.0, 7.9999995, 3e38, -3e38, float("inf"), -float("inf"), float("nan")]
    x = torch.cat([torch.tensor(edges), torch.linspace(-12, 40, 20011), torch.linspace(0.99, 1.01, 999), torch.linspace(-2.46, -2.45, 999)])
    y = torch.compile(torch.lgamma, backend="inrush")(x)
    assert inrush.last_compile().extern_calls == 0
    torch.testing.assert_close(y, torch.lgamma(x.double()).float(), equal_nan=True, rtol=3e-7, atol=1e-42)


def test_inverse_error_function_to_the_last_places():
    gen = torch.Generator().manual_seed(0)
    small = 10 ** (-40 * torch.rand(20_000, generator=gen))
    ends = 1 - 10 ** (-8 * torch.rand(50_000, generator=gen))
    x = torch.cat([torch.linspace(-1, 1, 200_001), small, -small, ends, -ends, torch.tensor([0.0, -0.0, 1, -1, 1.5, float("nan")])])
    y = torch.compile(torch.erfinv, backend="inrush", options={"strict": True})(x)
    exact = torch.erfinv(x.double())
    known = exact.isfinite()
    torch.testing.assert_close(y[~known].double(), exact[~known], equal_nan=True)
    rounded = exact[known].float().abs()
    ulp = (torch.nextafter(rounded, torch.full_like(rounded, float("inf"))) - rounded).double()
    off = (y[known].double() - exact[known]).abs() / ulp
    central = x[known].abs() <= 0.97
    assert off[central].max() < 1.3
    assert off.max() < 2.0
    assert torch.equal(y[known].signbit(), x[known].signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_incomplete_gamma_functions_keep_their_digits(dtype):
    """In single precision series end earlier; the last places are right all the same."""
    gen = torch.Generator().manual_seed(0)
    a, x = (10 ** (6 * torch.rand(2, 20_000, generator=gen, dtype=torch.float64) - 3)).to(dtype)
    near = x[:5_000] * (1 + 0.3 * torch.randn(5_000, generator=gen, dtype=dtype).clamp(-2, 2))
    a, x = torch.cat([a, x[:5_000]]), torch.cat([x, near])
    for f in (torch.special.gammainc, torch.special.gammaincc):
        (got,) = (torch.compile(f, backend="inrush", options={"strict": True})(a, x),)
        want = torch.compile(f, backend="inrush", options={"strict": True})(a.double(), x.double())
        if dtype == torch.float64:
            # Eager's own series is off by some 1e-9.
            torch.testing.assert_close(got, f(a, x), rtol=1e-7, atol=1e-12)
        else:
            torch.testing.assert_close(got.double(), want, rtol=7e-8, atol=1e-44)


def test_integers_between_tensors():
    gen = torch.Generator().manual_seed(0)
    for dtype in (torch.int64, torch.int32, torch.int16):
        for _ in range(4):
            a, b = torch.randint(-1000, 1000, (2,), generator=gen)
            steps = int(torch.randint(1, 60, (), generator=gen))
            compare(lambda a, b: torch.linspace(a, b, steps, dtype=dtype), a, b)
            compare(lambda b: torch.linspace(7, b, steps, dtype=dtype), b + 0.75)
            compare(lambda a: torch.linspace(a, -7.5, steps, dtype=dtype), a.double() - 0.5)


def test_values_of_any_kind_put_nowhere():
    put = torch.ops.aten._unsafe_masked_index_put_accumulate
    mask, places = torch.zeros(0, dtype=torch.bool), [torch.zeros(0, dtype=torch.int64)]
    compare(lambda x, v: put(x, mask, places, v) + 1, torch.zeros(0, dtype=torch.int32), torch.zeros(0))


def test_reading_by_no_indices():
    """Nothing is read and nothing is checked where there is no point: the memory of an empty tensor is nowhere."""
    none, table, empty = torch.zeros(0, dtype=torch.int64), torch.randn(5, 3), torch.zeros(0, 3)
    for t in (table, empty):
        compare(lambda t, i: t.index_select(0, i), t, none)
        compare(lambda t, i: t[i] * 2, t, none)
        compare(lambda t, i: F.embedding(i, t) + 1, t, none.view(0, 2))
        compare(lambda t, i: t.index_select(0, i).sum(0), t, none)
        compare(lambda t, i: t.gather(0, i.view(0, 3)), t, none)
        compare(lambda t, i: t.index_add(0, i, t[:0]) + t.sum(0), t, none)
    compare(lambda t, i: t.index_select(0, i), table.clone().requires_grad_(), none)
    with pytest.raises((RuntimeError, IndexError)):
        torch.compile(lambda t, i: t.index_select(0, i), backend="inrush")(empty, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("backward", [False, True])
def test_classes_that_are_none(backward):
    f = lambda i, w: F.one_hot(i, 5) * w  # noqa: E731
    for shape in ((4,), (2, 3), (), (0,), (3, 0)):
        w = leaf(5) if backward else torch.randn(5)
        compare(f, torch.randint(0, 5, shape), w)
    compiled = torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True})
    for wrong in (5, -1, 2**40):
        with pytest.raises((RuntimeError, IndexError)):
            compiled(torch.tensor([0, wrong, 4]), w)
    dynamic = torch.compile(f, backend="inrush", fullgraph=True, dynamic=True, options={"strict": True})
    for n in (3, 8):
        i = torch.randint(0, 5, (n, 2))
        torch.testing.assert_close(dynamic(i, w), f(i, w))
    with pytest.raises((RuntimeError, IndexError)):
        dynamic(torch.full((4, 2), 5), w)


def test_airy_function():
    x = torch.cat([torch.linspace(-40, 20, 301), torch.tensor([0.0, 2.09, -2.09, 8.3203353, 104, -1e4])]).double()
    compare(torch.special.airy_ai, x, rtol=1e-9, atol=1e-12)
    compare(torch.special.airy_ai, torch.tensor([float("nan"), float("inf"), -float("inf")]))
    compare(torch.special.airy_ai, x.float()[:290], rtol=1e-3, atol=1e-5)


def test_searching_by_a_sorter():
    rows, values = torch.randint(0, 9, (3, 8)), torch.randint(-1, 10, (3, 5))
    sorter = rows.argsort(1)
    for right in (False, True):
        compare(lambda r, v, s: torch.searchsorted(r, v, sorter=s, right=right), rows, values, sorter)
    compare(lambda r, s: torch.searchsorted(r, 4, sorter=s), rows[0], sorter[0])
    compare(lambda r, v, s: torch.searchsorted(r, v, sorter=s), rows[:, :0], values, sorter[:, :0])
    with pytest.raises((RuntimeError, IndexError)):
        torch.compile(lambda r, v, s: torch.searchsorted(r, v, sorter=s), backend="inrush")(rows, values, sorter + 8)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_paddings_that_cut_off(mode):
    for pads in ([-1, 2], [2, -3], [-1, -2]):
        compare(lambda x: F.pad(x, pads, mode=mode) * 2, leaf(2, 3, 7))
    compare(lambda x: F.pad(x, [1, -2, -1, 3], mode=mode) * 2, leaf(2, 3, 7, 6))


def test_gradients_with_nothing_to_gather():
    compare(lambda x: x.gather(0, torch.empty(0, dtype=torch.int64)) * 2, leaf(4))
    compare(lambda x: x.unfold(0, 1, 1) * 3, torch.tensor(0.5, requires_grad=True))


STRIDED = {
    "kernel is the stride": dict(kernel=2, stride=2),
    "kernel is twice the stride": dict(kernel=4, stride=2, padding=1),
    "kernel beyond the stride": dict(kernel=3, stride=2, padding=1, output_padding=1),
    "kernel below the stride": dict(kernel=1, stride=3, output_padding=2),
    "cut off": dict(kernel=5, stride=2, padding=3),
    "one dimension": dict(kernel=3, stride=(1, 3), padding=(2, 0), dilation=(2, 1)),
    "dilated": dict(kernel=3, stride=2, dilation=2),
    "groups": dict(kernel=3, stride=2, groups=2),
}


@pytest.mark.parametrize("case", STRIDED.values(), ids=STRIDED)
def test_transposed_convolutions_with_strides(case):
    kernel, groups = case["kernel"], case.get("groups", 1)
    rest = {k: v for k, v in case.items() if k != "kernel"}
    x, w, b = leaf(2, 4, 6, 5), leaf(4, 6 // groups, kernel, kernel), leaf(6)
    f = lambda x, w, b: F.conv_transpose2d(x, w, b, **rest).relu()
    compare(f, x, w, b, rtol=1e-4, atol=1e-4)
    # The gradient of an ordinary convolution's input is one too.
    rest.pop("output_padding", None)
    g = lambda x, w, b: F.conv2d(x, w, b, **rest)
    compare(g, leaf(2, 4, 13, 14), leaf(6, 4 // groups, kernel, kernel), b, rtol=1e-4, atol=1e-4)


def test_infinities_reach_the_places_of_a_transposed_convolution_that_read_them():
    x = torch.randn(1, 3, 6, 6)
    x[0, 1, 2, 3] = float("inf")
    w = torch.rand(3, 4, 3, 3) + 0.5
    compare(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), x, w, rtol=1e-4, atol=1e-4)


def test_logarithms_of_running_sums():
    """Beginnings far below the greatest element, infinities and NaN are kept."""
    inf, nan = math.inf, math.nan
    rows = [[-200.0, 0, 1], [-1e30, 5, 3], [0, 200, 0], [-inf, -inf, 1], [-inf, inf, 1], [inf, 1, -inf], [1, nan, 2], [-inf] * 3]
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.tensor(rows, dtype=dtype)
        compare(lambda x: x.logcumsumexp(-1), x)
        compare(lambda x: x.logcumsumexp(0), x[:3].clamp(-100))
    compare(lambda x: x.logcumsumexp(1), (20 * torch.randn(3, 257)).requires_grad_(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_grouped_heads(causal):
    """The CPU's kernel is given two heads of keys for eight of queries, and so is its gradient."""
    attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    compare(attend, leaf(2, 8, 9, 16), leaf(2, 2, 9, 16), leaf(2, 2, 9, 16), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("ends", [(0, 6, 7, 2.0), (-3.7, 2.2, 9, 5.0), (4.3, 0.2, 11, 2.5), (2.6, 0, 1, 3.0), (0, 2, 3, 10.0)])
def test_powers_that_are_integers(dtype, ends):
    start, end, steps, base = ends
    compare(lambda: torch.logspace(start, end, steps, base=base, dtype=dtype))
    compare(lambda a: torch.logspace(a, end, steps, base=base, dtype=dtype), torch.tensor(start))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16])
def test_masked_sums_by_index(dtype):
    mask, at = torch.tensor([[True], [False], [True]]), torch.tensor([1, 9, 1])
    put = lambda x, values: torch.ops.aten._unsafe_masked_index_put_accumulate(x, mask, [at], values)
    compare(put, torch.ones(6, 5).to(dtype), torch.full((3, 5), 3).to(dtype))


def test_unpooling_of_views():
    x, places = F.max_pool2d(torch.randn(2, 4, 8, 8), 2, return_indices=True)
    compare(lambda x, places: F.max_unpool2d(x, places, 2), x[:, ::2], places[:, ::2])
    compare(lambda x, places: F.max_unpool2d(x, places, 2), x.transpose(2, 3), places.transpose(2, 3))


DEPTHWISE = {
    "plain": ((2, 6, 9, 11), (6, 1, 3, 3), dict(padding=1)),
    "strides": ((2, 6, 9, 12), (6, 1, 3, 3), dict(padding=1, stride=2)),
    "strides of different length": ((3, 4, 10, 9), (4, 1, 5, 3), dict(padding=(2, 0), stride=(3, 1))),
    "strides beyond the kernel": ((2, 4, 11, 10), (4, 1, 2, 1), dict(stride=3)),
    "dilation": ((2, 4, 13, 12), (4, 1, 3, 3), dict(padding=2, stride=2, dilation=3)),
    "several outputs of a channel": ((2, 4, 9, 8), (12, 1, 3, 3), dict(padding=1, stride=2)),
    "one image": ((1, 8, 17, 16), (8, 1, 3, 3), dict(padding=1, stride=2)),
    "large kernel": ((2, 4, 12, 14), (4, 1, 7, 7), dict(padding=3)),
    "one dimension": ((2, 4, 33), (4, 1, 4), dict(padding=1, stride=2)),
    "three dimensions": ((2, 3, 6, 7, 8), (3, 1, 3, 3, 2), dict(padding=1, stride=2)),
}


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_gradients_of_depthwise_convolutions(name, last):
    size, kernel, options = DEPTHWISE[name]
    x, w = torch.randn(size), torch.randn(kernel)
    if last and x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
    conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    f = lambda x, w: conv(x, w, groups=size[1], **options)
    compare(f, x.requires_grad_(), w.requires_grad_(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stride, extra", [(1, 0), (2, 1), (3, 2)])
def test_transposed_depthwise_convolutions(channels, stride, extra):
    x, w, b = leaf(2, 4, 5, 6), leaf(4, channels, 3, 3), leaf(4 * channels)
    f = lambda x, w, b: F.conv_transpose2d(x, w, b, stride=stride, padding=1, output_padding=extra, groups=4)
    compare(f, x, w, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "size, kernel, dilation, padding, stride",
    [
        ((8, 6), 2, 1, 0, 2),
        ((9, 7), 2, 1, 0, 2),
        ((9, 10), (3, 4), 1, (1, 2), (2, 3)),
        ((7, 8), (2, 1), 1, (1, 0), (3, 2)),
        ((8, 9), 3, (2, 1), (2, 0), (2, 3)),
        ((6, 6), 3, 1, 1, 1),
    ],
)
def test_fold(size, kernel, dilation, padding, stride):
    """Patches beside each other, overlapping, with gaps, and cut off at the image's end."""
    fold = {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}
    columns = F.unfold(torch.ones(2, 3, *size), **fold)
    compare(lambda x: F.fold(x, size, **fold), torch.randn_like(columns).requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins, low, high", [(4, 0, 3), (7, -0.3, 0.9), (100, -2.0, 2.5)])
def test_histograms(bins, low, high, dtype):
    """Edges of bins, the end, numbers outside and NaN fall where eager has them."""
    edges = torch.linspace(low, high, bins + 1, dtype=dtype)
    x = torch.cat([torch.randn(5000, dtype=dtype), edges, torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)])
    compare(lambda x: torch.histc(x.view(-1, 1), bins, low, high), x, rtol=0, atol=0)


def test_histograms_of_a_range_in_the_data():
    compare(lambda x: torch.histc(x, 5), torch.randn(100), calls=["aten.histc.default"])


SCALES, ZEROS = torch.tensor([0.1, 0.25]), torch.tensor([3, -1], dtype=torch.int32)


@pytest.mark.parametrize(
    "quantise",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127),
        lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[1:], ZEROS[1:], 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -128, 127),
        lambda x: torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, SCALES[:1], ZEROS[:1], torch.tensor([0]), -8, 7)[0],
    ],
)
def test_rounding_to_the_steps_of_small_integers(quantise):
    """Halves between two steps, numbers beyond all steps and NaN as eager has them, and gradients within the bounds."""
    halves = (torch.arange(-300, 300) + 0.5) * 0.1
    x = torch.cat([torch.randn(2000) * 8, halves, torch.tensor([math.nan, math.inf, -math.inf, 1e20, -1e20, 0.0])])
    compare(quantise, torch.stack([x, x.flip(0)]).requires_grad_(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_integers_of_every_width_and_floats(dtype):
    x = torch.arange(-128, 128).to(dtype).repeat(3)
    compare(lambda x: (x.float() * 0.5, x.double() + 1, x.long(), x.to(torch.int32) * 3, x.to(torch.bfloat16)), x, rtol=0, atol=0)
    y = (torch.arange(768) % 128).float()
    compare(lambda y: y.to(dtype), y, rtol=0, atol=0)
    compare(lambda y: y.double().to(dtype), y, rtol=0, atol=0)
    compare(lambda y: y.long().to(dtype), y, rtol=0, atol=0)


@pytest.mark.parametrize("many", [4, 5, 7, 8])
def test_bools_are_reduced_along_short_rows(many):
    """Masks of vectors that are shorter than the machine's have lanes as wide as what is compared."""

    def f(x, y):
        return torch.isin(x, y), (x > 0).any(), (x[:, None] < y).any(1), (x < y[:, None]).all(0), x.double().gt(0).any()

    torch.manual_seed(0)
    x, y = torch.randn(many), torch.randn(3)
    y[1] = x[many - 1]
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int8):
        args = (x * 3).to(dtype), (y * 3).to(dtype)
        torch.testing.assert_close(torch.compile(f, backend="inrush", options={"strict": True})(*args), f(*args))
