"""Random numbers that kernels draw: distribution, reproducibility, and what PyTorch's seed decides."""

import math

import inrush
import pytest
import torch
import torch.nn.functional as F

N = 200_000


def compiled(f, **options):
    torch._dynamo.reset()
    return torch.compile(f, backend="inrush", fullgraph=True, options={"strict": True, **options})


def calls():
    """Operators that the last compilation calls, the seed's aside."""
    last = inrush.last_compile()
    return [call.op for g in last.graphs for call in g.calls if call.op != "inrush.seed.default"]


def moments(x):
    x = x.double()
    return x.mean().item(), x.std().item()


# Name, function, mean, standard deviation.
DISTRIBUTIONS = [
    ("rand", lambda: torch.rand(N), 0.5, math.sqrt(1 / 12)),
    ("rand_f64", lambda: torch.rand(N, dtype=torch.float64), 0.5, math.sqrt(1 / 12)),
    ("rand_f16", lambda: torch.rand(N, dtype=torch.float16), 0.5, math.sqrt(1 / 12)),
    ("randn", lambda: torch.randn(N), 0.0, 1.0),
    ("randn_bf16", lambda: torch.randn(N, dtype=torch.bfloat16), 0.0, 1.0),
    ("randn_f64", lambda: torch.randn(N, dtype=torch.float64), 0.0, 1.0),
    ("rand_like", lambda: torch.rand_like(torch.ones(N)), 0.5, math.sqrt(1 / 12)),
    ("randint", lambda: torch.randint(-3, 7, (N,)), 1.5, math.sqrt(99 / 12)),
    ("randint_large", lambda: torch.randint(0, 1 << 40, (N,)), 2.0**39, 2.0**40 / math.sqrt(12)),
    ("bernoulli", lambda: torch.bernoulli(torch.full((N,), 0.3)), 0.3, math.sqrt(0.21)),
    ("uniform_", lambda: torch.empty(N).uniform_(-2, 4), 1.0, math.sqrt(3)),
    ("normal_", lambda: torch.empty(N).normal_(3, 2), 3.0, 2.0),
    ("bernoulli_", lambda: torch.empty(N).bernoulli_(0.25), 0.25, math.sqrt(3 / 16)),
    ("exponential_", lambda: torch.empty(N).exponential_(2.0), 0.5, 0.5),
    ("geometric_", lambda: torch.empty(N).geometric_(0.25), 4.0, math.sqrt(12)),
    ("log_normal_", lambda: torch.empty(N).log_normal_(0.0, 0.25), math.exp(1 / 32), 0.26202),
    ("dropout", lambda: F.dropout(torch.ones(N), 0.2), 1.0, 0.5),
    ("alpha_dropout", lambda: F.alpha_dropout(torch.randn(N), 0.3, training=True), 0.0, 1.0),
]


@pytest.mark.parametrize("name, f, mean, std", DISTRIBUTIONS, ids=[d[0] for d in DISTRIBUTIONS])
def test_distribution(name, f, mean, std):
    g = compiled(f)
    torch.manual_seed(1)
    first, second = g(), g()
    want = f()
    assert (first.dtype, first.shape) == (want.dtype, want.shape)
    assert calls() == []
    for x in (first, second):
        m, s = moments(x)
        assert abs(m - mean) < 5 * std / math.sqrt(N) + 1e-9 + (2e-3 if x.dtype in (torch.float16, torch.bfloat16) else 0), m
        assert abs(s / std - 1) < 0.02, s
    assert not torch.equal(first, second)
    # Neighbours, and the two calls, know nothing of each other.
    a = first.double() - first.double().mean()
    b = second.double() - second.double().mean()
    for u, v in ((a[1:], a[:-1]), (a, b)):
        assert abs((u * v).mean().item() / (std * std)) < 6 / math.sqrt(N)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers_stay_below_one(dtype):
    x = compiled(lambda: torch.rand(1 << 20, dtype=dtype))()
    assert x.min() >= 0 and x.max() < 1


def test_permutation_has_every_number_once():
    for n in (1, 60, 5000):
        g = compiled(lambda n=n: torch.randperm(n))
        first = g()
        assert torch.equal(first.sort()[0], torch.arange(n))
        assert n == 1 or not torch.equal(first, g())


def test_manual_seed_decides():
    g = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    x = torch.ones(1000)
    torch.manual_seed(7)
    a, b = g(x), g(x)
    torch.manual_seed(7)
    assert torch.equal(a, g(x)) and torch.equal(b, g(x))
    torch.manual_seed(8)
    assert not torch.equal(a, g(x))


def test_each_operator_draws_its_own():
    a, b = compiled(lambda: (torch.rand(1000), torch.rand(1000)))()
    assert not torch.equal(a, b)


def test_threads_and_shapes_change_nothing():
    f = lambda x: (torch.rand_like(x) * 2, torch.rand_like(x).t().contiguous())
    x = torch.ones(300, 701)
    outs = []
    for threads in (1, 2, 5):
        g = compiled(f, threads=threads)
        torch.manual_seed(3)
        outs.append(g(x))
    for o in outs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(o, outs[0]))


