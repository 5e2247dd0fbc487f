"""Tensors whose memory is not all that they are: conjugated or negated where they are read, with tangents, without memory."""

import copy

import pytest
import torch
from torch.autograd import forward_ad

import inrush


def compiled(f, **options):
    return torch.compile(f, backend="inrush", options={"strict": True}, **options)


def complex_numbers(*size):
    return torch.randn(*size, dtype=torch.complex64)


def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value.resolve_conj().resolve_neg() if isinstance(value, torch.Tensor) else value


def same(f, make, training=False):
    """Results and arguments of a function whose arguments are made anew for each call: copies would have no flags."""
    torch.manual_seed(1)
    theirs = make()
    torch.manual_seed(1)
    ours = make()
    wanted, got = f(*theirs), compiled(f)(*ours)
    torch.testing.assert_close(plain([got, ours]), plain([wanted, theirs]))
    if training:
        for out in (wanted, got):
            (out.abs() if out.is_complex() else out).square().sum().backward()
        torch.testing.assert_close(plain([t.grad for t in ours]), plain([t.grad for t in theirs]))
    return inrush.last_compile()


def negated():
    return (torch._neg_view(torch.randn(3, 4)),)


def conjugated():
    return (complex_numbers(3, 4).conj(),)


def one():
    return (complex_numbers(3, 4),)


FLAGS = {
    "imaginary of a conjugate": (lambda z: z.conj().imag + 0, one),
    "of an adjoint": (lambda z: z.mH.imag * 2, one),
    "as it is": (lambda z: (z.mH.imag, z.conj(), z.conj().imag[1:]), one),
    "argument": (lambda x: (x + 1, x.clone(), x, x[1:], x[1:] * 2), negated),
    "argument, conjugated": (lambda z: (z.imag + 1, z.imag, z + 1, z, torch.view_as_real(z.resolve_conj()) * 2), conjugated),
    "argument, its imaginary part": (lambda x: x * 2, lambda: (complex_numbers(5).conj().imag,)),
    "argument, expanded": (lambda x: (x * 2 + 1).sum(0), lambda: (complex_numbers(3, 1).conj().imag[:1].expand(3, 4),)),
    "joined": (lambda z: torch.stack([z.conj().imag, z.real]), one),
    "reduced": (lambda z: z.conj().imag.sum(0) + torch.cat([z.imag, z.mH.mT.imag]).sum(0), one),
    "multiplied": (lambda z: z.conj().imag @ torch.ones(4, 2), one),
    "between segments": (lambda z: torch.special.zeta(z.real.abs() + 2, z.conj().imag.abs() + 1) + z.conj().imag, one),
    "to an operator that is called": (lambda x: torch.special.zeta(torch._neg_view(x) + 3, torch._neg_view(x)), lambda: (-torch.rand(4) - 1,)),
    "by name": (lambda x: torch._neg_view(x) + torch._neg_view(x * 2)[1:].sum(), lambda: (torch.randn(3, 4),)),
    "told": (lambda z: (z.is_conj(), z.imag.is_neg(), z.imag * 2), conjugated),
}


@pytest.mark.parametrize("what", FLAGS)
def test_signs_that_are_applied_when_read(what):
    same(*FLAGS[what])


def written(z):
    v = z.conj().imag
    v.add_(1)
    return v, z * 1


def written_twice(x):
    x.mul_(2)
    x[1:].add_(1)
    return x + 1


WRITES = {
    "conjugate inside": (written, one),
    "negated argument": (written_twice, negated),
    "a negated argument's part": (lambda x: x[1:].exp_(), negated),
    "conjugated argument": (lambda z: z.imag.mul_(2), conjugated),
    "negated inside": (lambda x: torch._neg_view(x).mul_(3).add_(1), lambda: (torch.randn(3, 4),)),
}


@pytest.mark.parametrize("what", WRITES)
def test_writes_where_signs_are_applied_when_read(what):
    same(*WRITES[what])


@pytest.mark.parametrize("make", [one, conjugated], ids=["plain", "conjugated"])
def test_signs_in_training(make):
    same(lambda z: (z * 2).conj().imag + z.mH.mT.imag, lambda: (make()[0].requires_grad_(),), training=True)
    same(lambda x: x * x, lambda: (negated()[0].requires_grad_(),), training=True)


def test_gradients_with_signs():
    def run(f):
        x = torch.linspace(0, 1, 4).requires_grad_()
        y = f(x)
        y.backward(torch._neg_view(torch.arange(4.0)))
        return x.grad

    f = lambda x: x.sin() * 2  # noqa: E731
    call = compiled(f)
    # The first backward pass goes another way than later ones.
    for _ in range(3):
        torch.testing.assert_close(run(call), run(f))


def duals(f, primals, tangents):
    """Primals and tangents of what a function gives for dual numbers."""
    with forward_ad.dual_level():
        out = f(*[forward_ad.make_dual(p, t) for p, t in zip(primals, tangents)])
        parts = [forward_ad.unpack_dual(o) for o in (out if isinstance(out, tuple) else (out,))]
        return [(p.primal.detach().clone(), p.tangent if p.tangent is None else p.tangent.clone()) for p in parts]


