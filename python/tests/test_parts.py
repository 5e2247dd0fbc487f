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
    module = Function(lambda x: (torch.unique(x), torch.bincount(x.long()), torch.nonzero(x)))
    program = torch.export.export(module, (torch.ones(4),))
    with pytest.raises(inrush.UnsupportedError) as error:
        inrush.aot_compile(program, str(tmp_path / "m.inrush"))
    text = str(error.value)
    assert "_unique2" in text and "bincount" in text and "test_parts.py" in text


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
