"""Packages whose data decide about sizes: programs in parts."""

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


def packed(tmp_path, module, *inputs, dynamic=None):
    """Loads the package of a module."""
    path = str(tmp_path / "m.inrush")
    with torch.no_grad():
        inrush.aot_compile(torch.export.export(module, inputs, dynamic_shapes=dynamic), path)
    return inrush.load(path)


def strides(x):
    """Strides that say where elements are: those of dimensions of several elements."""
    return [s for n, s in zip(x.shape, x.stride()) if n > 1 and x.numel()]


def agree(module, package, *inputs):
    """Compares one call with eager, strides included."""
    with torch.no_grad():
        wanted, got = module(*inputs), package(*inputs)
    assert len(wanted) == len(got)
    for want, have in zip(wanted, got):
        if not isinstance(want, torch.Tensor):
            assert type(want) is type(have) and want == have
            continue
        assert want.dtype == have.dtype and want.shape == have.shape
        assert strides(want) == strides(have)
        torch.testing.assert_close(have, want, equal_nan=True)


def compare(tmp_path, function, *inputs, parts=None, again=()):
    """Compiles a function into a package and compares it with eager, on `inputs` and on each of `again`."""
    module = Function(function, parts).eval()
    package = packed(tmp_path, module, *inputs)
    for given in (inputs, *again):
        agree(module, package, *given)
    return package


def drawn(dtype, *sizes, share=0.5):
    """Random elements, of which about a share is not zero."""
    mask = torch.rand(sizes) < share
    if dtype == torch.bool:
        return mask
    if dtype.is_floating_point:
        return torch.where(mask, torch.randn(sizes).to(dtype), torch.zeros((), dtype=dtype))
    return torch.where(mask, torch.randint(1, 5, sizes), 0).to(dtype)


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero(tmp_path, dtype):
    torch.manual_seed(0)
    shares = [0.0, 1.0, 0.1]
    compare(
        tmp_path,
        lambda x: (torch.nonzero(x), torch.nonzero(x) * 2 + 1),
        drawn(dtype, 5, 7),
        again=[(drawn(dtype, 5, 7, share=s),) for s in shares],
    )


@pytest.mark.parametrize("sizes", [(), (9,), (2, 3, 4), (0, 4), (1, 1)])
def test_nonzero_of_any_rank(tmp_path, sizes):
    torch.manual_seed(0)
    compare(tmp_path, torch.nonzero, drawn(torch.float32, *sizes), again=[(torch.zeros(sizes),), (torch.ones(sizes),)])