def product(x, y):
    x.mul_(2)
    return x.sin() * y, y + 1


@pytest.mark.parametrize("before", [False, True], ids=["first", "later"])
def test_tangents_from_outside(before):
    primals, tangents = [torch.randn(4), torch.randn(4)], [torch.randn(4), torch.randn(4)]
    call = compiled(product)
    plainly = [call(*copy.deepcopy(primals)) for _ in range(before)]
    got = duals(call, copy.deepcopy(primals), copy.deepcopy(tangents))
    torch.testing.assert_close(got, duals(product, copy.deepcopy(primals), copy.deepcopy(tangents)))
    assert "tangents" in inrush.last_compile().fallbacks[0]
    # Outside of the level the compiled code is there as before.
    for out in (*plainly, call(*copy.deepcopy(primals))):
        torch.testing.assert_close(out, product(*copy.deepcopy(primals)))


def test_tangents_of_leaves_and_parameters():
    layer = torch.nn.Linear(4, 3)
    x, t = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    torch.testing.assert_close(duals(compiled(layer), [x], [t]), duals(layer, [x], [t]))


def test_tangents_inside_and_by_functions():
    def inside(x, t):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, t).sin()).tangent * 2

    x, t = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(compiled(inside)(x, t), x.cos() * t * 2)
    call = compiled(torch.sin)
    call(x)
    torch.testing.assert_close(torch.func.jvp(call, (x,), (t,))[1], x.cos() * t)
    torch.testing.assert_close(torch.func.jacfwd(call)(x).diagonal(), x.cos())
    torch.testing.assert_close(torch.vmap(call)(torch.stack([x, t])), torch.stack([x, t]).sin())
    torch.testing.assert_close(torch.func.grad(lambda x: call(x).sum())(x), x.cos())
    torch.testing.assert_close(compiled(lambda x, t: torch.func.jvp(torch.sin, (x,), (t,))[1])(x, t), x.cos() * t)


def test_tangents_of_gradients_are_refused():
    call = compiled(lambda x: x.sin() * 2)
    # The first backward pass goes another way than later ones.
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        y = call(x)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="tangent"):
            torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones(4), torch.ones(4)))
        y = call(x)
        torch.testing.assert_close(torch.autograd.grad(y, x, torch.ones(4))[0], x.cos().detach() * 2)


def test_tangents_for_packages_are_refused(tmp_path):
    class Sine(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    path = str(tmp_path / "sine.inrush")
    inrush.aot_compile(torch.export.export(Sine(), (torch.ones(4),)), path)
    load = inrush.load(path)
    x = torch.randn(4)
    with forward_ad.dual_level():
        torch.testing.assert_close(load(x), x.sin())
        with pytest.raises(inrush.InputError, match="tangent"):
            load(forward_ad.make_dual(x, x))
    torch.testing.assert_close(load(torch._neg_view(x)), (-x).sin())


def test_zeros_without_memory():
    zeros = torch._efficientzerotensor
    f = lambda x, y: (x * 2 + y, x.exp())  # noqa: E731
    call = compiled(f)
    y = torch.randn(4)
    for x in (torch.randn(4), zeros((4,))):
        torch.testing.assert_close(call(x, y), f(x, y))
    assert "without memory" in inrush.last_compile().fallbacks[0]
    torch.testing.assert_close(compiled(lambda x: zeros((4,)).exp() + x)(y), y + 1)


SPECIAL = {
    "sparse": lambda: torch.eye(4).to_sparse(),
    "compressed rows": lambda: torch.eye(4).to_sparse_csr(),
    "MKL-DNN": lambda: torch.eye(4).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
    "on no device": lambda: torch.ones(4, device="meta"),
    "lazily cloned": lambda: torch._lazy_clone(torch.ones(4)),
    "expanded": lambda: torch.ones(4, 1).expand(4, 3),
    "overlapping": lambda: torch.arange(9.0).as_strided((4, 3), (1, 2), 1),
    "empty": lambda: torch.ones(0, 3),
    "a subclass": lambda: torch.ones(4).as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("what", SPECIAL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_special_tensors(what):
    def dense(t):
        if t.device.type == "meta":
            return torch.zeros(t.shape, dtype=t.dtype).as_strided(t.shape, t.stride())
        if t.is_quantized:
            return t.dequantize()
        return torch.nested.to_padded_tensor(t, 0.0) if t.is_nested else t.to_dense()

    def f(x):
        return x + x if x.is_quantized is False and x.layout != torch.sparse_csr else x.dequantize() if x.is_quantized else x.to_dense() * 2

    x = SPECIAL[what]()
    call = compiled(f)
    for _ in range(2):
        got, wanted = call(x), f(x)
        assert type(got) is type(wanted) and got.layout == wanted.layout
        torch.testing.assert_close(dense(got), dense(wanted))


def test_inference_tensors_are_not_written():
    with torch.inference_mode():
        x = torch.ones(4)
    call = compiled(lambda x: x.add_(1))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        call(x)
    torch.testing.assert_close(compiled(lambda x: x + 1)(x), x + 1)
    with torch.inference_mode():
        call(x)
    torch.testing.assert_close(call(torch.ones(4)), torch.full((4,), 2.0))
