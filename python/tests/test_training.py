"""Steps of training: what AOTAutograd's own wrappers do for a call has to hold where these are left out."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import inrush
from inrush import patches
from inrush.autograd import training

patches.install()
pytestmark = pytest.mark.skipif(not patches.is_on("training steps"), reason="steps keep this release's own wrappers")


def ones(*sizes, **options):
    return torch.ones(*sizes, requires_grad=True, **options)


def compiled(f, **options):
    return torch.compile(f, backend="inrush", options={"strict": True}, **options)


def is_short(out):
    """Whether the call that gave ``out`` went past the wrappers."""
    return out.grad_fn._forward_cls.__module__ == "inrush.autograd.training"


def twice(g, *inputs):
    """The first call goes through the wrappers: the second one's result."""
    g(*inputs)
    return g(*inputs)


class NormAct(nn.Module):
    def __init__(self, n=16):
        super().__init__()
        self.first, self.second = nn.LayerNorm(n), nn.LayerNorm(n)

    def forward(self, x):
        return F.silu(self.second(x + F.gelu(self.first(x))))


def test_gradients_step_by_step():
    model, twin = NormAct(), NormAct()
    twin.load_state_dict(model.state_dict())
    g = compiled(model)
    for k in range(4):
        x = torch.randn(5, 16, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        got, want = g(x), twin(y)
        assert is_short(got) == (k > 0)
        assert got.grad_fn.name() == "CompiledFunctionBackward"
        got.square().mean().backward()
        want.square().mean().backward()
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(x.grad, y.grad)
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad)


def test_gradients_that_are_expanded_or_lie_otherwise():
    g = compiled(lambda a: a.sin())
    for make in (lambda o: o.sum(), lambda o: (o.t().contiguous() * 2).sum(), lambda o: (o[:, ::2] * 3).sum()):
        a, b = torch.randn(4, 6, requires_grad=True), None
        b = a.detach().clone().requires_grad_()
        make(twice(g, a)).backward()
        make(b.sin()).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_results_that_need_no_gradient():
    g = compiled(lambda a, c: (a.sin(), a.argmax(), c * 2, a.detach().exp()))
    a, c = ones(3), torch.ones(3)
    out = twice(g, a, c)
    assert [o.requires_grad for o in out] == [True, False, False, False]
    assert is_short(out[0])
    out[0].sum().backward()
    torch.testing.assert_close(a.grad, a.detach().cos())


def test_results_that_nothing_uses_get_zeros():
    g = compiled(lambda a, b: (a.sin() * b, a.exp()))
    a, b = ones(3), ones(3)
    out = twice(g, a, b)
    out[1].sum().backward()
    torch.testing.assert_close(a.grad, a.detach().exp())
    torch.testing.assert_close(b.grad, torch.zeros(3))


def kept_zeros(out):
    """The gradients that the function of ``out`` keeps for results that nothing used."""
    function = out.grad_fn._forward_cls.backward
    return dict(zip(function.__code__.co_freevars, function.__closure__))["zeros"].cell_contents.kept


def test_zeros_are_made_once():
    g = compiled(lambda a, b: (a.sin() * b, a.exp()))
    a, b = ones(3), ones(3)
    for k in range(4):
        out = g(a, b)
        grads = torch.autograd.grad(out[1].sum(), (a, b))
        torch.testing.assert_close(grads, (a.detach().exp(), torch.zeros(3)))
        kept = kept_zeros(out[0]) if is_short(out[0]) else {}
        assert set(kept) == ({0} if k > 1 else set())
        # Whoever gets a gradient may change it.
        for grad in grads:
            grad.add_(1)
        assert not any(z.any() for z in kept.values())
    # Wanted again, they count.
    (grad,) = torch.autograd.grad(g(a, b)[0].sum(), a)
    torch.testing.assert_close(grad, a.detach().cos())


