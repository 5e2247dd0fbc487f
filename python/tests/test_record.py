"""Inference graphs that go past AOTAutograd, and those that must not."""

import logging

import pytest
import torch
import torch.nn.functional as F

import inrush
from inrush.capture import trace_inference


@pytest.fixture
def reasons(caplog):
    """Why graphs went through AOTAutograd."""
    caplog.set_level(logging.DEBUG, logger="inrush.compile")
    return lambda: [m.split(": ", 1)[1] for m in caplog.messages if m.startswith("AOTAutograd captures")]


def compiled(f, *inputs):
    """What ``f`` gives compiled, and whether that and what becomes of the inputs is what eager does."""
    eager, own = [x.clone() for x in inputs], [x.clone() for x in inputs]
    with torch.no_grad():
        want = f(*eager)
        got = torch.compile(f, backend="inrush", options={"strict": True})(*own)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(own, eager)
    for g, w in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)):
        assert g.stride() == w.stride()
    return got, own


def in_place(x):
    y = x * 2
    y.add_(1).relu_()
    return y, y.sum(0)


def split_and_joined(x):
    a, b, _ = x.split(2)
    values, places = torch.topk(b, 2)
    return torch.cat([a, b]).t(), values, places


def attention(x):
    q = x.view(1, 2, 3, -1)
    return F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)


def mixed(x):
    y = torch.arange(8, device=x.device) * x
    return torch.where(y > 0, y, torch.zeros_like(y)).to(torch.float16), x.mean(), F.dropout(x, 0.5, False) + 1


@pytest.mark.parametrize("f", [in_place, split_and_joined, attention, mixed])
def test_recorded(f, reasons):
    compiled(f, torch.randn(6, 8))
    assert reasons() == [] and inrush.last_compile().direct


def test_inputs_that_are_results_come_back_as_they_are(reasons):
    x = torch.randn(3)
    with torch.no_grad():
        f = torch.compile(lambda x: (x.float(), x + 1, torch.positive(x), x.conj()), backend="inrush", options={"strict": True})
        a, b, c, d = f(x)
    assert a is x and c is x and d is x
    torch.testing.assert_close(b, x + 1)
    assert reasons() == [] and inrush.last_compile().direct


def test_modules_in_evaluation_are_recorded(reasons):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(inplace=True), torch.nn.Flatten())
    compiled(model.eval(), torch.randn(2, 3, 8, 8))
    assert reasons() == [] and inrush.last_compile().direct


def test_statistics_of_batches_are_updated(reasons):
    a, b = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(b, backend="inrush")(x), a(x))
    torch.testing.assert_close(b.running_mean, a.running_mean)
    torch.testing.assert_close(b.running_var, a.running_var)
    assert len(reasons()) == 1


def mutates_its_input(x):
    x.mul_(2)
    return x + 1


def mutates_a_view_of_its_input(x):
    x[1:].add_(1)
    return x.sum()


def mutates_beside_a_view(x):
    y = x + 1
    z = y[2:]
    y.mul_(3)
    return z * 2


def mutates_a_shape(x):
    y = x + 1
    y.t_()
    return y * 2


def writes_what_it_must_convert(x):
    y = torch.zeros(6, 8, dtype=torch.int64, device=x.device)
    y.copy_(x)
    return y + 1


def gives_a_view_of_its_input(x):
    return x.t()


def gives_the_same_twice(x):
    y = x + 1
    return y, y


def gives_two_views(x):
    y = x + 1
    return y[:3], y[3:]


def holds_a_constant(x):
    return x + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])


@pytest.mark.parametrize(
    "f",
    [
        mutates_its_input,
        mutates_a_view_of_its_input,
        mutates_beside_a_view,
        mutates_a_shape,
        writes_what_it_must_convert,
        gives_a_view_of_its_input,
        gives_the_same_twice,
        gives_two_views,
        holds_a_constant,
    ],
)
def test_left_to_autograd(f):
    got, own = compiled(f, torch.randn(6, 8))
    if f is gives_a_view_of_its_input:
        assert got._base is own[0]
    if f is gives_the_same_twice:
        assert got[0] is got[1]


def attention_of_any_length(x):
    q = x.view(-1, 2, 4).transpose(0, 1)[None]
    return F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)


def sized(x):
    """Sizes as arguments, in views and in place."""
    b, c = x.shape
    n = b + 2
    y = F.hardswish(x).reshape(b * c)[: b * c - 1]
    z = torch.zeros(b + 1, c) + n
    z.mul_(c).clamp_(max=b)
    return y, z, x.t() * n, torch.cat([x, x[1:]]).view(-1, c, 1), x.repeat_interleave(2, 0), F.pad(x, (1, b))


