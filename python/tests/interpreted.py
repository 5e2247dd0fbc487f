"""Models compiled for a GPU, run on the CPU: kernels in Triton's interpreter, libraries by the CPU's functions.

Run by `test_gpu.py` in a process of its own, since Triton reads at its import whether it interprets. Prints a line of JSON
for each case: `{"name", "kernels", "libraries", "called", "failed"}`.
"""

import copy
import json
import os
import sys
import tempfile
import time

os.environ["TRITON_INTERPRET"] = "1"
os.environ["INRUSH_INTERPRET"] = "cuda:h100"

import torch
from torch import nn
from torch.nn import functional as F

import inrush
from conftest import same_layout, tensors
from test_models import MODELS


def pointwise(x, y):
    return torch.sigmoid(x * y) + x, x.t().contiguous()


def reductions(x, y):
    return torch.softmax(x, -1), x.var(0), (x * y).sum(), x.argmax(1)


def product(x, y):
    return (torch.softmax(x, -1) @ y.t()).relu() + 1, torch.addmm(x[:, 0], x, y.t(), alpha=2)


def views(x, y):
    return x.view(-1), x[2:] + 1, y.t(), (x @ y.t())[1:]


def sorting(x, y):
    return x.sort(-1)[0] + 1, y.topk(3)[1]


def data_dependent(x, y):
    return x[x[:, 0] > 0] * 2, y + 1


def in_place(x, y):
    x.add_(1)
    y[1:].mul_(2)
    return (x @ y.t()).sum()


def unaligned_in_place(x, y):
    x.flatten()[1:].add_(y.flatten()[1:])
    return y * 2


def numbers(x, y):
    return x * torch.arange(x.shape[1]) + 2, torch.ones(3)


def unaligned(x, y):
    return x.flatten()[1:] * 2 + y.flatten()[1:]


def dropout(x, y):
    return F.dropout(x, 0.5).ne(0).sum() >= 0


def masks(x, y):
    """Each attention makes its own mask out of the same condition."""
    keep = torch.ones(7, 7, dtype=torch.bool).tril()
    q, k = x.view(1, 1, 7, 18), y.view(1, 1, 7, 18)
    for _ in range(3):
        q = F.scaled_dot_product_attention(q, k, k, attn_mask=torch.where(keep, 0.0, -1e9))
    return q


def scalar_index(x, y):
    """A search in a table begins at the same place for each element, under a mask that differs."""
    places = torch.bucketize(x[:1], torch.tensor([-1.0, 0.0, 1.0]))
    return torch.stack([y.take(places.abs() % y.numel()), x[:1]], -1)


def minus_zero(x, y):
    """Signs of zeros that are constants show in quotients and sign bits."""
    nothing = torch.where(x > 0, -0.0, 0.0 * x.abs())
    return x / -0.0, x / -torch.zeros_like(x), torch.full_like(x, -0.0).signbit(), y / nothing, torch.copysign(y, torch.full_like(x, -0.0))


@torch.library.custom_op("inrush_tests::in_memory", mutates_args=())
def in_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements in the order that they lie in."""
    return x.as_strided((x.numel(),), (1,)).clone()


in_memory.register_fake(lambda x: x.new_empty(x.numel()))

FUNCTIONS = [minus_zero, scalar_index, pointwise, reductions, product, views, masks, sorting, data_dependent, in_place, numbers, unaligned, unaligned_in_place, dropout]


def transposed(x):
    return x.t().contiguous() + 1, x.t().sum(1), (x * 2).t().contiguous()


def complex_product(x, y):
    return torch.view_as_real((x + 1j * y) @ (x - 1j).t())


def compare(f, args, dynamic=None, **options):
    compiled = torch.compile(f, backend="inrush", options={"strict": True, "cache": False, **options}, dynamic=dynamic)
    for _ in range(2):
        theirs, ours = copy.deepcopy(args), copy.deepcopy(args)
        wanted, got = f(*theirs), compiled(*ours)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        same_layout(got, wanted)


def eight_bits(x):
    """Numbers of eight bits are eager's bit for bit, codes beyond the largest number too."""

    def f(x):
        kinds = (torch.float8_e4m3fn, torch.float8_e5m2)
        far, within = x * 30000, (x * 100).clamp(-448, 448)
        codes = [v.to(k) for v in (far, within) for k in kinds]
        return *codes, codes[2].t().float().contiguous(), codes[3].float().sum(1)

    got, wanted = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})(x), f(x)
    for g, w in zip(got[:4], wanted[:4], strict=True):
        assert torch.equal(g.view(torch.uint8), w.view(torch.uint8))
    torch.testing.assert_close(got[4:], wanted[4:])