def test_zeros_that_become_a_gradient_are_made_anew():
    g = compiled(lambda a, b: (a + 1, b.sin()))
    a, b = ones(3), ones(3)
    for _ in range(5):
        out = g(a, b)
        grads = torch.autograd.grad(out[1].sum(), (a, b))
        torch.testing.assert_close(grads, (torch.zeros(3), b.detach().cos()))
        for grad in grads:
            grad.add_(1)
    assert is_short(out[0])


def test_large_zeros_are_not_kept():
    n = inrush.autograd.training.Zeros.LARGEST // 4 + 1
    g = compiled(lambda a: (a.sin(), a.expand(n) * a))
    a = ones(1)
    for _ in range(4):
        out = g(a)
        (grad,) = torch.autograd.grad(out[0].sum(), a)
        torch.testing.assert_close(grad, a.detach().cos())
    assert is_short(out[0]) and not kept_zeros(out[0])


def test_results_that_are_views_of_what_nobody_sees():
    layer = nn.Linear(4, 3)
    g = compiled(layer)
    x = torch.randn(2, 5, 4, requires_grad=True)
    out = twice(g, x)
    assert is_short(out) and not out._is_view()
    out.mul_(2)
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * layer.weight.detach().sum(0).expand(2, 5, 4))


def test_what_was_saved_must_not_change():
    g = compiled(lambda a, b: a.sin() * b.cos())
    a, b = ones(3), torch.ones(3)
    out = twice(g, a, b)
    assert is_short(out)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_keeping_a_graph_whose_values_may_be_overwritten(monkeypatch):
    def attempt():
        torch._dynamo.reset()
        g = compiled(lambda a, b: (a.sin() * b).exp())
        a, b = ones(3), ones(3)
        g(a, b).sum().backward()
        out, said = g(a, b), []
        for keep in (True, False, False):
            try:
                out.sum().backward(retain_graph=keep)
                said.append(a.grad.tolist())
            except RuntimeError as error:
                said.append(str(error)[:60])
        return is_short(out), said

    short, ours = attempt()
    monkeypatch.setattr(training, "shorten", lambda graph: graph.call)
    long, theirs = attempt()
    assert short and not long and ours == theirs


def test_graphs_that_are_kept():
    """Without anything to overwrite, a backward pass may come again."""
    with torch._functorch.config.patch(donated_buffer=False):
        g = compiled(lambda a, b: (a.sin() * b).exp())
        a, b = ones(3), ones(3)
        out = twice(g, a, b)
        assert is_short(out)
        out.sum().backward(retain_graph=True)
        once = a.grad.clone()
        out.sum().backward()
        torch.testing.assert_close(a.grad, 2 * once)
        with pytest.raises(RuntimeError, match="second time"):
            out.sum().backward()


def test_a_backward_pass_is_not_differentiated():
    with torch._functorch.config.patch(donated_buffer=False):
        g = compiled(lambda a: a.sin().exp())
        a = ones(3)
        out = twice(g, a)
        assert is_short(out)
        (grad,) = torch.autograd.grad(out.sum(), a, create_graph=True)
        torch.testing.assert_close(grad.detach(), (a.sin().exp() * a.cos()).detach())
        with pytest.raises(RuntimeError, match="double backward"):
            grad.sum().backward()


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


def test_gradients_of_a_subclass_are_what_aotautograd_says():
    def attempt(backend):
        torch._dynamo.reset()
        g = torch.compile(lambda a: a.sin(), backend=backend)
        a = ones(3)
        out = twice(g, a)
        try:
            torch.autograd.backward([out], [torch.ones(3).as_subclass(Marked)])
        except RuntimeError as error:
            return str(error).strip().splitlines()[0]
        return a.grad

    ours, theirs = attempt("inrush"), attempt("aot_eager")
    assert type(ours) is type(theirs)
    assert ours == theirs if isinstance(ours, str) else torch.allclose(ours, theirs)


