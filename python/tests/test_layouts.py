"""Strides of results, writes into tensors whose elements share memory, positions in memory: as eager has them."""

import inrush
import pytest
import torch
import torch.nn.functional as F

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def same(f, *args, calls=(), dynamic=None):
    """Values and strides of all results; nothing but ``calls`` may be called."""
    torch._dynamo.reset()
    got = torch.compile(f, backend=inrush.backend, fullgraph=True, dynamic=dynamic, options={"strict": True})(*args)
    equal(got, f(*args))
    called = {c.op for graph in inrush.last_compile().graphs for c in graph.calls}
    assert called == set(calls), called


def equal(got, wanted):
    got, wanted = (list(x) if isinstance(x, (list, tuple)) else [x] for x in (got, wanted))
    assert len(got) == len(wanted)
    for k, (g, w) in enumerate(zip(got, wanted)):
        torch.testing.assert_close(g, w, equal_nan=True, msg=lambda m: f"result {k}: {m}")
        assert g.stride() == w.stride(), f"result {k}: strides {g.stride()}, eager gives {w.stride()}"


def gradients(f, *args):
    """Results and gradients of their sum, with strides."""
    torch._dynamo.reset()

    def run(f):
        leaves = [a.detach().clone().requires_grad_() for a in args]
        out = f(*leaves)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]

    equal(run(torch.compile(f, backend=inrush.backend, fullgraph=True, options={"strict": True})), run(f))


@pytest.fixture
def image():
    torch.manual_seed(0)
    return torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writes_into_expanded_tensors(dtype):
    base = torch.tensor([0, 1, 2]).to(dtype).reshape(3, 1)
    rows = torch.tensor([1, 0, 1, 1, 0, 1]).to(dtype).reshape(3, 2)

    def f(base, rows):
        wide = base.expand(3, 4)
        return [
            torch.slice_scatter(wide, rows, 1, 0, 2),
            torch.slice_scatter(wide, rows, 1, 0, 4, 2),
            torch.slice_scatter(wide.t(), rows.t(), 0, 1, 3),
            torch.select_scatter(wide, rows[:, 0], 1, 2),
            torch.diagonal_scatter(wide, rows[:, 0], 1),
            torch.index_put(wide, (torch.tensor([0, 2]),), rows[:1, :1]),
            torch.as_strided_scatter((base * base).expand(3, 4), rows[:2, 0], (2,), (1,), 3),
        ]

    same(f, base, rows)
    same(lambda base, rows: [torch.slice_scatter(base.expand(3, 4), rows, 1, 0, 2), rows * rows], base, rows, dynamic=True)


def test_gradients_of_writes_into_expanded_tensors():
    x, s = torch.ones(3, 5), torch.randn(3, 4)
    gradients(lambda x, s: torch.slice_scatter(x, s[:, :2], 1, 1, 3).sum(1), x, s)
    gradients(lambda x, s: torch.select_scatter(x, s[:, 0], 1, 1).sum(1), x, s)
    gradients(lambda x, s: torch.diagonal_scatter(x, s[:, 0]).sum(0), x, s)
    gradients(lambda x, s: torch.slice_scatter(x[:1].expand(3, 5), s[:, :2], 1, 1, 3), x, s)
    gradients(lambda x, s: torch.as_strided_scatter(x, s[:, 0], (3,), (6,)).sum(1), x, s)


def test_results_that_share_memory_in_eager_are_left_to_it():
    """A scatter keeps its base's strides; windows that meet are written twice, in an order that only eager knows."""
    x = torch.arange(12.0)
    same(lambda x: torch.slice_scatter(x.unfold(0, 4, 2), torch.zeros(2, 4), 0, 0, 2), x, calls=["aten.slice_scatter.default"])
    same(lambda x: torch.select_scatter((x * 2).unfold(0, 4, 2), torch.zeros(4), 0, 1), x, calls=["aten.select_scatter.default"])


def test_positions_in_copies_of_tensors_with_gaps_and_shared_elements(tmp_path):
    """``as_strided_scatter`` copies first: gaps with it, shared elements one by one."""
    scatter = torch.as_strided_scatter

    def f(x, one):
        y, ones = x * 2, one.expand(2, 1)
        return (
            scatter(ones, ones.flatten()[:2] * 3, (2,), (1,)),
            scatter(ones * 1, ones.flatten()[:2] * 3, (2,), (1,)),
            scatter(x[:, :1].expand(3, 4), x[0, :2] + 5, (2,), (1,), 10),
            scatter(y[:, ::2], x[0, :2] + 5, (2,), (1,), 1),
            scatter(y[1:, ::2], x[0, :2] + 5, (2,), (1,)),
            scatter(y.flatten().unfold(0, 4, 2) * 1, x[0, :2] + 5, (2,), (1,), 2),
        )

    x, one = torch.arange(12.0).reshape(3, 4), torch.tensor([2.0])
    same(f, x, one)
    program = torch.export.export(Module(f), (x, one), strict=False)
    equal(inrush.load(inrush.aot_compile(program, tmp_path / "m.inrush"))(x, one), f(x, one))
    # Of an input with gaps nothing says what they hold.
    wide = torch.arange(24.0).reshape(3, 8)[:, ::2]
    same(lambda x: scatter(x, x[0, :2] + 5, (2,), (1,)), wide, calls=["aten.as_strided_scatter.default"])
    program = torch.export.export(Module(lambda x: scatter(x, x[0, :2] + 5, (2,), (1,))), (wide,), strict=False)
    with pytest.raises(inrush.Error, match="as_strided of a tensor with gaps"):
        inrush.aot_compile(program, tmp_path / "m.inrush")


