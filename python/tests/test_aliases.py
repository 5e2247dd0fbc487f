"""What shares memory in eager shares it when compiled, and writes through any view arrive: among arguments, results and both."""

import copy

import pytest
import torch
import torch.nn.functional as F

import inrush
from inrush.dynamo_graph import eager_only


def tensors(values):
    return [t for v in values for t in (tensors(v) if isinstance(v, (tuple, list)) else [v]) if isinstance(t, torch.Tensor)]


def places(values):
    """Which memory each tensor is in, by first appearance, and how it is read there."""
    seen = {}
    return [
        (seen.setdefault(t.untyped_storage().data_ptr(), len(seen)), t.storage_offset(), t.stride(), t.shape, t.dtype, t.is_conj(), t.is_neg())
        for t in tensors(values)
    ]


def same(f, *args, **options):
    """Results, arguments, and where all of them are; then what a write into each result does to the others."""
    compiled = torch.compile(f, backend="inrush", options={"strict": True}, **options)
    theirs, ours = copy.deepcopy(args), copy.deepcopy(args)
    wanted, got = [theirs, f(*theirs)], [ours, compiled(*ours)]
    torch.testing.assert_close(got, wanted)
    assert places(got) == places(wanted)
    for w, g in zip(tensors(wanted), tensors(got), strict=True):
        if not w.requires_grad and w.numel():
            for t in (w, g):
                t.view(-1)[:1].fill_(1) if t.is_contiguous() else t[(0,) * t.dim()].fill_(1)
    torch.testing.assert_close(got, wanted)
    return inrush.last_compile()


