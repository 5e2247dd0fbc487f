"""One compile for all sizes; sizes that depend on data."""

import pytest
import torch

import inrush
from inrush import report as reports


@pytest.fixture
def capture():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def test_one_compile_serves_all_sizes():
    f = lambda a, b: torch.softmax(a @ b, -1).sum(0) * a.shape[0]
    g = torch.compile(f, backend="inrush", dynamic=True, options={"strict": True})
    before = len(reports.compilations())
    for n in (3, 8, 17, 2, 33):
        a, b = torch.randn(n, 5), torch.randn(5, n + 1)
        torch.testing.assert_close(g(a, b), f(a, b), rtol=1e-4, atol=1e-5)
    assert len(reports.compilations()) == before + 1


def test_automatic_dynamic():
    f = lambda a: (a * 2).reshape(-1, 2).sum(1)
    g = torch.compile(f, backend="inrush", options={"strict": True})
    before = len(reports.compilations())
    for n in (4, 6, 8, 10, 12):
        a = torch.randn(n, 3)
        torch.testing.assert_close(g(a), f(a))
    assert len(reports.compilations()) == before + 2


def test_integers_and_floats_as_inputs(check):
    f = lambda a, n, x: torch.nn.functional.pad(a, (n, n)) * x + n
    g = torch.compile(f, backend="inrush", dynamic=True, options={"strict": True})
    for n, x in ((1, 0.5), (2, 1.5), (3, 2.5)):
        a = torch.randn(4, 5)
        torch.testing.assert_close(g(a, n, x), f(a, n, x))


def test_sizes_as_outputs(check):
    g = torch.compile(lambda a: (a.shape[0] * 2, a.sum()), backend="inrush", dynamic=True)
    assert g(torch.ones(3, 2))[0] == 6 and g(torch.ones(5, 2))[0] == 10


def test_dynamic_training(check):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    compiled = torch.compile(model, backend="inrush", dynamic=True, options={"strict": True})
    for n in (2, 5, 9):
        model.zero_grad()
        a = torch.randn(n, 6)
        compiled(a).square().mean().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(a).square().mean().backward()
        torch.testing.assert_close(got, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-5)


def test_nonzero(check, capture):
    check(lambda a: torch.nonzero(a > 0) * 2, torch.randn(4, 5))


def test_masks(check, capture):
    check(lambda a: a[a > 0].sum() + 1, torch.randn(4, 5))


def test_item(check, capture):
    check(lambda a, n: a * n.item() + 1, torch.randn(3), torch.tensor(4))
    check(lambda a, n: a * n.item(), torch.randn(3), torch.tensor(1.5))


def test_a_tensor_of_a_size_from_data(check, capture):
    def f(a, n):
        n = n.item()
        torch._check(n >= 0)
        torch._check(n <= 8)
        return torch.arange(n) * 2, a + n

    check(f, torch.randn(3), torch.tensor(5))


def test_a_runtime_assert_fails_cleanly(capture):
    def f(a, n):
        n = n.item()
        torch._check(n >= 2)
        return a[:2] * n

    g = torch.compile(f, backend="inrush", options={"strict": True})
    a = torch.randn(3)
    torch.testing.assert_close(g(a, torch.tensor(3)), a[:2] * 3)
    with pytest.raises(RuntimeError):
        g(a, torch.tensor(1))
    torch.testing.assert_close(g(a, torch.tensor(4)), a[:2] * 4)


@pytest.mark.parametrize("cut", [[2, 6], [0, 10], [4, 4], [0, 0]])
def test_slices_between_numbers_from_data(check, capture, cut):
    x, n = torch.randn(10, 3), torch.tensor(cut)
    check(lambda x, n: x[n[0].item() : n[1].item()].sum(0) * 2, x, n)
    check(lambda x, n: [t * 2 for t in torch.tensor_split(x, n)], x, n)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("stride", [2, [1, 2]])