def sorted_rows(dtype):
    """Values bit for bit, positions, ties and NaN are those of eager's stable sort."""
    few = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -1.5, 6e-8, -6e-8, 2.0])
    if not dtype.is_floating_point:
        few = torch.tensor([0, 1, 2, 3, 100, torch.iinfo(dtype).max, torch.iinfo(dtype).min])

    def f(x):
        first = x.sort(dim=1, stable=True)
        last = x.sort(dim=1, descending=True, stable=True)
        columns = x.sort(dim=0, descending=True, stable=True)
        rest = x.argsort(dim=1, stable=True), x.msort(), x.topk(20, largest=False)[0], x.topk(20)[0], x.kthvalue(7)[0], x.median(1)[0]
        return *first, *last, *columns, *rest, first[0] + x, last[1] * 2

    for sizes in ((3, 37), (20, 64)):
        x = few[torch.randint(len(few), sizes)].to(dtype)
        got, wanted = torch.compile(f, backend="inrush", options={"strict": True, "cache": False}, dynamic=False)(x), f(x)
        same_layout(got, wanted)
        for k, (g, w) in enumerate(zip(got, wanted, strict=True)):
            torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)
            # Zeros are equal: which of them comes first is a matter of stable sorts alone.
            if k < 6 and g.is_floating_point():
                assert torch.equal(g.signbit() & (g == 0), w.signbit() & (w == 0)), k