def test_hooks_on_saved_tensors():
    packed = {}
    for backend in ("inrush", "aot_eager"):
        torch._dynamo.reset()
        g = torch.compile(lambda a, b: a.sin() * b, backend=backend)
        a, b = ones(3), ones(3)
        g(a, b)
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append("pack") or t, lambda t: seen.append("unpack") or t):
            out = g(a, b)
            assert backend != "inrush" or is_short(out)
            out.sum().backward()
        packed[backend] = (seen.count("pack") > 0, seen.count("pack") == seen.count("unpack"))
    assert packed["inrush"] == packed["aot_eager"] == (True, True)


def test_inputs_that_the_graph_changes_are_counted():
    layer, twin = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    g = compiled(layer)
    for k in range(3):
        x = torch.randn(5, 3)
        before = layer.running_mean._version
        out = g(x)
        assert is_short(out) == (k > 0)
        assert layer.running_mean._version > before
        out.square().sum().backward()
        twin(x).square().sum().backward()
    torch.testing.assert_close(layer.running_var, twin.running_var)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)


def test_inputs_that_are_changed_or_given_back_keep_the_wrappers():
    g = compiled(lambda a, b: (b.add_(1), a.sin() * b, a.view(-1))[1:])
    a, b = ones(3), torch.ones(3)
    g(a, b)
    out, view = g(a, b)
    assert b[0] == 3
    assert view._base is a
    out.sum().backward()
    torch.testing.assert_close(a.grad, 3 * a.detach().cos())


def test_arguments_that_wrappers_merge_keep_the_wrappers():
    def f(x, written, view):
        sign = x * 2
        total = written.sum()
        view.mul_(3)
        return sign, total

    def call(g, data):
        x = torch.full((3,), 2.0, requires_grad=True)
        sign, total = g(x, data, data.view(-1)[1:])
        sign.sum().backward()
        return sign.detach(), total, x.grad, data

    compiled = torch.compile(f, backend=inrush.backend, options={"strict": True})
    for _ in range(3):
        for got, expected in zip(call(compiled, torch.arange(6.0).view(2, 3)), call(f, torch.arange(6.0).view(2, 3)), strict=True):
            assert torch.equal(got, expected)


def test_autocast():
    layer = nn.Linear(8, 8)
    twin = nn.Linear(8, 8)
    twin.load_state_dict(layer.state_dict())
    g = compiled(lambda x: F.gelu(layer(x)) + 1)
    x = torch.randn(4, 8)
    for k in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, want = g(x), F.gelu(twin(x)) + 1
        assert out.dtype == want.dtype and is_short(out) == (k > 0)
        out.float().square().sum().backward()
        want.float().square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(4, 16), lambda: nn.LayerNorm([16, 6, 7])], ids=["group", "layer"])
def test_norms_under_autocast(norm, dtype):
    # Weights are float32, what is normalised is half: gradients have several dtypes.
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm(), nn.ReLU(), nn.Conv2d(16, 4, 1))
    x = torch.randn(2, 3, 6, 7)
    exact = copy.deepcopy(net).double()
    want = torch.autograd.grad(exact(x.double()).square().mean(), list(exact.parameters()))
    with torch.autocast("cpu", dtype=dtype):
        out = compiled(net)(x)
    # Graphs of the other type are in the cache.
    assert out.dtype == dtype
    got = torch.autograd.grad(out.float().square().mean(), list(net.parameters()))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.float32
        assert (g - w).norm() < 8 * torch.finfo(dtype).eps * w.norm()


def test_grad_mode_and_views_are_as_before():
    g = compiled(lambda a: a.sin())
    a = ones(3)
    twice(g, a)
    assert torch.is_grad_enabled() and not torch._C._is_view_replay_enabled()
    with torch.no_grad():
        assert not g(a).requires_grad
    with pytest.raises(RuntimeError):
        g(a).backward(torch.ones(4))
    assert torch.is_grad_enabled() and not torch._C._is_view_replay_enabled()


def test_inputs_that_are_views_are_saved_without_their_history():
    g = compiled(lambda a, b: a.sin() * b.cos())
    base = torch.randn(4, 3, requires_grad=True)
    for k in range(3):
        base.grad = None
        out = g(base[1], base.detach()[2])
        assert is_short(out) == (k > 0)
        out.sum().backward()
    want = torch.zeros(4, 3)
    want[1] = base.detach()[1].cos() * base.detach()[2].cos()
    torch.testing.assert_close(base.grad, want)