LOOKS = {
    "same size": lambda y: y.view(torch.int32),
    "smaller": lambda y: y.view(torch.int16),
    "larger": lambda y: y.view(torch.int64),
    "part": lambda y: y[2:].view(torch.int32)[1:, ::2],
    "strided": lambda y: y.as_strided((2, 2), (5, 1), 3),
    "complex": lambda y: torch.view_as_complex(y.view(6, 2, 2)),
    "imaginary": lambda y: torch.view_as_complex(y.view(6, 2, 2)).imag,
    "transposed": lambda y: y.t()[1:],
    "detached": lambda y: y.detach().view(torch.int32),
    "expanded": lambda y: y[:, None].expand(6, 2, 4).diagonal(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_results_share_memory(look):
    view = LOOKS[look]

    def f(x):
        y = x * 2
        return y, view(y), y[1:], view(x)

    same(f, torch.randn(6, 4))


def test_results_share_memory_where_only_views_are_results():
    same(lambda x: (lambda y: (y.view(torch.int32), y.view(torch.int16), y.view(torch.int32) + 1))(x + 1), torch.randn(8))
    # The root is a called operator's result.
    same(lambda x: (lambda y: (y[2:].view(torch.int32), y.as_strided((2, 2), (2, 1), 3)))(x.sort(stable=True)[0]), torch.randn(40))


def test_a_buffer_is_read_as_another_dtype_and_written():
    def f(x):
        buffer = torch.empty(8, dtype=torch.float16).fill_(1)
        other = buffer.view(torch.bfloat16)
        other[2:].copy_(x)
        return buffer, other

    report = same(f, torch.randn(6))
    assert report.extern_calls == 0


def test_views_of_another_dtype_stay_native():
    report = same(lambda x: (lambda y: (y, y.view(torch.int32), y.view(torch.int32) * 3))(x + 1), torch.randn(5, 7))
    assert report.extern_calls == 0 and report.direct


def test_arguments_that_overlap():
    base = torch.randn(10)

    def f(x, y):
        x.mul_(2)
        return x + y, x[1:], y

    same(f, base[:8], base[2:])


WINDOWS = {
    "gaps": lambda y: y.unfold(1, 2, 4).mul_(2),
    "a part of a window": lambda y: y.unfold(0, 3, 4)[0].transpose(0, 1)[1].fill_(-1),
    "an item": lambda y: y.unfold(0, 2, 3).__setitem__((0, 1), 5.0),
    "overlapping": lambda y: y.unfold(1, 4, 2).copy_(torch.ones(6, 4, 4)),
    "a list": lambda y: torch._foreach_add_([y.unfold(0, 2, 3), y[1]], 1),
    "the rest after whole windows": lambda y: y.unfold(1, 3, 3).sqrt_(),
}


@pytest.mark.parametrize("window", WINDOWS)
def test_writes_through_windows(window):
    write = WINDOWS[window]

    def inside(x):
        y = x + 1
        write(y)
        return y, y.sum()

    def outside(x):
        write(x)
        return x + 1

    for f in (inside, outside):
        report = same(f, torch.rand(6, 10))
        assert "unfold" in report.fallbacks[0]
        torch._dynamo.reset()
    x = torch.rand(6, 10)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(inside, backend="inrush", options={"strict": True})(ours)[0].square().sum().backward()
    inside(theirs)[0].square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_windows_that_are_only_read_are_compiled():
    def f(x):
        v = x.unfold(0, 3, 2)
        w = v * 2
        x.add_(1)
        return w, v + 1

    report = same(f, torch.randn(10))
    assert not report.fallbacks and report.kernels


def test_windows_of_sizes_that_data_decides():
    def f(x):
        found = x.nonzero().float().reshape(-1)
        found.unfold(0, 2, 2).add_(1)
        return found

    options = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with options:
        report = same(f, torch.tensor([1.0, 0, 2, 3]))
    assert "unfold" in report.fallbacks[0]


def test_views_that_are_zeroed_keep_their_strides():
    def f(x):
        y, z = x * 2, x + 1
        v, w = y.t(), z.view(2, 3, 4).movedim(0, 2)
        v.zero_()
        w[1:].zero_()
        return y, v, z, w

    assert not same(f, torch.randn(6, 4)).fallbacks


PAST = {
    "a part": lambda y: y[1:].as_strided((2, 2), (3, 1)),
    "from the start": lambda y: y[1:].as_strided((2, 2), (3, 1), 2),
    "transposed": lambda y: y.t().as_strided((2, 2), (3, 1), 1),
}


@pytest.mark.parametrize("past", PAST)
def test_writes_where_strides_look_past_views(past):
    look = PAST[past]

    def through(x):
        y = x + 1
        look(y).mul_(3)
        return y

    def under(x):
        v = look(x)
        x.mul_(3)
        return v + 1

    whole = torch.randn(8, 4)
    for f, x in ((through, whole), (under, whole), (under, whole[2:])):
        report = same(f, x)
        assert "as_strided" in report.fallbacks[0]


@pytest.mark.parametrize("drop", [
    lambda x: torch.nn.functional.dropout(x, 0.5, training=False),
    lambda x: torch.nn.functional.dropout2d(x, p=0.0),
    lambda x: torch.nn.functional.alpha_dropout(x),
    lambda x: torch.dropout(x, 0.5, False),
])  # fmt: skip
def test_dropouts_that_drop_nothing_give_back_their_argument(drop):
    def f(x):
        y = x.exp()
        z = drop(y)
        y.add_(1)
        return y, z

    same(f, torch.ones(1, 2, 3, 1))


REPEATS = {
    "expanded argument": (lambda x: (x.swapaxes(0, -1)[0].zero_(), x.mT)[1], lambda: torch.ones(1, 3).expand(2, 3)),
    "rows that overlap": (lambda x: (x.zero_(), x.diagonal().copy_(torch.arange(3.0)), x + 1)[2], lambda: torch.ones(14).as_strided((4, 3), (3, 2))),
    "expanded value": (lambda x: (y := x.exp().expand(2, 3), y.fill_(-1), y * 1)[0], lambda: torch.ones(1, 3)),
    "broadcast argument": (lambda x: torch.broadcast_tensors(x, torch.ones(5))[0].fill_(-1), lambda: torch.tensor(2.0)),
}


@pytest.mark.parametrize("kind", REPEATS)
def test_writes_into_tensors_whose_elements_share_memory(kind):
    f, argument = REPEATS[kind]
    x, y = argument(), argument()
    torch.testing.assert_close([torch.compile(f, backend="inrush", options={"strict": True})(x), x], [f(y), y])


@pytest.mark.parametrize("f", [lambda x: F.relu(x.expand(3, 4), True), lambda x: F.dropout(x.expand(3, 4), 0.5, True, True)])
def test_functions_that_are_in_place_by_position_write(f):
    for g in (f, torch.compile(f, backend="inrush", options={"strict": True})):
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            g(torch.tensor([[1.0], [-1.0], [2.0]]))


def test_looking_for_writes_does_not_run_graphs_that_write_nothing(monkeypatch):
    # Functions such as `and_`, methods such as `__eq__` end like those that write.
    def f(x, y):
        z = x.unsqueeze(0).expand(2, 3) & (x.__eq__(y)) | F.relu(y, False).bool()
        return z.expand(2, 2, 3) + 1

    monkeypatch.setattr(eager_only, "_found_by_running", lambda *_: pytest.fail("the graph is run"))
    torch.compile(f, backend="inrush", options={"strict": True})(torch.ones(3, dtype=torch.bool), torch.zeros(3))


def test_expanded_values_that_are_only_read_are_compiled():
    def f(x):
        y = x.expand(2, 3) + 1
        y.mul_(2)
        return y

    assert same(f, torch.ones(1, 3)).graphs[0].fallback is None


DETACHED = {
    "transposed": lambda y: y.t(),
    "part": lambda y: y[1:],
    "other shape": lambda y: y.view(2, 2, 4).transpose(0, 1),
}


@pytest.mark.parametrize("view", DETACHED.values(), ids=DETACHED)
@pytest.mark.parametrize("first", [True, False], ids=["view first", "detached first"])
def test_views_and_the_same_detached(view, first):
    """PyTorch's tracing makes one of the other, and would look at it a second time: transposed back, or a part of the part."""

    def f(x):
        v = view(x * 2)
        return (v, v.detach()) if first else (v.detach(), v, v.detach()[:1])

    same(f, torch.randn(4, 4, requires_grad=True))


def rows_and_parts(x):
    x.flatten(0, 1)[1:].add_(-1)
    return x.flatten(0, 1), x[:, 1:], x


def turned(x):
    y = x.permute(2, 0, 1)
    y[0].add_(3)
    return y[1:], x[1:, : x.shape[1] - 1], x + 1


# Inputs of which one begins past the beginning of its storage.
LATE = {
    "last rows": lambda t, a, b, c: t[: a * b * c].view(a, b, c)[-2:],
    "every other column": lambda t, a, b, c: t[: a * b * c * 2].view(a, b, 2 * c)[-3:, :, ::2],
    "transposed": lambda t, a, b, c: t[: a * b * c].view(b, a, c)[1:].transpose(0, 1),
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("way", LATE)
@pytest.mark.parametrize("f", [rows_and_parts, turned])
def test_views_of_mutated_inputs_that_begin_late(f, way, dynamic, trains):
    if f is rows_and_parts and way != "last rows":
        # Of a copy, eager changes nothing of the input.
        f = turned
    compiled = torch.compile(f, backend="inrush", dynamic=dynamic, options={"strict": True}, fullgraph=True)
    for sizes in ((5, 4, 3), (8, 17, 7), (9, 17, 7)):
        seen = []
        for function in (f, compiled):
            leaf = torch.arange(4000.0, requires_grad=trains)
            x = LATE[way](leaf * 1, *sizes)
            results = function(x)
            layouts = [(r.stride(), r.storage_offset(), r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) for r in results]
            if trains:
                sum(r.square().sum() for r in results).backward()
            seen.append((layouts, [r.detach() for r in results], x.detach(), leaf.grad))
        assert seen[0][0] == seen[1][0], sizes
        torch.testing.assert_close(seen[1][1:], seen[0][1:])


SCATTERS = {
    "as_strided": lambda a: torch.as_strided_scatter(a, a.flatten()[:2].clone(), (2,), (1,)),
    "slice": lambda a: torch.slice_scatter(a, a[:, 1:2].clone(), 1, 1, 2),
    "select": lambda a: torch.select_scatter(a, a[:, 1].clone(), 1, 1),
    "diagonal": lambda a: torch.diagonal_scatter(a, a.diagonal(0, 1, 2).clone(), 0, 1, 2),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("scatter", SCATTERS)
def test_copies_of_overlapping_tensors_are_written(scatter, dynamic):
    def f(a):
        copy = SCATTERS[scatter](a)
        copy.select(1, 0).mul_(2)
        return copy, copy.roll(1, 2)

    compiled = torch.compile(f, backend="inrush", dynamic=dynamic)
    for rows in (1, 33, 9):
        a = torch.arange(500.0).as_strided((rows, 7, 3), (12, 2, 1))
        expected, got = f(a), compiled(a)
        assert [t.stride() for t in got] == [t.stride() for t in expected]
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_copies_of_expanded_tensors_are_written_in_kernels(check):
    def f(a):
        copy = torch.slice_scatter(a.expand(4, 3), (a * 2).expand(4, 3)[:, :1], 1, 1, 2)
        copy.select(1, 0).mul_(2)
        return copy

    check(f, torch.arange(3.0).repeat(4, 1)[:1])
