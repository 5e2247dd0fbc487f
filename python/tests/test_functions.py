"""What functions do beside arithmetic: mutation, aliases, odd outputs, random numbers, autocast, several graphs."""

import threading

import pytest
import torch

import inrush


def test_inputs_are_mutated(check):
    def f(a, b):
        a.add_(b)
        b[0].mul_(2)
        return a.sum()

    check(f, torch.randn(4, 6), torch.randn(4, 6), calls=2)


def test_two_views_of_one_input_are_mutated(check):
    base = torch.randn(4, 6)
    check(lambda a, b: (a.mul_(2), b.add_(1))[1] * 1, base[0], base)


def test_metadata_of_an_input_changes(check):
    def f(a):
        a.t_()
        return a + 1

    check(f, torch.randn(2, 3))


def test_outputs_alias_inputs():
    f = torch.compile(lambda a: (a.view(-1), a.t(), a, a[0]), backend="inrush")
    a = torch.randn(3, 4)
    for out in f(a):
        assert out.untyped_storage().data_ptr() == a.untyped_storage().data_ptr()
    assert f(a)[2] is a


def test_outputs_alias_each_other():
    def f(a):
        z = a + 1
        return z, z.view(-1), z[0]

    a = torch.randn(3, 4)
    z, flat, row = torch.compile(f, backend="inrush")(a)
    flat[0] = 7
    row[1] = 8
    assert z[0, 0] == 7 and z[0, 1] == 8


def test_one_tensor_twice(check):
    def f(a):
        z = a * 2
        return z, z

    check(f, torch.randn(3))
    z, again = torch.compile(f, backend="inrush")(torch.randn(3))
    assert z.data_ptr() == again.data_ptr()


def test_none_and_numbers(check):
    check(lambda a, n: (a + n, None, n, 2.5, (a * n, {"k": a - 1})), torch.randn(3), 3)


def test_empty_tensors(check):
    check(lambda a: (a + 1, a.sum(), torch.cat([a, a])), torch.randn(0, 3))


def test_no_tensor_inputs(check):
    check(lambda: torch.arange(5) * 2)


@pytest.mark.parametrize("kind", ["transposed", "sliced", "expanded", "channels_last"])
def test_layouts_of_inputs(check, kind):
    a = {
        "transposed": torch.randn(6, 4).t(),
        "sliced": torch.randn(8, 12)[1::2, 2:8],
        "expanded": torch.randn(4, 1).expand(4, 6),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }[kind]
    check(lambda a: (a * 2 + 1, a.sum(-1), a.clone()), a)


def test_outputs_have_the_strides_of_eager(check):
    check(lambda a: (a.t() + 1, a.permute(1, 0).contiguous(), torch.empty_like(a.t()).copy_(a.t())), torch.randn(3, 4))
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    check(lambda a: (torch.relu(a), a.mean(1, keepdim=True)), image)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_dtypes(check, dtype):
    a = (torch.rand(4, 5) * 4).to(dtype)
    check(lambda a: (a + a, a.sum(), a == a.t().t(), a.to(torch.float32) * 2), a, rtol=1e-2, atol=1e-2)


def test_same_seed_same_numbers():
    f = torch.compile(lambda a: torch.nn.functional.dropout(a, 0.5) + torch.rand_like(a), backend="inrush")
    a = torch.ones(100)
    torch.manual_seed(5)
    first, second = f(a), f(a)
    torch.manual_seed(5)
    assert torch.equal(f(a), first)
    assert not torch.equal(first, second)


def test_random_numbers_of_eager():
    def f(a):
        return torch.rand(4) + a, torch.randn_like(a), torch.bernoulli(torch.full_like(a, 0.5))

    g = torch.compile(f, backend="inrush", options={"fallback_random": True})
    a = torch.zeros(4)
    torch.manual_seed(9)
    wanted = f(a)
    torch.manual_seed(9)
    torch.testing.assert_close(g(a), wanted)