def test_random_numbers_of_expanded_tensors():
    operators = [torch.ops.aten.uniform, torch.ops.aten.normal_functional, torch.ops.aten.exponential, torch.ops.aten.log_normal]
    f = torch.compile(lambda x: [op(x) for op in operators], backend=inrush.backend, fullgraph=True, options={"strict": True})
    for out in f(torch.zeros(3, 1).expand(3, 1000)):
        assert out.stride() == (1000, 1)
        assert out.unique().numel() > 2900


def test_positions_in_what_was_computed(image):
    def f(x):
        rolled, padded = torch.roll(x, -1, 0), F.pad(x, (1, 1, 1, 1), mode="reflect") + 1
        y = x * 2
        return [
            torch.as_strided(rolled, (5, 10), (4, 1), 0) * 2,
            torch.as_strided(padded, (5, 10), (4, 1), 3) * 2,
            torch.as_strided(y[1:], (5, 5), (4, 1)) * 2,
            # Counted from where `y` begins, not its second half.
            torch.as_strided(y[1:], (5, 5), (4, 1), 3) * 2,
            torch.as_strided(y[:1], (5, 5), (4, 1), 60) * 2,
            torch.as_strided(y[:, 1:3].transpose(0, 1), (5, 5), (4, 1), 3) * 2,
            torch.as_strided(y.contiguous(), (5, 5), (4, 1), 3) * 2,
            torch.as_strided(x[1:], (5, 5), (4, 1)) * 2,
            torch.as_strided_scatter(y[1:], torch.zeros(5, 5), (5, 5), (5, 1), 3),
            torch.as_strided_scatter(y, torch.zeros(5, 5), (5, 5), (5, 1), 50),
            torch.as_strided_copy(y.transpose(0, 3), (5, 5), (5, 1), 3),
        ]

    same(f, image)
    same(f, image.contiguous())


def test_positions_in_an_input_that_begins_later(image):
    f = lambda x: torch.as_strided(x, (5, 5), (4, 1), 3) * 2
    compiled = torch.compile(f, backend=inrush.backend, fullgraph=True, options={"strict": True})
    for x in (torch.arange(100.0), torch.arange(200.0)[100:]):
        equal(compiled(x), f(x))


def test_rolls_and_pads_keep_channels_last(image):
    def f(x):
        rolls = [torch.roll(x, *by) for by in ((1, 0), (0, 0), (2, 0), ((1, 0), (0, 1)), ((1, 2), (2, 3)), (3,))]
        pads = [F.pad(x, (1, 1, 1, 1), mode=mode) for mode in ("constant", "reflect", "replicate", "circular")]
        return rolls + pads

    same(f, image)
    same(f, image.contiguous())
    same(lambda x: [torch.roll(x, 1, 0), F.pad(x, (1, 2, 1, 1), mode="reflect")], image, dynamic=True)
    gradients(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect") * torch.roll(F.pad(x, (1, 1, 1, 1), mode="replicate"), 1, 2), image)


def test_results_of_kernels_that_shape_functions_have_wrong(image):
    def f(x, y):
        return [
            torch.ldexp(y[:, :1], x[0]),
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="none"),
            F.max_pool3d(x.permute(1, 0, 2, 3), (1, 2, 2)),
            F.max_pool3d(x[None].transpose(1, 2), (1, 2, 2)),
        ]

    same(f, image, torch.randn(2, 5, 4, 4)[..., :3])
    same(f, image, image.contiguous())


def test_transforms(image):
    def f(x):
        planes = torch.fft.rfft2(x)
        return [planes.real * 2, torch.fft.irfft2(planes), torch.fft.fft(x, dim=1).abs(), torch.view_as_real(planes).as_strided((5, 3), (2, 1), 4) * 2]

    for x in (image, image.contiguous()):
        torch._dynamo.reset()
        equal(torch.compile(f, backend=inrush.backend, fullgraph=True)(x), f(x))


class Module(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *args):
        return self.f(*args)


def test_packages(image, tmp_path):
    """Exported programs say the wrong strides."""

    def f(x, base, rows):
        return (
            torch.as_strided(torch.roll(x, -1, 0), (5, 10), (4, 1), 0) * 2,
            torch.as_strided(F.pad(x, (1, 1, 1, 1), mode="reflect") + 1, (5, 10), (4, 1), 3) * 2,
            torch.as_strided((x * 2)[1:], (5, 5), (4, 1), 3) * 2,
            torch.roll(x, 1, 2).relu(),
            F.pad(x, (1, 1, 1, 1), mode="replicate"),
            torch.slice_scatter(base.expand(3, 4), rows, 1, 0, 2),
            torch.select_scatter(base.expand(3, 4), rows[:, 0], 1, 2),
            torch.diagonal_scatter(base.expand(3, 4), rows[:, 0], 1),
            torch.as_strided(F.max_pool3d(x.permute(1, 0, 2, 3), (1, 2, 2)), (2, 3), (2, 1), 1) * 2,
        )

    args = image, torch.arange(3.0).reshape(3, 1), torch.full((3, 2), 9.0)
    program = torch.export.export(Module(f), args, strict=False)
    equal(inrush.load(inrush.aot_compile(program, tmp_path / "m.inrush"))(*args), f(*args))


def test_rules_of_one_kind_of_device():
    from torch._subclasses import FakeTensorMode

    from inrush.fake_strides import corrected

    unshuffle = torch.ops.aten.pixel_unshuffle.default
    for device, strides in (("cuda", (128, 8, 4, 1)), ("cpu", (128, 1, 64, 16))):
        with FakeTensorMode():
            x = torch.empty(3, 4, 4, 8, device=device).to(memory_format=torch.channels_last)
            assert corrected(unshuffle, unshuffle(x, 2), (x, 2), {}).stride() == strides