def near(f, sizes):
    """Calls take the program for the traced sizes, for near ones or for all: one that takes a wrong one leaves parts out."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="inrush", options={"strict": True, "cache": False}, dynamic=True)
    for size in sizes:
        args = torch.randn(size), torch.randn(size[1])
        got, wanted = compiled(*args), f(*args)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        same_layout(got, wanted)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def number_from_data(x):
    """The number is read when the operator that gives it is done, though nothing else reads it any more."""
    compare(lambda a, i: torch.narrow(a, 0, i, 3) * 2, (x, torch.tensor(2)))


def one_row(dtype):
    """Products of drawn sizes with one row, or one column: errors against float64 are at most those of eager, and a rounding."""
    draw = torch.Generator().manual_seed(7)
    size = lambda most: int(torch.randint(1, most, (), generator=draw))  # noqa: E731
    for k in range(12):
        n, length, room = 1 + size(70), 1 + size(700), size(9)
        x = torch.randn(1, length, generator=draw).to(dtype)
        # Rows of the weights may be further apart than they are long; what is between them is no number.
        whole = torch.full((n, length + room), torch.nan)
        whole[:, :length] = torch.randn(n, length, generator=draw)
        w, bias = whole.to(dtype)[:, :length], torch.randn(n, generator=draw).to(dtype)
        codes = torch.randint(-128, 128, (n, length), generator=draw, dtype=torch.int8)
        f, args = (
            (lambda x, w, b: F.linear(x, w, b).relu(), (x, w, bias)),
            (lambda x, w, b: F.linear(F.silu(x), w) * b, (x, w, bias)),
            (lambda x, w, b: (w @ x.t()).t() + b, (x, w, bias)),
            (lambda x, w, b: F.linear(x.view(1, 1, -1), w.to(x.dtype), b), (x, codes, bias)),
        )[k % 4]
        wide = f(*(a.double() if a.is_floating_point() else a for a in args))
        got = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})(*args)
        same_layout(got, f(*args))
        norm = wide.norm().item() + 1e-6
        error, slack = (got.double() - wide).norm().item(), (f(*args).double() - wide).norm().item()
        assert error <= 2 * slack + 2 * torch.finfo(dtype).eps * norm, (k, n, length, error / norm, slack / norm)
        assert not [op for g in inrush.last_compile().all_graphs() for op in g.libraries], (k, n, length)


def epilogues(x, w, b):
    """Products that take their bias and activation along."""
    rows = (x @ w).view(2, -1, b.shape[0])
    return F.relu(rows + b), F.relu(torch.addmm(b, x, w)), F.relu(b + x @ w)


def persistent_products(m, n, k, dtype, by_columns, dynamic):
    """Products of halves by kernels, operands by rows and the first few by columns, are near those in float64, gradients too."""
    f = lambda x, w, b, c: (F.gelu(torch.addmm(b, x, w)), torch.mm(x, w) * torch.sigmoid(c))  # noqa: E731
    args = [torch.randn(m, k), torch.randn(k, n) / 4, torch.randn(n), torch.randn(m, n)]
    args = [a.t().contiguous().t() if at < by_columns else a for at, a in enumerate(args)]
    ours = [a.to(dtype).requires_grad_() for a in args]
    exact = [a.detach().double().requires_grad_() for a in ours]
    got = torch.compile(f, backend="inrush", options={"strict": True, "cache": False, "products": "kernel"}, dynamic=dynamic)(*ours)
    wanted = f(*exact)
    sum(o.float().sin().sum() for o in got).backward()
    sum(o.sin().sum() for o in wanted).backward()
    far = 0.1 if dtype == torch.bfloat16 else 0.02
    for g, w in zip((*got, *(a.grad for a in ours)), (*wanted, *(a.grad for a in exact)), strict=True):
        assert g.dtype == dtype and (g.double() - w).norm() <= far * w.norm(), g


def large_epilogues():
    """Sums are rounded once, which eager does where it is asked for one product with a bias only."""
    args = torch.randn(2048, 3).half(), torch.randn(3, 2048).half(), torch.randn(2048).half()
    got = torch.compile(epilogues, backend="inrush", options={"strict": True, "cache": False})(*args)
    for ours, eager, exact in zip(got, epilogues(*args), epilogues(*(a.double() for a in args))):
        same_layout(ours, eager)
        assert (ours.double() - exact).norm() <= 1.01 * (eager.double() - exact).norm()


def short_products(dtype, m):
    """Products with sums of some hundred terms are kernels with what follows, ragged at all sides."""
    f = lambda x, w, b, c: (F.gelu(torch.addmm(b, x, w)), torch.mm(x, w).view(-1, 2, 264) * torch.sigmoid(c).view(-1, 2, 264))  # noqa: E731
    args = [a.to(dtype) for a in (torch.randn(m, 520), (torch.randn(264, 520) / 8).t(), torch.randn(264), torch.randn(m, 264))]
    with torch.no_grad():
        got = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})(*args)
    for ours, eager, exact in zip(got, f(*args), f(*(a.double() for a in args))):
        same_layout(ours, eager)
        assert (ours.double() - exact).norm() <= 1.01 * (eager.double() - exact).norm()


def training(model, x):
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="inrush", options={"strict": True, "cache": False})
    for m, f in ((twin, twin), (model, compiled)):
        sum(o.float().square().mean() for o in tensors(f(x))).backward()
    for (name, p), q in zip(model.named_parameters(), twin.named_parameters()):
        torch.testing.assert_close(p.grad, q[1].grad, rtol=1e-2, atol=1e-4, msg=lambda m: f"gradient of {name}: {m}")


def cases(row):
    x, y = torch.randn(7, 18), torch.randn(7, 18)
    for f in FUNCTIONS:
        yield f.__name__, lambda f=f: compare(f, (x.clone(), y.clone()))
    yield "unaligned input", lambda: compare(lambda a: a * 2, (torch.randn(65)[1:],))
    yield "unaligned and written", lambda: compare(lambda a: a.mul_(3).sum(), (torch.randn(65)[1:],))
    shared = torch.randn(68)[3:]
    yield "unaligned and expanded", lambda: compare(lambda a: torch.cat([a, a], -1).mean(0), (shared[:32].view(8, 4).expand(2, 8, 4),))
    yield "unaligned and overlapping", lambda: compare(lambda a: a.sum(1) + a[:, 0], (shared.unfold(0, 9, 4),))
    yield "a number from data", lambda: number_from_data(x)
    for pointers in ("block", "descriptor", "map"):
        yield f"{pointers} pointers", lambda p=pointers: compare(transposed, (torch.randn(40, 72),), pointers=p)
        yield f"{pointers} pointers, dynamic", lambda p=pointers: compare(transposed, (torch.randn(40, 72),), True, pointers=p)
    yield "eight bits", lambda: eight_bits(x)
    yield "eight bits without a type of Triton's", lambda: compare(lambda a: (a * 2).to(torch.float8_e4m3fnuz).float() + 1, (x,))
    yield "complex product", lambda: compare(complex_product, (x, y))
    yield "dynamic sizes", lambda: compare(product, (x, y), dynamic=True)
    # From 17 to 64 columns are near, then from 129 to 512.
    various = (96, 64), (32, 48), (33, 48), (32, 50), (17, 9), (16, 16), (96, 32), (40, 1030)
    odd = (5, 301), (7, 129), (3, 128), (9, 512), (4, 513), (2, 1), (1, 400)
    rows = lambda a, b: (a.softmax(1) * b, a.sort(1).values, F.layer_norm(a, a.shape[1:]))  # noqa: E731
    yield "near, odd", lambda: near(rows, odd)
    yield "near", lambda: near(lambda a, b: (a.softmax(1) * b, a.t().contiguous() * 2, (a * b).sum(0), a.cumsum(1)), various)
    for name in ("convolutional", "attention", "group_norm"):
        make, inputs = MODELS[name]
        yield f"{name}, eval", lambda make=make, inputs=inputs: compare(no_grad(make().eval()), (inputs(2),))
    yield "channels last", lambda: channels_last(Halves(), row)
    # The layout does not allow what the features are viewed as: they are laid out for it.
    flat = nn.Sequential(nn.Conv2d(3, 4, LARGE, padding=LARGE // 2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 24 * 24, 5))
    yield "channels last before a view", lambda: channels_last(flat, row)
    for many, picture in ((1, (19, 22)), (3, (9, 12))):
        yield f"small convolutions, {many}", lambda many=many, picture=picture: small_convolutions(many, picture)
    for dtype, slack in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        yield f"convolutions of near sizes, {dtype}", lambda dtype=dtype, slack=slack: near_convolutions(dtype, slack)
    plain = lambda: compare(no_grad(nn.Conv2d(3, 4, 3, bias=False)), (torch.randn(2, 3, 9, 8),))  # noqa: E731
    yield "a small convolution as the result", plain
    yield "a large convolution among small ones", large_among_small
    conv, picture = nn.Conv2d(3, 4, 1, bias=False), torch.randn(2, 3, 9, 8)
    yield "results of a small convolution that share memory", lambda: sharing(conv, picture)
    yield "a custom operator on a small convolution", lambda: compare(no_grad(lambda a: in_memory(conv(a)) + 1), (picture,))
    yield "memory of a small convolution", lambda: compare(no_grad(lambda a: (conv(a) + 1).as_strided((30,), (2,)) * 2), (picture,))
    yield "greatest few of one row", lambda: compare(lambda a: a.topk(4), (torch.randn(1, 300),))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.int64):
        yield f"sorted rows, {dtype}", lambda dtype=dtype: sorted_rows(dtype)
    yield "sorted rows of varying length", lambda: compare(lambda a: a.sort(dim=1, stable=True), (torch.randn(3, 50),), dynamic=True)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield f"products of one row, {dtype}", lambda dtype=dtype: one_row(dtype)
    yield "large products with activations", large_epilogues
    for case in ((200, 296, 72, torch.bfloat16, 0, False), (130, 264, 24, torch.float16, 1, True), (8, 8, 8, torch.bfloat16, 2, True)):
        yield f"persistent products, {case}", lambda case=case: persistent_products(*case)
    yield "short products, torch.bfloat16", lambda: short_products(torch.bfloat16, 130)
    yield "short products, torch.float16", lambda: short_products(torch.float16, 40)
    for name in ("convolutional", "attention"):
        make, inputs = MODELS[name]
        yield f"{name}, training", lambda make=make, inputs=inputs: training(make(), inputs(2))


# Windows so large that a convolution of a small picture is no product.
LARGE = 39


class Halves(nn.Module):
    """Convolutions that are laid out with channels last; one result is a picture."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, LARGE, padding=LARGE // 2, bias=False), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.relu(self.second(x) + x)
        return x, self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Small(nn.Module):
    """Convolutions of every kind that become products and sums; views that their layout does not allow."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.each = nn.Conv2d(8, 8, (3, 5), stride=(2, 1), padding=(1, 2), groups=8)
        self.apart = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False)
        self.point, self.strided = nn.Conv2d(8, 12, 1), nn.Conv2d(8, 12, 1, stride=2, bias=False)
        self.head = nn.Conv2d(12, 5, (2, 3), padding=(0, 1), dilation=(2, 1))

    def forward(self, x):
        x = F.hardswish(self.norm(self.stem(x)))
        y = F.relu(self.each(x))
        squeezed = F.adaptive_avg_pool2d(y, 1)
        y = self.point(self.apart(y) * torch.sigmoid(squeezed))
        y = y[..., : self.strided(x).shape[-1]] + self.strided(x)[:, :, : y.shape[2]]
        return y, self.head(y).view(x.shape[0], -1), F.max_pool2d(y, 2)


def as_exact(model, pictures, slack, **options):
    """Results of the compiled model for each of the pictures are those of the model in float64, but for ``slack`` of their norm, and lie
    as eager's."""
    dynamic = options.pop("dynamic", None)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(no_grad(model), backend="inrush", dynamic=dynamic, options={"strict": True, "cache": False, **options})
    for x in pictures:
        with torch.no_grad():
            got, wanted, like = compiled(x), exact(x.double()), model(x)
        same_layout(got, like)
        for g, w in zip(tensors(got), tensors(wanted), strict=True):
            assert (g.double() - w).norm() < slack * w.norm(), (x.dtype, x.shape, float((g.double() - w).norm() / w.norm()))