def test_backward_sees_the_mask_of_forward():
    x = torch.randn(64, 1000, requires_grad=True)
    g = compiled(lambda x: F.dropout(x, 0.25).sin())
    torch.manual_seed(0)
    y = g(x)
    y.sum().backward()
    assert calls() == []
    kept = y != 0
    want = torch.where(kept, torch.cos(x.detach() / 0.75) / 0.75, 0.0)
    assert torch.allclose(x.grad, want, atol=1e-5)
    assert abs(kept.float().mean().item() - 0.75) < 0.01


def test_dropout_of_everything_and_of_nothing():
    x = torch.tensor([1.0, float("nan"), float("inf")])
    assert torch.equal(compiled(lambda x: F.dropout(x, 0.0))(x).isnan(), x.isnan())
    got, want = compiled(lambda x: F.dropout(x, 1.0))(x), F.dropout(x, 1.0)
    assert torch.equal(got.isnan(), want.isnan()) and got[0] == want[0] == 0


def test_multinomial():
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]])
    got = compiled(lambda w: torch.multinomial(w, 100_000, True))(weights)
    share = torch.stack([(got == k).double().mean(1) for k in range(4)], 1)
    assert torch.allclose(share, weights.double() / weights.sum(1, keepdim=True), atol=0.01)
    none = compiled(lambda w: torch.multinomial(w, 2))(weights[1:].expand(1000, 4).contiguous())
    assert torch.equal(none.sort(1)[0], torch.tensor([1, 3]).expand(1000, 2))


def test_fallback_random_follows_eager():
    f = lambda x: F.dropout(x, 0.5) + torch.randn_like(x)
    x = torch.ones(1000)
    g = compiled(f, fallback_random=True)
    torch.manual_seed(7)
    got = g(x)
    torch.manual_seed(7)
    assert torch.allclose(got, f(x))


UNREAD = {
    "randn": lambda x: torch.randn(3),
    "randperm": lambda x: torch.randperm(7),
    "bernoulli": lambda x: x.sigmoid().bernoulli(),
    "normal": lambda x: torch.normal(torch.zeros(5), x[:5].exp()),
    "uniform_": lambda x: torch.empty(4).uniform_(),
    "dropout": lambda x: F.dropout(x.sin(), 0.5),
    "multinomial": lambda x: torch.multinomial(torch.ones(5), 2),
    "poisson": lambda x: torch.poisson(torch.full((5,), 3.0)),
    "gumbel_softmax": F.gumbel_softmax,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("order", ["before", "after", "alone"])
def test_what_nothing_reads_is_drawn_as_eager_does(order, training):
    def f(x):
        if order == "before":
            for draw in UNREAD.values():
                draw(x)
        y = x * torch.rand(6) if order != "alone" else x * 2
        if order != "before":
            for draw in UNREAD.values():
                draw(x)
        return y

    for fallback in (True, False):
        results = []
        for g in (f, compiled(f, fallback_random=fallback)):
            torch.manual_seed(3)
            x = torch.arange(6.0).requires_grad_(training)
            y = g(x)
            grad = torch.autograd.grad(y.sum(), x) if training else None
            results.append((y, grad, torch.get_rng_state()))
        if fallback:
            torch.testing.assert_close(*results, rtol=0, atol=0)
        elif order == "alone":
            torch.testing.assert_close(results[0][:2], results[1][:2])


def test_draws_that_nothing_reads_in_a_graph_without_kernels():
    def f(x, y):
        y.sigmoid().bernoulli()
        return (x,)

    x, states = torch.ones(3), []
    for g in (f, compiled(f, fallback_random=True)):
        torch.manual_seed(3)
        assert g(x, torch.zeros(16))[0] is x
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_draws_of_a_backward_pass_are_drawn_once():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            torch.randn(2)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            torch.randn(5)
            return grad * torch.rand(6)

    results = []
    for g in (Noisy.apply, compiled(lambda x: Noisy.apply(x), fallback_random=True)):
        torch.manual_seed(1)
        x = torch.ones(6, requires_grad=True)
        y = g(x)
        y.sum().backward()
        results.append((x.grad, torch.get_rng_state()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_generator_of_its_own_is_pytorchs():
    def f(x):
        return torch.ops.aten.bernoulli.p(x, 0.5) + 1

    assert set(compiled(f)(torch.ones(1000)).tolist()) == {1.0, 2.0}


def test_dynamic_sizes():
    torch._dynamo.reset()
    g = torch.compile(lambda x: F.dropout(x, 0.5), backend="inrush", dynamic=True, options={"strict": True})
    for n in (1000, 1001, 5000):
        torch.manual_seed(0)
        a = g(torch.ones(n))
        torch.manual_seed(0)
        assert torch.equal(a, g(torch.ones(n)))
        assert abs(a.mean().item() - 1) < 0.15


def test_a_package_draws_by_its_seed(tmp_path):
    class Noise(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x), F.dropout(x, 0.5, training=True)

    x = torch.ones(1000)
    path = inrush.aot_compile(torch.export.export(Noise(), (x,)), tmp_path / "noise.inrush")
    a = inrush.load(path)
    first, second = a(x), a(x)
    again = inrush.load(path)(x)
    other = inrush.load(path, seed=99)(x)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], second[0]) and not torch.equal(first[0], other[0])
    assert first[0].min() >= 1 and first[0].max() < 2
    assert set(first[1].tolist()) == {0.0, 2.0}