@pytest.mark.parametrize("f", [in_place, attention_of_any_length, mixed, sized])
def test_recorded_with_symbols(f, reasons):
    """One graph serves all sizes, past AOTAutograd."""
    torch._dynamo.reset()
    shaped = torch.compile(f, backend="inrush", options={"strict": True})
    begun = inrush.last_compile()
    reports = []
    for rows in (6, 4, 9, 13):
        x = torch.randn(rows, 8)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            got, want = shaped(x), f(x)
        pairs = list(zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True))
        # The last of these is drawn by chance.
        for g, w in pairs[: -1 if f is mixed else None]:
            torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-5)
            assert g.stride() == w.stride()
        reports.append(inrush.last_compile())
    assert reasons() == [] and reports[0] is not begun
    assert all(r is reports[0] for r in reports) and reports[0].direct


def test_a_size_that_is_asked_for_becomes_a_guard(reasons):
    f = torch.compile(lambda x: x * 2 if x.shape[0] > 5 else x - 1, backend="inrush", dynamic=True, options={"strict": True})
    with torch.no_grad():
        for rows in (3, 8, 4, 11):
            x = torch.randn(rows, 2)
            torch.testing.assert_close(f(x), x * 2 if rows > 5 else x - 1)
    assert reasons() == []


def test_gradients_sizes_of_data_and_modes_are_left_to_autograd(reasons):
    f = torch.compile(lambda x: x * 2 + 1, backend="inrush")
    f(torch.ones(3, requires_grad=True)).sum().backward()
    with torch.no_grad():
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            torch.compile(lambda x: x.nonzero() * 3, backend="inrush")(torch.ones(3, 4))
        with torch.autocast("cpu", torch.bfloat16):
            torch.compile(lambda x: x @ x, backend="inrush")(torch.ones(3, 3))
    assert len(reasons()) == 3


def test_inference_mode(reasons):
    x = torch.randn(4, 6)
    layer = torch.nn.Linear(6, 2)
    with torch.inference_mode():
        out = torch.compile(lambda x: torch.softmax(layer(x), -1), backend="inrush")(x)
        assert out.is_inference()
        torch.testing.assert_close(out, torch.softmax(layer(x), -1))
    assert reasons() == []


def test_gradient_mode_within_a_graph(reasons):
    def f(x, w):
        with torch.enable_grad():
            y = x * w
        return y + 1

    with torch.no_grad():
        out = torch.compile(f, backend="inrush")(torch.ones(3), torch.ones(3, requires_grad=True))
    torch.testing.assert_close(out, torch.full((3,), 2.0))
    assert len(reasons()) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_recorded_is_what_autograd_captures(monkeypatch, dynamic):
    """Kernels and results are the same either way."""
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    found = []
    for eligible in (trace_inference.eligible, lambda gm: "a test"):
        monkeypatch.setattr(trace_inference, "eligible", eligible)
        torch._dynamo.reset()
        with torch.no_grad():
            out = torch.compile(model, backend="inrush", dynamic=dynamic, options={"cache": False})(x)
        found.append((out, sorted(k for g in inrush.last_compile().graphs for k in g.kernels)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=0)
    assert found[0][1] == found[1][1]


@pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch without CUDA has no tensors for a GPU, fake ones neither")
def test_graphs_of_a_gpu_are_recorded():
    """As AOTAutograd captures them: batch normalisation under its own name, nothing that nobody reads."""
    aten, graph = torch.ops.aten, torch.fx.Graph()
    with torch._subclasses.FakeTensorMode(), torch.no_grad():

        def node(function, *args):
            made = graph.call_function(function, args)
            made.meta["example_value"] = function(*[a.meta["example_value"] if isinstance(a, torch.fx.Node) else a for a in args])
            return made

        def given(*shape):
            made = graph.placeholder(f"x{len(graph.nodes)}")
            made.meta["example_value"] = torch.empty(shape, device="cuda")
            return made

        picture, of_channels = given(2, 3, 8, 8), [given(3) for _ in range(4)]
        normal = node(F.batch_norm, picture, *of_channels, False)
        node(torch.softmax, picture, -1)
        graph.output((node(torch.relu, normal),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        assert trace_inference.eligible(gm) is None
        found = [n.target for n in trace_inference.record(gm).graph.nodes if n.op == "call_function"]
    assert aten._native_batch_norm_legit_no_training.default in found and aten.cudnn_batch_norm.default not in found
    assert aten.relu.default in found and aten._softmax.default not in found
