"""What eager rejects, compiled code rejects with the same kind of exception, and goes on to work."""

import os
import re
from math import inf, nan

import pytest
import torch
from torch.nn import functional as F

ones = torch.ones


def ints(*values):
    return torch.tensor(values)


def floats(*values):
    return torch.tensor(values)


# Name: the function, its arguments.
SHAPES = {
    "matmul": (lambda a, b: a @ b, ones(2, 3), ones(2, 3)),
    "broadcast": (lambda a, b: a + b, ones(2, 3), ones(4, 3)),
    "ranks": (torch.bmm, ones(2, 3), ones(3, 2)),
    "view": (lambda a: a.view(5), ones(2, 3)),
    "view of strides": (lambda a: a.t().view(-1), ones(2, 3)),
    "reshape": (lambda a: a.reshape(4, -1), ones(2, 3)),
    "cat": (lambda a, b: torch.cat([a, b]), ones(2, 3), ones(2, 4)),
    "cat of nothing": (lambda a: torch.cat([]), ones(2)),
    "stack": (lambda a, b: torch.stack([a, b]), ones(2, 3), ones(2, 4)),
    "expand": (lambda a: a.expand(4, 3), ones(2, 3)),
    "dimension": (lambda a: a.sum(3), ones(2, 3)),
    "dimension of softmax": (lambda a: a.softmax(5), ones(2, 3)),
    "permute": (lambda a: a.permute(0, 0), ones(2, 3)),
    "split": (lambda a: a.split([1, 3]), ones(3, 2)),
    "unfold": (lambda a: a.unfold(0, 5, 1), ones(3, 2)),
    "channels": (F.conv2d, ones(1, 3, 5, 5), ones(4, 2, 3, 3)),
    "kernel too large": (F.conv2d, ones(1, 2, 2, 2), ones(4, 2, 3, 3)),
    "layer norm": (lambda a: F.layer_norm(a, (4,)), ones(2, 3)),
    "batch norm of one value": (lambda a, m: F.batch_norm(a, m, m, training=True), ones(1, 3), ones(3)),
    "pool": (lambda a: F.max_pool2d(a, 8), ones(1, 1, 4, 4)),
    "attention": (lambda a, b: F.scaled_dot_product_attention(a, b, b), ones(1, 2, 3, 4), ones(1, 2, 3, 5)),
    "targets": (F.cross_entropy, ones(3, 4), ints(0, 1)),
    "in place": (lambda a, b: a.mul(1).add_(b), ones(3), ones(2, 3)),
    "too many indices": (lambda a: a[0, 0, 0], ones(2, 3)),
    "constant index": (lambda a: a[7], ones(2, 3)),
    "mask": (lambda a, m: a[m], ones(2, 3), ones(3, 3) > 0),
    "item of many": (lambda a: a.item(), ones(2)),
    "size below zero": (lambda a: torch.zeros(-1) + a, ones(1)),
    "expand below zero": (lambda a: a.expand(-3, 2), ones(1, 2)),
    "repeat below zero": (lambda a: a.repeat(-1), ones(2)),
    "pad below zero": (lambda a: F.pad(a, (-3, -3)), ones(4)),
    "greatest of none": (lambda a: tuple(a.max(0)), ones(0, 0)),
    "least of none": (lambda a: tuple(a.min(1)), ones(5, 0)),
    "steps below zero": (lambda a: torch.linspace(0, 1, -2) + a, ones(1)),
    "range of step zero": (lambda a: torch.arange(0, 5, 0) + a, ones(1)),
    "topk": (lambda a: a.topk(9), ones(4)),
    "probability": (lambda a: F.dropout(a, 2.0), ones(4)),
    "maximum of nothing": (lambda a: a.max(), ones(0)),
    "dimensions of what is added": (lambda a, b: a[0].index_add(0, ints(0), b), ones(2), ones(1)),
    "side": (lambda a: torch.searchsorted(a, a, side="middle"), ones(3)),
}
DTYPES = {
    "matmul": (lambda a, b: a @ b, ones(2, 2), ones(2, 2).double()),
    "linear": (F.linear, ones(2, 2), ones(2, 2).bfloat16()),
    "and of floats": (lambda a: a & a, ones(2)),
    "index of floats": (lambda a, i: a[i], ones(2), ones(2)),
    "mean of integers": (lambda a: a.mean(), ints(1, 2)),
    "softmax of integers": (lambda a: a.softmax(0), ints(1, 2)),
    "log softmax of booleans": (lambda a: F.log_softmax(a, 0), ones(2) > 0),
    "minus booleans": (lambda a: -a, ones(2) > 0),
    "rectifier of booleans": (F.relu, ones(2) > 0),
    "gelu of integers": (F.gelu, ints(1, 2)),
    "result": (lambda a, b: a.mul(1).add_(b), ints(1, 2), ones(2)),
    "condition": (lambda a: torch.where(a, a, a), ones(2)),
    "convolution": (F.conv2d, ones(1, 2, 5, 5), ones(4, 2, 3, 3).double()),
    "embedding": (lambda a, i: F.embedding(i, a), ones(2, 2), ones(2)),
    "order of complex numbers": (lambda a: a < a, ones(2, dtype=torch.complex64)),
    "error function of complex numbers": (torch.erf, ones(2, dtype=torch.complex64)),
    "scatter": (lambda a, i, b: a.scatter(0, i, b), ones(2), ints(0, 1), ints(1, 2)),
    "index_add": (lambda a, i, b: a.index_add(0, i, b), ones(2), ints(0, 1), ints(1, 2)),
    "index_copy": (lambda a, i, b: a.index_copy(0, i, b), ones(2), ints(0, 1), ints(1, 2)),
    "index_put": (lambda a, i, b: a.index_put((i,), b), ones(2), ints(0, 1), ints(1, 2)),
    "random integers": (torch.rand_like, ints(1, 2)),
    # PyTorch has no kernels of these.
    "floor of booleans": (torch.floor, ones(2) > 0),
    "hardswish of integers": (F.hardswish, ints(1, 2)),
    "mean of windows of integers": (lambda a: F.adaptive_avg_pool2d(a, 2), ints(*range(16)).reshape(1, 4, 4)),
    "greatest of windows of integers": (lambda a: F.adaptive_max_pool1d(a.argmax(1), 2), ones(1, 3, 6)),
    "product of booleans": (lambda a: a @ a, ones(2, 2) > 0),
    "distance of halves": (torch.cdist, ones(2, 2).half(), ones(2, 2).half()),
    "rounding of integers": (lambda a: a.round(decimals=2), ints(1, 2)),
    "samples of integers": (lambda a, g: F.grid_sample(a, g), ints(1, 2, 3, 4).reshape(1, 1, 2, 2), ints(0, 0).reshape(1, 1, 1, 2)),
}
DEVICES = {
    "meta": (lambda a, b: a + b, ones(2), ones(2, device="meta")),
    "no such device": (lambda a: a.to("xpu"), ones(2)),
}
# What only the values tell: these run.
VALUES = {
    "index": (lambda a, i: a[i] + 1, ones(4), ints(0, 9)),
    "index below": (lambda a, i: a[i] + 1, ones(4), ints(0, -9)),
    "gather": (lambda a, i: a.gather(0, i), ones(4), ints(0, 9)),
    "gather below": (lambda a, i: a.gather(0, i), ones(4), ints(0, -1)),
    "index_select": (lambda a, i: a.index_select(0, i), ones(4), ints(0, 9)),
    "embedding": (lambda a, i: F.embedding(i, a), ones(4, 2), ints(0, 9)),
    "embedding_bag": (lambda a, i: F.embedding_bag(i, a, ints(0)), ones(4, 2), ints(0, 9)),
    "index_put": (lambda a, i: a.index_put((i,), ones(1)), ones(4), ints(0, 9)),
    "index_add": (lambda a, i: a.index_add(0, i, ones(2)), ones(4), ints(0, 9)),
    "index_copy": (lambda a, i: a.index_copy(0, i, ones(2)), ones(4), ints(0, 9)),
    "index_fill": (lambda a, i: a.index_fill(0, i, 2.0), ones(4), ints(0, 9)),
    "scatter": (lambda a, i: a.scatter(0, i, 2.0), ones(4), ints(0, 9)),
    "scatter_add": (lambda a, i: a.scatter_add(0, i, a), ones(4), ints(0, 9, 1, 1)),
    "scatter_reduce": (lambda a, i: a.scatter_reduce(0, i, a, "amax"), ones(4), ints(0, 9, 1, 1)),
    "take": (lambda a, i: a.take(i), ones(4), ints(0, 9)),
    "put": (lambda a, i: torch.put(a, i, ones(2)), ones(4), ints(0, 9)),
    "index of one row": (lambda a, i: a[i] + 1, ones(1, 4), ints(0, 1)),
    "index of a repeated row": (lambda a, i: a.expand(5, 4)[i].sum(1), ones(1, 4), ints(0, 5)),
    "gather of one": (lambda a, i: a.gather(0, i), ones(1), ints(1)),
    "index_select of one": (lambda a, i: a.index_select(0, i), ones(1), ints(1)),
    "embedding of one": (lambda a, i: F.embedding(i, a), ones(1, 2), ints(0, 1)),
    "index_put of one": (lambda a, i: a.index_put((i,), ones(1), accumulate=True), ones(1), ints(-2)),
    "index_add of one": (lambda a, i: a.index_add(0, i, ones(1)), ones(1), ints(1)),
    "scatter of one": (lambda a, i: a.scatter(0, i, 2.0), ones(1), ints(1)),
    "scatter_reduce of one": (lambda a, i: a.scatter_reduce(0, i, a, "mean"), ones(1), ints(1)),
    "take of one": (lambda a, i: a.take(i), ones(()), ints(1)),
    "put of one": (lambda a, i: torch.put(a, i, ones(1), True), ones(()), ints(1)),
    "target of one class": (F.cross_entropy, ones(2, 1), ints(0, 1)),
    "targets": (F.cross_entropy, ones(2, 3), ints(0, 9)),
    "quotient": (lambda a, b: a // b, ints(1, 2), ints(0, 1)),
    "remainder": (lambda a, b: a % b, ints(1, 2), ints(0, 1)),
    "power": (lambda a: a**-1, ints(1, 2)),
    "repeats": (lambda a, i: a.repeat_interleave(i), ones(2), ints(1, -1)),
    "counts": (lambda i: i.bincount(), ints(-1, 2)),
    "bags": (lambda a, i: F.embedding_bag(ints(0, 1, 2), a, i), ones(4, 2), ints(0, 5)),
    "bags that go back": (lambda a, i: F.embedding_bag(ints(0, 1, 2), a, i), ones(4, 2), ints(0, 2, 1)),
    "probabilities": (torch.bernoulli, floats(0.5, 1.5)),
    "probabilities that are no numbers": (torch.bernoulli, floats(0.5, float("nan"))),
    "probabilities in place": (lambda a, p: a.clone().bernoulli_(p), ones(2), floats(0.5, -0.5)),
    "cross entropy": (F.binary_cross_entropy, floats(0.5, 1.5), floats(0.0, 1.0)),
    "cross entropy of no number": (F.binary_cross_entropy, floats(0.5, float("nan")), floats(0.0, 1.0)),
    "binary targets": (F.binary_cross_entropy, floats(0.5, 0.5), floats(0.0, 2.0)),
    "weights": (lambda p: torch.multinomial(p, 1), floats(-1.0, 2.0)),
    "weights of nothing": (lambda p: torch.multinomial(p, 1), floats(0.0, 0.0)),
    "weights without end": (lambda p: torch.multinomial(p, 3, replacement=True), floats(1.0, float("inf"))),
    "deviations": (lambda s: torch.normal(0.0, s), floats(1.0, -1.0)),
    "inverse": (torch.linalg.inv, torch.zeros(3, 3)),
    "cholesky": (torch.linalg.cholesky, -torch.eye(3)),
    "assertion": (lambda a: (torch._assert_async(a.sum() > 5), a + 1)[1], ones(3)),
}
ARGUMENTS = {
    "too few": (lambda a, b: a + b, ones(2)),
    "too many": (lambda a: a + 1, ones(2), ones(2)),
    "gradient of what is written": (lambda a: a.add_(1), ones(2, requires_grad=True)),
}
CASES = {
    f"{kind}-{name}": case
    for kind, cases in dict(shape=SHAPES, dtype=DTYPES, device=DEVICES, value=VALUES, argument=ARGUMENTS).items()
    for name, case in cases.items()
}


def raised(f, args):
    try:
        f(*args)
    except Exception as error:
        return type(error)
    return None


def same_kind(f, args, **options):
    """The exception is of eager's type. Where Dynamo's own tracing raises, it is what any other backend gives."""
    wanted = raised(f, args)
    assert wanted is not None, "eager accepts it"
    got = raised(torch.compile(f, backend="inrush", **options), args)
    assert got is not None, f"eager raises {wanted.__name__}"
    if not issubclass(got, wanted):
        torch._dynamo.reset()
        assert got is raised(torch.compile(f, backend="aot_eager", **options), args), f"{got.__name__}, eager raises {wanted.__name__}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}], ids=["plain", "fullgraph", "dynamic"])
def test_what_eager_rejects(case, options):
    f, *args = case
    same_kind(f, args, **options)
    a = ones(3)
    torch.testing.assert_close(torch.compile(lambda a: a.sin() + 1, backend="inrush")(a), a.sin() + 1)


TABLE = os.path.join(os.path.dirname(__file__), "../../crates/inrush-aten/tests/refused.txt")
DTYPE = {"f16": torch.float16, "f32": torch.float32, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}


def filled(dtype, sizes, low=-2, high=2):
    x = torch.linspace(low, high, max(1, torch.Size(sizes).numel()))[: torch.Size(sizes).numel()].reshape(sizes)
    return (x if dtype[0] == "f" else x.round()).to(DTYPE[dtype])


def table():
    """The calls of the table: `f32[2,3]{0:4}` is a tensor of values from 0 to 4."""
    for line in open(TABLE):
        if not line.startswith("#"):
            name, call = line.strip().split(" ", 1)
            call = re.sub(r"\b([fiu]\d+|bool)\[([\d,]*)\]", r"filled('\1', [\2])", call)
            call = re.sub(r"\)\{([^:]*):([^}]*)\}", r", \1, \2)", call)
            call = re.sub(r"=([fiu]\d+|bool)\b", r"=DTYPE['\1']", call)
            _, base, overload = name.split(".")
            operator = getattr(getattr(torch.ops.aten, base), overload)
            yield line, eval("lambda: operator" + call, {**globals(), "operator": operator, "true": True, "false": False, "none": None})


def test_eager_refuses_the_table():
    accepted = [line for line, call in table() if raised(call, ()) is None]
    assert not accepted, "".join(accepted)


ARGUMENTS_OUT_OF_RANGE = {
    "output padding": lambda x: F.conv_transpose2d(x, ones(2, 3, 2, 2), stride=2, output_padding=2),
    "divisor": lambda x: F.avg_pool3d(x, 2, divisor_override=0),
    "padding": lambda x: F.unfold(x, 2, padding=-1),
    "beta": lambda x: F.smooth_l1_loss(x, x * 2, beta=nan),
    "dimensions": lambda x: torch.logsumexp(x, ()),
    "dimension of a norm": lambda x: torch.ops.aten._weight_norm_interface(x, ones(1, 2, 1, 1), 1)[0],
}


@pytest.mark.parametrize("f", ARGUMENTS_OUT_OF_RANGE.values(), ids=ARGUMENTS_OUT_OF_RANGE)
def test_arguments_out_of_range(f):
    same_kind(f, (ones(1, 2, 4, 4),))


FOREACH = {
    "lengths": (lambda a: torch._foreach_add([a, a], [a]), ones(2)),
    "lengths of numbers": (lambda a: torch._foreach_mul([a, a], [1.0, 2.0, 3.0]), ones(2)),
    "nothing": (lambda a: (torch._foreach_add([], []), a + 1), ones(2)),
    "shapes": (lambda a, b: torch._foreach_add([a], [b]), ones(2), ones(3)),
    "alpha": (lambda a: torch._foreach_add([a], [a], alpha=1.5), ints(2)),
    "booleans": (lambda a: torch._foreach_sub([a], [a]), ones(2) > 0),
    "power": (lambda a: torch._foreach_pow([a], -1), ints(2)),
    "lerp": (lambda a: torch._foreach_lerp([a], [a, a], 0.5), ones(2)),
    "addcmul": (lambda a: torch._foreach_addcmul([a], [a, a], [a], 1.0), ones(2)),
    "norm": (lambda a: torch._foreach_norm([a]), ints(2)),
    "copy": (lambda a, b: torch._foreach_copy_([a.clone()], [b]), ones(2), ones(3)),
    "result": (lambda a, b: torch._foreach_add_([a.clone()], [b]), ints(2), ones(1)),
}
MORE_VALUES = {
    "quantile": (lambda a, q: a.quantile(q), ones(4), floats(0.5, 1.5)),
    "quantile that is no number": (lambda a, q: a.quantile(q), ones(4), floats(nan)),
    "one_hot": (lambda i: F.one_hot(i, 3), ints(3, 1)),
    "one_hot below": (lambda i: F.one_hot(i, 3), ints(-1, 1)),
    "sorter": (lambda a, s: torch.searchsorted(a, a, sorter=s), floats(1.0, 2.0, 3.0), ints(0, 1, 5)),
    "masked_scatter": (lambda a: a.masked_scatter(a > 0, ones(1)), ones(4)),
    "unpooling": (lambda a, i: F.max_unpool1d(a, i, 2), ones(1, 1, 2), ints(0, 9).reshape(1, 1, 2)),
    "segments": (lambda a, n: torch.segment_reduce(a, "sum", lengths=n), ones(4), ints(1, 2)),
    "targets of pixels": (F.nll_loss, ones(1, 3, 1, 2), ints(0, -3).reshape(1, 1, 2)),
    "smoothed targets": (lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1), ones(2, 3), ints(0, 3)),
    "margins": (F.multi_margin_loss, ones(2, 3), ints(0, 3)),
    "samples": (lambda p: torch.multinomial(p, 1), floats(1.0, nan)),
    "rates": (torch.poisson, floats(1.0, -1.0)),
    "histogram": (lambda a: torch.histc(a, 4), floats(nan, 1.0)),
    "eigenvalues": (torch.linalg.eigvalsh, torch.full((3, 3), nan)),
    "weights of a covariance": (lambda a, w: torch.cov(a, aweights=w), ones(2, 3), floats(-1.0, 1.0, 1.0)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cases", [FOREACH, MORE_VALUES], ids=["foreach", "values"])
def test_what_eager_rejects_at_run_time(cases):
    for f, *args in cases.values():
        same_kind(f, args)


@pytest.mark.parametrize(
    "name, operator",
    [
        ("probabilities", "aten.bernoulli.default"),
        ("cross entropy", "aten.binary_cross_entropy.default"),
        ("weights", "aten.multinomial.default"),
        ("weights of nothing", "aten.multinomial.default"),
        ("deviations", "aten.normal.float_Tensor"),
        ("targets", "aten.nll_loss_forward.default"),
        ("take", "aten.take.default"),
        ("put", "aten.put.default"),
        ("embedding_bag", "aten._embedding_bag_forward_only.default"),
    ],
)
def test_a_refused_value_names_the_operator(name, operator):
    """What was asked for and where, not what it is made of."""
    f, *args = VALUES[name]
    with pytest.raises((RuntimeError, IndexError), match=rf"node `\w+` \({operator}\).*\n.*test_rejected.py:\d+ in "):
        torch.compile(lambda *args: f(*args), backend="inrush", options={"strict": True})(*args)


def gradient(of):
    def f(a, i):
        of(a * 2, i).sum().backward()

    return f


def test_indices_are_checked_before_gradients():
    """In training the forward graph raises, once and again, and then both graphs still work."""
    for of in (lambda a, i: a[i], lambda a, i: F.embedding(i, a), lambda a, i: F.cross_entropy(a, i)):
        compiled = torch.compile(of, backend="inrush", options={"strict": True})
        a, good, bad = torch.randn(2, 4, requires_grad=True), ints(0, 1), ints(0, 9)
        for i in (good, bad, bad, good):
            a.grad = None
            wanted = raised(gradient(of), (a, i))
            eager, a.grad = a.grad, None
            got = raised(gradient(compiled), (a, i))
            assert (got is None) == (wanted is None) and (got is None or issubclass(got, wanted))
            torch.testing.assert_close(a.grad, eager)


class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.clone()

    @staticmethod
    def backward(ctx, g):
        return g[:, :1]


def test_a_backward_pass_of_the_wrong_shape():
    """What a backward formula gives must fit: eager raises in the backward call, compiled code at the latest there."""

    def run(f):
        a = ones(2, 3, requires_grad=True)
        f(a).sum().backward()

    f = lambda a: Picky.apply(a * 2)
    wanted = raised(run, (f,))
    assert wanted is not None and raised(run, (torch.compile(f, backend="inrush"),)) is not None


def test_gradients_of_the_wrong_shape():
    a = ones(3, requires_grad=True)
    f = torch.compile(lambda a: a.sin() * 2, backend="inrush", options={"strict": True})
    for _ in range(2):
        with pytest.raises(RuntimeError):
            f(a).backward(ones(4))
        with pytest.raises(RuntimeError):
            f(a).backward()
    f(a).backward(ones(3))
    torch.testing.assert_close(a.grad, 2 * ones(3).cos())


def test_a_second_backward_pass_over_freed_values():
    a = ones(3, requires_grad=True)
    out = torch.compile(lambda a: a.sin().exp(), backend="inrush", options={"strict": True})(a)
    out.sum().backward()
    with pytest.raises(RuntimeError):
        out.sum().backward()