def test_symbolic_numbers_of_an_operator_that_is_called(transposed, stride):
    conv = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    groups = 2
    f = lambda x, w: conv(x, w, stride=stride, groups=groups) * 2
    g = torch.compile(f, backend="inrush", dynamic=True, options={"strict": True})
    for n in (12, 17):
        x, w = torch.randn(2, 4, n, 13), torch.randn(4, 2, 3, 3)
        torch.testing.assert_close(g(x, w), f(x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [2, 2.5, 0.7, 1.3])
def test_resampling_by_a_factor(mode, scale):
    # 2.5 is a short fraction, which expressions of sizes have; 0.7 times a size is rounded by floating point.
    for grad in (False, True):
        torch._dynamo.reset()
        f = lambda a: torch.nn.functional.interpolate(a, scale_factor=scale, mode=mode) + 0  # noqa: E731
        compiled = torch.compile(f, backend="inrush", dynamic=True, options={"strict": True})
        for n in (30, 41, 100):
            a = torch.randn(2, 4, n, n + 2, requires_grad=grad)
            with torch.set_grad_enabled(grad):
                got, want = compiled(a), f(a)
            torch.testing.assert_close(got, want)
            if grad:
                weights = torch.linspace(-1, 1, want.numel()).view(want.shape)
                gradients = [torch.autograd.grad((out * weights).sum(), a)[0] for out in (got, want)]
                torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


class Scaled(torch.nn.Module):
    """Floats of its own, of other modules and of the caller."""

    def __init__(self):
        super().__init__()
        self.eps = 1e-5
        self.norm, self.groups = torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)

    def forward(self, x, t, z=0.25):
        return self.groups(self.norm(x) * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * t * z)


def test_floats_of_modules_are_constants_until_they_change(monkeypatch):
    from inrush import dynamo_backend

    inputs, compile_graph = [], dynamo_backend.compile_graph

    def spy(gm, *rest):
        inputs.append([n.name for n in gm.graph.nodes if n.op == "placeholder" and isinstance(n.meta["example_value"], torch.Tensor)])
        return compile_graph(gm, *rest)

    monkeypatch.setattr(dynamo_backend, "compile_graph", spy)
    model = Scaled()
    compiled = torch.compile(model, backend="inrush", dynamic=True, options={"strict": True})
    floats = lambda names: [n for n in names if "parameters" not in n and n != "l_x_"]
    for n, t in ((3, 0.5), (7, 0.75), (9, 1.5)):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x, t), model(x, t))
    assert [floats(names) for names in inputs] == [["l_t_", "l_z_"]]
    for eps in (1e-3, 0.1, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.3, 1.5, 1e-5):
        model.eps = eps
        x = torch.randn(5, 8)
        torch.testing.assert_close(compiled(x, 0.5), model(x, 0.5))
    assert [len(floats(names)) for names in inputs[1:]] == [3], inputs


def test_other_backends_have_floats_as_dynamo_gives_them():
    found = []

    def spy(gm, examples):
        found.append(sum(n.op == "placeholder" and "eps" in n.name for n in gm.graph.nodes))
        return gm

    torch.compile(lambda x: torch.relu(x), backend="inrush")(torch.ones(3))
    torch.compile(Scaled(), backend=spy, dynamic=True)(torch.randn(3, 8), 0.5)
    assert found == [3]


class Marked(torch.Tensor):
    """A subclass whose sizes are read by Python."""

    read = 0

    def size(self, *dims):
        Marked.read += 1
        return super().size(*dims)


def test_sizes_of_subclasses_are_read_by_their_own_methods():
    from torch._dynamo import utils

    # Features are installed when the backend is looked up.
    torch.compile(lambda x: x + 1, backend="inrush")(torch.ones(2))
    x = torch.randn(3, 5)[:, :4]
    assert utils.call_size(x, 1) == 4 and utils.call_stride(x, 0) == 5 and utils.call_size(torch.nn.Parameter(x), 0) == 3
    marked, before = torch.randn(3, 5).as_subclass(Marked), Marked.read
    assert utils.call_size(marked, 1) == 5 and Marked.read == before + 1
    with pytest.raises(IndexError):
        utils.call_size(x, 2)
    with pytest.raises(TypeError):
        utils.call_size()