def small_convolutions(many, picture):
    for dtype, slack in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        as_exact(Small().eval().to(dtype), [torch.randn(many, 3, *picture).to(dtype)] * 2, slack)


def near_convolutions(dtype, slack):
    """Pictures of the traced sizes, near ones and others, for which convolutions are products, sums and a library's."""
    layers = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 6, 1)
    sizes = (3, 3, 14, 12), (2, 3, 9, 10), (3, 3, 14, 12), (4, 3, 11, 15), (6, 3, 20, 17)
    as_exact(nn.Sequential(*layers).eval().to(dtype), [torch.randn(size).to(dtype) for size in sizes], slack, dynamic=True)


def sharing(conv, x):
    """Results that share memory in eager do so after their layout was restored."""

    def f(a):
        y = conv(a) * 2
        return y, y.view(torch.int32), y[:, 1:], y.flatten(1)

    compiled = torch.compile(no_grad(f), backend="inrush", options={"strict": True, "cache": False})
    got, wanted = compiled(x), f(x)
    same_layout(got, wanted)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.view(torch.float32), w.view(torch.float32), rtol=1e-3, atol=1e-4)
        assert g.untyped_storage().data_ptr() == got[0].untyped_storage().data_ptr()


def large_among_small():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 31, padding=15)).eval()
    compare(no_grad(model), (torch.randn(1, 3, 26, 26),))


def channels_last(model, row):
    """Tells how many tensors are laid out anew, by the text of stage rewrite."""
    with tempfile.TemporaryDirectory() as folder:
        as_exact(model.eval().bfloat16(), [torch.randn(2, 3, 24, 24).bfloat16()] * 2, 0.02, trace=folder)
        (text,) = (os.path.join(at, f) for at, _, files in os.walk(folder) for f in files if f.endswith("-rewrite.txt"))
        with open(text, encoding="utf-8") as lines:
            whole, *_ = lines.read().split("\n\n")
        row["relaid"] = whole.count("aten.clone.default")


def no_grad(model: nn.Module):
    return torch.no_grad()(lambda x: model(x))


def main():
    row = {}
    for name, run in cases(row):
        torch._dynamo.reset()
        torch.manual_seed(0)
        row.clear()
        row |= {"name": name, "failed": None}
        start = time.perf_counter()
        try:
            run()
            row["seconds"] = round(time.perf_counter() - start, 1)
            done = inrush.last_compile()
            graphs = list(done.all_graphs())
            row |= {"kernels": done.kernels, "libraries": [op for g in graphs for op in g.libraries], "called": done.fallbacks}
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"[:3000]
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