def test_autocast(check):
    def f(a, b):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (a @ b).relu()

    check(f, torch.randn(4, 8), torch.randn(8, 4), rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check(lambda a, b: torch.softmax(a @ b, -1), torch.randn(4, 8), torch.randn(8, 4), rtol=2e-2, atol=2e-2)


def test_graph_breaks(check):
    def f(a):
        b = a * 2
        torch._dynamo.graph_break()
        c = b.sum()
        if c.item() > 0:
            return b + 1
        return b - 1

    check(f, torch.ones(3), calls=2)
    check(f, -torch.ones(3))


def test_recompiles(check):
    f = lambda a, flag: a * 2 if flag else a + 1
    for flag in (True, False):
        check(f, torch.randn(3), flag)
    for shape in ((3,), (4,), (5, 2)):
        check(lambda a: a.sin().sum(), torch.randn(shape))
    for dtype in (torch.float32, torch.float64):
        check(lambda a: a.cos(), torch.randn(3, dtype=dtype))


def test_grad_mode_and_inference_mode(check):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    f = lambda a: (a @ weight).relu()
    check(f, torch.randn(2, 4))
    with torch.no_grad():
        check(f, torch.randn(2, 4))
    with torch.inference_mode():
        check(f, torch.randn(2, 4))


def test_threads_share_a_compiled_function():
    f = torch.compile(lambda a: torch.softmax(a, -1) @ a.t(), backend="inrush")
    a = torch.randn(64, 64)
    wanted = torch.softmax(a, -1) @ a.t()
    f(a)
    failures = []

    def work():
        try:
            for _ in range(50):
                torch.testing.assert_close(f(a), wanted, rtol=1e-4, atol=1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures[0]


def test_compiled_functions_call_each_other():
    inner = torch.compile(lambda a: a.sin(), backend="inrush")
    outer = torch.compile(lambda a: inner(a) + inner(a * 2), backend="inrush")
    a = torch.randn(5)
    torch.testing.assert_close(outer(a), a.sin() + (a * 2).sin())


def test_optimiser_steps(check):
    params = [torch.randn(3, 4), torch.randn(5)]
    twins = [p.clone() for p in params]
    grads = [torch.randn_like(p) for p in params]

    def run(params, compiled):
        params = [torch.nn.Parameter(p) for p in params]
        optimiser = torch.optim.AdamW(params, lr=0.1, foreach=True)
        step = torch.compile(optimiser.step, backend="inrush") if compiled else optimiser.step
        for _ in range(3):
            for p, g in zip(params, grads):
                p.grad = g.clone()
            step()
        return [p.detach() for p in params]

    torch.testing.assert_close(run(params, True), run(twins, False), rtol=1e-4, atol=1e-5)


def test_lists_of_tensors_share_launches():
    """An optimiser's step over many tensors of mixed sizes is a few launches, each over a table of tensors."""
    shapes = [(64, 64), (64,), (128, 64), (7,), (), (33, 5)] * 25
    generator = torch.Generator().manual_seed(0)
    draw = lambda: [torch.randn(s, generator=generator) for s in shapes]
    params, grads = draw(), draw()

    def run(compiled):
        own = [torch.nn.Parameter(p.clone()) for p in params]
        optimiser = torch.optim.AdamW(own, lr=0.1, foreach=True)
        step = torch.compile(optimiser.step, backend="inrush", options={"cache": False}) if compiled else optimiser.step
        for _ in range(2):
            for p, g in zip(own, grads):
                p.grad = g.clone()
            step()
        return [p.detach() for p in own]

    torch.testing.assert_close(run(True), run(False), rtol=1e-4, atol=1e-5)
    graph = inrush.last_compile().graphs[0]
    assert not graph.calls
    assert len(graph.kernels) <= 8, graph.kernels

    f = lambda a, b: torch._foreach_add(torch._foreach_mul(a, b), 1.0)
    torch.testing.assert_close(torch.compile(f, backend="inrush", options={"cache": False})(params, grads), f(params, grads))
    assert len(inrush.last_compile().graphs[0].kernels) <= 2


def test_tensor_subclasses():
    from torch.testing._internal.two_tensor import TwoTensor

    f = lambda a: a * 2 + 1
    a = TwoTensor(torch.randn(3), torch.randn(3))
    got = torch.compile(f, backend="inrush")(a)
    torch.testing.assert_close(got.a, f(a).a)
    torch.testing.assert_close(got.b, f(a).b)


@pytest.mark.parametrize(
    "f",
    [
        lambda a: torch.fft.fft(a).abs(),
        lambda a: torch.linalg.svdvals(a) * 2,
        lambda a: torch.view_as_real(torch.complex(a, a) * 2j),
        lambda a: a.to_sparse().to_dense() + 1,
        lambda a: torch.unique(a.int())[0] + a,
    ],
    ids=["fft", "svd", "complex", "sparse", "unique"],
)
def test_operators_without_a_lowering_are_called(check, f):
    check(f, torch.randn(4, 4))


def test_what_eager_rejects_is_rejected():
    f = torch.compile(lambda a, b: a @ b, backend="inrush")
    with pytest.raises(RuntimeError):
        f(torch.ones(2, 3), torch.ones(2, 3))
    torch.testing.assert_close(f(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))


def test_an_index_out_of_range_is_an_error():
    f = torch.compile(lambda a, i: a[i] + 1, backend="inrush")
    a = torch.randn(4)
    torch.testing.assert_close(f(a, torch.tensor([0, -1])), a[[0, -1]] + 1)
    with pytest.raises((IndexError, RuntimeError)):
        f(a, torch.tensor([0, 9]))
    torch.testing.assert_close(f(a, torch.tensor([1, 2])), a[[1, 2]] + 1)


def test_attention_in_double_precision_keeps_it():
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, n, 16, dtype=torch.float64, requires_grad=True) for n in (64, 4, 4)]
    attention = torch.nn.functional.scaled_dot_product_attention
    wants = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    got = torch.autograd.grad(torch.compile(attention, backend="inrush")(*inputs).square().sum(), inputs)
    torch.testing.assert_close(got, wants, rtol=1e-12, atol=1e-12)