def test_kernels_before_and_after_nonzero(tmp_path):
    """Segments ahead of the call and after it, with weights, and symbols of inputs and of data."""
    torch.manual_seed(0)

    class Selects(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            y = self.first(x).relu()
            rows = torch.nonzero(y.sum(1) > 1).squeeze(1)
            return self.second(y[rows]).softmax(1), rows + 1, y.mean()

    module = Selects().eval()
    package = packed(tmp_path, module, torch.randn(9, 6), dynamic=({0: torch.export.Dim("n", min=2)},))
    for n in (9, 2, 40):
        agree(module, package, torch.randn(n, 6))
    agree(module, package, torch.full((5, 6), -100.0))
    # Weights of all segments are replaced together.
    other = Selects().eval()
    package.update_weights(dict(other.state_dict()))
    package.swap_weights()
    agree(other, package, torch.randn(7, 6))


def test_views_of_copies(tmp_path):
    """Copies that change strides are no views of what they copy."""

    def views(x):
        copy = x.t().contiguous()
        return torch.nonzero(x), copy, copy.view(-1)[2:], copy.view(6, 5)[1:]

    module, x = Function(views), torch.randn(6, 5)
    package = packed(tmp_path, module, x)
    agree(module, package, x)
    agree(module, package, -x)


def test_state_is_written(tmp_path):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            rows = torch.nonzero(x)
            self.seen.add_(x.sum(0))
            return rows + 1, self.seen * 2

    module = Counts()
    package = packed(tmp_path, module, torch.randn(4, 3))
    module = Counts()
    for _ in range(3):
        agree(module, package, torch.randn(4, 3))
    torch.testing.assert_close(package.weights()["seen"], module.seen)


def test_inputs_are_written(tmp_path):
    def function(x):
        at = torch.nonzero(x)
        x.mul_(2)
        return at, x + 1

    module = Function(function)
    package = packed(tmp_path, module, torch.ones(3, 4))
    for x in (drawn(torch.float32, 3, 4), drawn(torch.float32, 4, 3).t()):
        mine, theirs = x.clone(), x.clone()
        wanted, got = module(mine), package(theirs)
        torch.testing.assert_close(theirs, mine)
        for want, have in zip(wanted, got):
            torch.testing.assert_close(have, want)


def test_the_signature_names_sizes_that_depend_on_data(tmp_path):
    package = compare(tmp_path, lambda x: torch.nonzero(x) + 1, torch.ones(2, 3))
    (out,) = package.signature.outputs
    assert out.shape == ("u0", 2)


def test_integers_are_read_from_data(tmp_path):
    torch.manual_seed(0)

    def function(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 6)
        return torch.ones(k, 3) * 2, x.sum() * k, torch.arange(k) + k

    inputs = [(torch.randn(4), torch.tensor(k)) for k in (3, 0, 1, 6)]
    package = compare(tmp_path, function, *inputs[0], again=inputs[1:])
    for k in (-1, 7):
        with pytest.raises(inrush.InputError, match="u0"):
            package(torch.randn(4), torch.tensor(k))


def test_operators_without_a_function_are_listed_at_once(tmp_path):
    module = Function(lambda x, n: (torch.tensor_split(x, n), torch.tensor_split(x + 1, n)))
    program = torch.export.export(module, (torch.ones(4), torch.tensor([1, 2])))
    with pytest.raises(inrush.UnsupportedError) as error:
        inrush.aot_compile(program, str(tmp_path / "m.inrush"))
    text = str(error.value)
    assert "tensor_split" in text and "test_parts.py" in text


def test_masks(tmp_path):
    torch.manual_seed(0)

    def function(x, y):
        mask = x > 0
        return x[mask] * 2 + 1, x[mask].sum(), torch.masked_select(y, x > 1), y[:, x[0] > 0], y[mask.any(1)] - 1

    inputs = [(torch.randn(5, 4), torch.randn(5, 4)) for _ in range(4)]
    compare(tmp_path, function, *inputs[0], again=[*inputs[1:], (-torch.ones(5, 4), torch.randn(5, 4)), (2 * torch.ones(5, 4), torch.randn(5, 4))])


def test_masks_of_several_dimensions(tmp_path):
    torch.manual_seed(0)
    compare(
        tmp_path,
        lambda x, m: (x[m], x[:, m[0]], x.masked_select(m[:, :, None])),
        torch.randn(3, 4, 2),
        torch.rand(3, 4) > 0.5,
        again=[(torch.randn(3, 4, 2), torch.rand(3, 4) > t) for t in (-1, 2, 0.2)],
    )


def test_masks_with_slices_and_integers(tmp_path):
    """Slices and integers next to a mask become views ahead of the read; a list of one index is broadcast."""
    torch.manual_seed(0)

    def function(x, m, i):
        return x[m, 1:3], x[1:3, m] * 2, x[m, 1], x[1, m], x[m, :, 2] + 1, x[..., m], x[m, :, i]

    i = torch.tensor([1])
    inputs = [(torch.randn(4, 4, 4), torch.rand(4) > t, i) for t in (0.5, -1, 2, 0.3)]
    compare(tmp_path, function, *inputs[0], again=inputs[1:])


def test_bools_are_read_from_data(tmp_path):
    def function(x, p):
        q = p.item()
        return torch.cond(q, lambda x: x + 1, lambda x: x - 1, (x,)), x * 2

    inputs = [(torch.randn(3), torch.tensor(p)) for p in (True, False)]
    compare(tmp_path, function, *inputs[0], again=inputs[1:])


@pytest.mark.parametrize("threads", [1, 2])
def test_conditions_on_data_hold_or_are_errors(tmp_path, threads):
    def function(x):
        at = torch.nonzero(x)
        torch._check(at.shape[0] >= 2)
        torch._check(at.shape[0] <= 5)
        return at + 1

    module = Function(function)
    path = str(tmp_path / "m.inrush")
    inrush.aot_compile(torch.export.export(module, (torch.ones(4),)), path)
    package = inrush.load(path, threads=threads)
    agree(module, package, torch.tensor([1.0, 0, 1, 0]))
    for n in (0, 1):
        with pytest.raises(inrush.InputError, match="u0"):
            package(torch.tensor([1.0] * n + [0.0] * (4 - n)))


def test_many_calls_from_several_threads(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(0)
    module = Function(lambda x: torch.nonzero(x) * 3)
    package = packed(tmp_path, module, drawn(torch.float32, 40, 50))
    inputs = [drawn(torch.float32, 40, 50, share=k / 20) for k in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda x: agree(module, package, x), inputs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(tmp_path, dtype):
    torch.manual_seed(0)

    def function(x):
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        # The exporter takes counts for tensors of the values' dtype.
        return values, inverse, counts.to(torch.int64) * 2, torch.unique(x)

    again = [(drawn(dtype, 6, 7, share=s),) for s in (0.0, 1.0, 0.2)]
    compare(tmp_path, function, drawn(dtype, 6, 7), again=again)


def test_unique_keeps_each_nan_and_takes_long_lists(tmp_path):
    torch.manual_seed(0)

    def function(x):
        return torch.unique(x, return_inverse=True, return_counts=True)

    n = torch.export.Dim("n", min=1)
    module = Function(function)
    package = packed(tmp_path, module, torch.randn(9), dynamic=(({0: n},),))
    agree(module, package, torch.tensor([3.0, torch.nan, -1.0, torch.nan, 3.0, torch.inf, -torch.inf]))
    agree(module, package, torch.randint(-50, 50, (20000,)).float())
    agree(module, package, torch.zeros(1))


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_unique_consecutive(tmp_path, dim):
    torch.manual_seed(0)

    def function(x):
        return torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=dim)

    again = [(torch.zeros(5, 6).long(),), (torch.arange(30).reshape(5, 6),)]
    compare(tmp_path, function, torch.randint(0, 2, (5, 6)), again=again)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_slices(tmp_path, dim):
    torch.manual_seed(0)

    def function(x):
        return torch.unique(x, return_inverse=True, return_counts=True, dim=dim)

    again = [(torch.zeros(6, 3, 2),), (torch.randn(6, 3, 2),)]
    compare(tmp_path, function, torch.randint(0, 2, (6, 3, 2)).float(), again=again)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_bincount(tmp_path, dtype):
    torch.manual_seed(0)

    def function(x):
        # The exporter takes counts for tensors of the elements' dtype.
        return torch.bincount(x), torch.bincount(x, minlength=9).to(torch.int64) * 2

    x = torch.randint(0, 6, (40,)).to(dtype)
    package = compare(tmp_path, function, x, again=[(torch.zeros(40, dtype=dtype),), (x + 9,)])
    if dtype != torch.uint8:
        with pytest.raises(inrush.InputError, match="negative"):
            package(-x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_bincount_of_weights(tmp_path, dtype):
    torch.manual_seed(0)
    inputs = [(torch.randint(0, 6, (40,)), (torch.randn(40) * 9).to(dtype)) for _ in range(2)]
    compare(tmp_path, lambda x, w: torch.bincount(x, w, minlength=3), *inputs[0], again=inputs[1:])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_repeats_by_a_tensor(tmp_path, dtype):
    torch.manual_seed(0)

    def function(x, n):
        return x.repeat_interleave(n, 0) * 2, x.repeat_interleave(n[:3], 1), torch.repeat_interleave(n), x.repeat_interleave(n[:1])

    inputs = [(torch.randn(4, 3), torch.randint(0, 4, (4,)).to(dtype)) for _ in range(3)]
    package = compare(tmp_path, function, *inputs[0], again=[*inputs[1:], (torch.randn(4, 3), torch.zeros(4, dtype=dtype))])
    with pytest.raises(inrush.InputError, match="negative"):
        package(torch.randn(4, 3), -torch.ones(4, dtype=dtype))


def test_repeats_of_a_known_number(tmp_path):
    def function(x, n):
        return x.repeat_interleave(n, 0, output_size=6) + 1

    package = compare(tmp_path, function, torch.randn(3, 2), torch.tensor([1, 2, 3]), again=[(torch.randn(3, 2), torch.tensor([0, 6, 0]))])
    with pytest.raises(inrush.InputError, match="output_size"):
        package(torch.randn(3, 2), torch.tensor([1, 1, 1]))


def test_nonzero_static(tmp_path):
    torch.manual_seed(0)

    def function(x):
        return torch.nonzero_static(x, size=4), torch.nonzero_static(x, size=50, fill_value=7)

    compare(tmp_path, function, drawn(torch.float32, 5, 6), again=[(torch.zeros(5, 6),), (torch.ones(5, 6),)])


def test_writes_by_masks(tmp_path):
    torch.manual_seed(0)

    def function(x, m, v, rows):
        a, b, c = x.clone(), x.clone(), x.clone()
        a[m] = 3.0
        b[m] = v
        c[m[:, 0]] = rows
        d = x.index_put((m,), torch.ones(()), accumulate=True)
        return a, b * 2, c, d, x.index_put((m[:, 0],), rows, accumulate=True)

    m = torch.rand(4, 5) > 0.5
    inputs = [(torch.randn(4, 5), m, torch.randn(int(m.sum())), torch.randn(5)) for _ in range(2)]
    compare(tmp_path, function, *inputs[0], again=inputs[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_floats_are_read_from_data(tmp_path, dtype):
    torch.manual_seed(0)

    def function(x, y):
        top, mean = y.max().item(), y.mean().item()
        return x * top, x + mean * 2, torch.clamp(x.float(), max=top), (x > mean) | (x < top / 2)

    inputs = [((torch.randn(4, 5) * 3).to(dtype), torch.randn(7, dtype=torch.float64).to(torch.float32)) for _ in range(3)]
    compare(tmp_path, function, *inputs[0], again=inputs[1:])


class Copied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(12.0).view(3, 4))

    def forward(self, x):
        y = x + 1
        return x.clone(), x[1:].clone(), self.kept[1:].clone(), y, y.clone().t(), x[torch.nonzero(x[:, 0] > 0)[:, 0]] * 2


def test_copies_are_memory_of_their_own(tmp_path):
    x, path = torch.randn(5, 4), tmp_path / "m.inrush"
    inrush.aot_compile(torch.export.export(Copied(), (x,)), path)
    model = inrush.load(path)
    before = x.clone()
    for _ in range(2):
        got, wanted = model(x), Copied()(x)
        for g, w in zip(got, wanted, strict=True):
            torch.testing.assert_close(g, w)
            assert g.stride() == w.stride()
        for k, g in enumerate(got):
            g.fill_(k)
        assert all((g == k).all() for k, g in enumerate(got))
    assert torch.equal(x, before)