def test_nothing_of_a_step_stays():
    g = compiled(lambda a, b: (a.sin() * b).exp())
    a = ones(3)
    g(a, torch.ones(3)).sum().backward()
    b = torch.ones(3)
    seen = weakref.ref(b)
    out = g(a, b)
    assert is_short(out)
    del b
    out.sum().backward()
    del out
    gc.collect()
    assert seen() is None


def test_transforms_around_a_compiled_function():
    g = compiled(lambda a: a.sin().sum())
    a = ones(3)
    twice(g, a).backward()
    try:
        got = torch.func.grad(g)(torch.ones(3))
    except RuntimeError as error:
        # What AOTAutograd's function answers.
        assert "functorch" in str(error) or "vmap" in str(error)
    else:
        torch.testing.assert_close(got, torch.ones(3).cos())


def test_compiled_autograd():
    model, twin = NormAct(), NormAct()
    twin.load_state_dict(model.state_dict())
    g = compiled(model)
    x = torch.randn(5, 16)
    twice(g, x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="inrush")):
        for _ in range(2):
            g(x).square().mean().backward()
            twin(x).square().mean().backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


def test_graphs_from_the_cache():
    def f(a, b):
        return (a * b).sin().exp()

    for found in (False, True):
        torch._dynamo.reset()
        g = torch.compile(f, backend="inrush", options={"strict": True})
        a, b = ones(7), ones(7)
        for k in range(3):
            out = g(a, b)
            assert is_short(out) == (k > 0)
            out.sum().backward()
        caches = [graph.cache for graph in inrush.last_compile().graphs]
        assert all(("not traced" in c) == found for c in caches), caches


def test_sizes_that_vary_keep_the_wrappers():
    g = compiled(lambda a: a.sin() * a.shape[0], dynamic=True)
    for n in (3, 5, 7):
        a = ones(n)
        out = g(a)
        assert not is_short(out)
        out.sum().backward()
        torch.testing.assert_close(a.grad, n * a.detach().cos())


def counted(w, x):
    y = w * torch.exp(x)
    x.add_(1)
    return y


def counted_by_a_view(w, x):
    y = w * torch.exp(x.view(-1)).view(4, 5)
    x.add_(1)
    return y


def scaled_afterwards(w, x):
    y = torch.sin(w * torch.tanh(x))
    x.mul_(2)
    return y * 2


def detached(w, x):
    y = torch.exp(w) * x
    with torch.no_grad():
        w.detach().addcmul_(w, w)
    return y


@pytest.mark.parametrize("f", [counted, counted_by_a_view, scaled_afterwards, detached])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_of_arguments_before_they_were_mutated(f, dynamic):
    """PyTorch's partitioner computes again what eager keeps, from arguments that are others then."""
    given = torch.randn(4, 5), torch.randn(4, 5)
    made = []
    for run in (f, compiled(f, dynamic=dynamic)):
        w, x = given[0].clone().requires_grad_(), given[1].clone()
        run(w, x).sum().backward()
        made.append((w, w.grad, x))
    torch.testing.assert_close(made[1], made[0])


def test_what_a_loop_stores_is_read_under_a_condition():
    """The gradient of the pool is stored, and all of it but a column is summed, in one loop nest."""

    def f(x):
        first = x.norm(dim=0, keepdim=True)[..., :1]
        spread = torch.slice_scatter(first.expand(*first.shape[:-1], 3), first, -1, 1, 2)
        return F.lp_pool2d(spread.abs() + 0.5, 1.0, 2)

    gradients = []
    for function in (f, torch.compile(f, backend="inrush", options={"strict": True})):
        x = torch.linspace(-2, 2, 33 * 2 * 8 * 4).view(33, 2, 8, 4).requires_grad_()
        function(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
