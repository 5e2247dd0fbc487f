"""In-place operators: on intermediates, through views, on buffers (state between calls) and on inputs. `torch.export` leaves
them in the graph, in place; after `run_decompositions` the same mutations are outputs with a specification."""

import torch
import torch.nn.functional as F
from torch import nn

from .pointwise import spread


def chain(x):
    y = x.clone()
    y.add_(1).mul_(2)
    y.relu_()
    return y


def through_slice(x):
    y = x.clone()
    y[1:3] = 0.0
    y[:, ::2] += 1
    y[0, 0] = 7.0
    return y


def through_views(x):
    y = x.clone()
    view = y.view(-1)[3:].view(3, -1) if y.numel() == 24 else y
    view.t()[0].mul_(-2)
    view += y.mean()
    return y, view


def view_sees_base(x):
    y = x * 1
    row = y[1]
    y.add_(10)
    return row, y


def base_sees_view_of_view(x):
    y = x * 1
    y.transpose(0, 1)[2:4].select(1, 1).fill_(5.0)
    return y * 2


def stale_copy(x):
    y = x.clone()
    before = y.clone()
    y.zero_()
    return before - y, y


def read_before_and_after(x):
    y = x + 1
    z = y * 2
    y.mul_(3)
    return z + y


def split_and_write(x):
    y = x.clone()
    a, b = y.split(2, 0)
    a.copy_(b * 2)
    b.sub_(a)
    return y


def cases(suite):
    x = spread("mutate", torch.float32, 4, 6)
    rows = torch.tensor([2, 0])
    with suite.group("inplace", "zoo", tol="exact") as g:
        g.add("chain", chain, x)
        g.add("through_slice", through_slice, x)
        g.add("through_views", through_views, x, tol="close")
        g.add("view_sees_base", view_sees_base, x)
        g.add("base_sees_view_of_view", base_sees_view_of_view, x)
        g.add("stale_copy", stale_copy, x)
        g.add("read_before_and_after", read_before_and_after, x, tol="close")
        g.add("split_and_write", split_and_write, x)
        g.add("copy_broadcast", lambda t: torch.zeros(4, 6).copy_(t[0]), x)
        g.add("copy_converts", lambda t: torch.zeros(4, 6, dtype=torch.int32).copy_(t * 10), x)
        g.add("fill", lambda t: t.clone().fill_(3), x)
        g.add("masked_fill", lambda t: t.clone().masked_fill_(t > 0, -1.0), x)
        g.add("clamp", lambda t: t.clone().clamp_(-1, 1), x)
        g.add("index_put", lambda t, i: put(t, i), x, rows)
        g.add("index_add", lambda t, i: t.clone().index_add_(0, i, t[:2]), x, rows)
        g.add("scatter", lambda t, i: t.clone().scatter_(0, i[:, None].expand(2, 6), 1.5), x, rows)
        g.add("set_where", lambda t: set_where(t), x)
        g.add("transposed", lambda t: t.clone().t_().add_(1), x)
        g.add("unsqueezed", lambda t: t.clone().unsqueeze_(1).mul_(2), x)
        g.add("int_by_scalar", lambda i: i.clone().add_(2).mul_(3).bitwise_and_(6), rows)
        g.add("logical", lambda t: (t > 0).logical_and_(t < 2), x)
        g.add("or_operator", lambda t: ((t > 0).__ior__(t < -2)), x)
    with suite.group("inplace_functions", "zoo") as g:
        for name in ("relu_", "silu", "hardswish", "hardsigmoid", "leaky_relu", "elu", "relu6", "mish"):
            fn = torch.relu_ if name == "relu_" else (lambda t, f=getattr(F, name): f(t, inplace=True))
            g.add(name, lambda t, f=fn: f(t + 0.5), x)
        for name in ("exp_", "sigmoid_", "tanh_", "sqrt_", "neg_", "floor_", "reciprocal_", "rsqrt_", "abs_", "sin_", "log_"):
            g.add(name, lambda t, n=name: getattr(t.abs() + 0.5, n)(), x)
        g.add("dropout", lambda t: F.dropout(t + 1, 0.5, training=False, inplace=True), x)
        g.add("div_sub_pow", lambda t: (t.abs() + 1).div_(3).sub_(0.1).pow_(2), x)
        g.add("addcmul", lambda t: t.clone().addcmul_(t, t, value=0.5), x)
        g.add("lerp", lambda t: t.clone().lerp_(t * 2, 0.25), x)
        g.add("cumsum", lambda t: t.clone().cumsum_(1), x)

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(6), persistent=False)

        def forward(self, x):
            self.count += 1
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return x - self.mean, self.count * 2

    class Assigned(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(4, 6))

        def forward(self, x):
            before = self.last + 0
            self.last.copy_(x)
            return before, self.last.sum()

    class Cache(nn.Module):
        """A key-value cache: rows are written at a position that is data, and the whole is read."""

        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 2, 8, 4))

        def forward(self, x, position):
            self.keys.index_copy_(2, position, x)
            return torch.softmax(x @ self.keys.transpose(-1, -2), -1) @ self.keys

    class Window(nn.Module):
        """Every call moves the window by one row, reading and writing one buffer at shifted places."""

        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.arange(12.0).reshape(4, 3))

        def forward(self, row):
            self.window[:-1] = self.window[1:].clone()
            self.window[-1] = row
            return self.window.mean(0)

    class MutatesInput(nn.Module):
        def forward(self, x, y):
            x.add_(y)
            x[0].zero_()
            return x * 2

    class MutatesAndReturnsInput(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x, x[1:]

    class MutatesView(nn.Module):
        def forward(self, x):
            x.view(-1)[::2].neg_()
            return x.sum()

    y = spread("mutate2", torch.float32, 4, 6)
    later = [(x + 1,), (y,)]
    steps = [(spread(f"step{i}", torch.float32, 1, 2, 1, 4), torch.tensor([i + 1])) for i in range(3)]
    for suffix, decompose in (("", False), ("_functional", True)):
        options = {"decompose": decompose}
        tags = ["functional"] if decompose else []
        suite.model("buffer_counter" + suffix, Counter(), [x], *tags, runs=later, stateful=True, **options)
        suite.model("buffer_assigned" + suffix, Assigned(), [x], *tags, runs=later, stateful=True, **options)
        suite.model("buffer_cache" + suffix, Cache(), steps[0], *tags, runs=steps[1:], stateful=True, **options)
        suite.model("buffer_window" + suffix, Window(), [x[0, :3]], *tags, runs=[(x[1, :3],), (x[2, 3:],)], stateful=True, **options)
        suite.model("input_mutated" + suffix, MutatesInput(), [x.clone(), y], *tags, **options)
        suite.model("input_mutated_returned" + suffix, MutatesAndReturnsInput(), [x.clone()], *tags, **options)
        suite.model("input_mutated_view" + suffix, MutatesView(), [x.clone()], *tags, **options)
    torch.manual_seed(5)
    norm = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    suite.model("batch_norm_training", norm.train(), [x], "near", runs=[(y,)], stateful=True, tol="norm")


def put(tensor, rows):
    copy = tensor.clone()
    copy[rows] = tensor[:2] * 2
    copy[rows, 1] += 1
    return copy


def set_where(tensor):
    copy = tensor.clone()
    copy[copy < 0] = 0.25
    return copy
