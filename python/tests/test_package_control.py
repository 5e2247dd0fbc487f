"""Packages with control flow: `cond`, `while_loop`, `scan` and `map` ahead of time."""

from __future__ import annotations

import pytest
import torch
from test_parts import agree, packed
from torch import nn
from torch._higher_order_ops.map import map as hop_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import inrush

Dim = torch.export.Dim


class Flat(nn.Module):
    """A module of one function that gives a tuple."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        out = self.function(*inputs)
        return out if isinstance(out, tuple) else (out,)


def compare(tmp_path, module, *inputs, again=(), dynamic=None):
    """Compiles a module into a package and compares it with eager, on `inputs` and on each of `again`."""
    if not isinstance(module, nn.Module):
        module = Flat(module)
    if dynamic is not None:
        dynamic = (dynamic,) if isinstance(module, Flat) else dynamic
    package = packed(tmp_path, module.eval(), *inputs, dynamic=dynamic)
    for given in (inputs, *again):
        agree(module, package, *given)
    return package


class Chooses(nn.Module):
    """Branches with weights of their own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x):
        out = torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x) + self.shift, (x,))
        return (out * 2,)


def test_cond_runs_one_of_two_branches(tmp_path):
    torch.manual_seed(0)
    package = compare(tmp_path, Chooses(), torch.ones(3, 4), again=[(-torch.ones(3, 4),), (torch.randn(4, 3).t(),)])
    # The weights of branches are replaced with all others.
    other = Chooses().eval()
    package.update_weights(dict(other.state_dict()))
    package.swap_weights()
    for x in (torch.ones(3, 4), -torch.ones(3, 4)):
        agree(other, package, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_cond_of_dtypes_and_dynamic_sizes(tmp_path, dtype):
    def function(x, y):
        return torch.cond((x > 0).any(), lambda x, y: (x + y, x.sum(0)), lambda x, y: (x * y, y[0] * 3), (x, y))

    def drawn(n, sign):
        x = torch.randint(1, 5, (n, 6)).to(dtype) * sign
        return x, torch.randint(-4, 5, (n, 6)).to(dtype)

    n = Dim("n", min=1)
    compare(tmp_path, function, *drawn(3, 1), again=[drawn(7, -1), drawn(1, 1), drawn(40, -1)], dynamic=({0: n}, {0: n}))


def test_cond_on_a_size(tmp_path):
    def function(x):
        return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compare(tmp_path, function, torch.randn(3, 2), again=[(torch.randn(4, 2),), (torch.randn(5, 2),)], dynamic=({0: Dim("n", min=2)},))


def test_cond_with_outputs_of_other_sizes(tmp_path):
    def function(x):
        y = torch.cond(x.sum() > 0, lambda x: x[:2] + 1, lambda x: x[1:] * 2, (x,))
        return y, y.sum(0), torch.relu(y) * 3

    compare(tmp_path, function, torch.ones(5, 3), again=[(-torch.ones(5, 3),)])


def test_nested_cond(tmp_path):
    def function(x):
        def inner(x):
            return torch.cond(x.max() > 2, lambda x: x * 10, lambda x: x + 10, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: -x, (x,))

    compare(tmp_path, function, torch.ones(3), again=[(torch.ones(3) * 3,), (-torch.ones(3),)])


def test_data_decide_sizes_within_a_branch(tmp_path):
    def function(x):
        def chosen(x):
            at = torch.nonzero(x > 0).squeeze(1)
            return x[at].sum() + at.sum()

        return torch.cond(x.sum() > 0, chosen, lambda x: x.min(), (x,))

    compare(tmp_path, function, torch.randn(20) + 1, again=[(torch.randn(20) - 1,), (torch.zeros(20),)])


def test_cond_gives_new_memory(tmp_path):
    """A branch that gives a buffer as it is: what is returned does not change when the buffer is written."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(3))

        def forward(self, x):
            y = torch.cond(x.sum() > 0, lambda s, x: s + 0, lambda s, x: s * 2, (self.state, x))
            self.state.add_(x)
            return y, self.state + 1

    module = Reads()
    package = packed(tmp_path, module, torch.ones(3))
    module = Reads()
    for x in (torch.ones(3), -torch.ones(3), torch.randn(3), torch.ones(3)):
        agree(module, package, x)


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x, n):
        def more(i, x):
            return i < n

        def turn(i, x):
            return i + 1, torch.tanh(self.l(x))

        return while_loop(more, turn, (torch.zeros((), dtype=torch.int64), x))


def test_while_loop_of_no_turn_one_and_many(tmp_path):
    torch.manual_seed(0)
    turns = [torch.tensor(k) for k in (0, 1, 2, 50)]
    compare(tmp_path, Loops(), torch.randn(3, 4), torch.tensor(3), again=[(torch.randn(3, 4), n) for n in turns])


def test_while_loop_of_large_values(tmp_path):
    """Blocks of the values that a loop carries are recycled, and hold the right contents all the same."""

    def function(x, n):
        return while_loop(lambda i, x, y: i < n, lambda i, x, y: (i + 1, y * 0.5 + x, x - 1), (torch.tensor(0), x, x + 1))

    x = torch.randn(512, 256)
    compare(tmp_path, function, x, torch.tensor(4), again=[(x, torch.tensor(k)) for k in (0, 1, 9)])


def test_while_loop_that_data_end(tmp_path):
    """The rounds of a Newton iteration depend on values."""

    def function(a):
        def more(x, a):
            return ((x * x - a).abs() > 1e-5 * a).any()

        def turn(x, a):
            return (x + a / x) / 2, a.clone()

        return while_loop(more, turn, (torch.ones_like(a), a))[0]

    compare(tmp_path, function, torch.rand(9) + 1, again=[(torch.full((9,), 1e6),), (torch.ones(9),)])


def test_nested_loops(tmp_path):
    def function(x, n):
        def outer(i, x):
            def inner(j, x):
                return j + 1, x * 1.5 + i

            return i + 1, while_loop(lambda j, x: j < i, inner, (torch.zeros_like(i), x))[1]

        return while_loop(lambda i, x: i < n, outer, (torch.zeros_like(n), x))

    compare(tmp_path, function, torch.randn(5), torch.tensor(3), again=[(torch.randn(5), torch.tensor(k)) for k in (0, 1, 6)])


def test_cond_within_a_loop(tmp_path):
    def function(x, n):
        def turn(i, x):
            return i + 1, torch.cond(x.sum() > 0, lambda x: x - 2, lambda x: x + 3, (x,))

        return while_loop(lambda i, x: i < n, turn, (torch.zeros_like(n), x))

    compare(tmp_path, function, torch.ones(5), torch.tensor(4), again=[(torch.ones(5), torch.tensor(11))])


class StateSpace(nn.Module):
    """A recurrence over time, as state-space models have it."""

    def __init__(self, size=8, state=16):
        super().__init__()
        self.a = nn.Parameter(torch.rand(state) * 0.9)
        self.b, self.c = nn.Linear(size, state), nn.Linear(state, size)

    def forward(self, x):
        def step(h, x):
            h = h * self.a + self.b(x)
            return h, self.c(h)

        h = torch.zeros(x.shape[1], self.a.shape[0])
        return scan(step, h, x)


def test_scan_over_time(tmp_path):
    torch.manual_seed(0)
    inputs = [(torch.randn(t, 3, 8),) for t in (1, 2, 31)]
    module = StateSpace()
    package = compare(tmp_path, module, torch.randn(7, 3, 8), again=inputs, dynamic=({0: Dim("t", min=1)},))
    # Non-contiguous in time.
    agree(module, package, torch.randn(3, 9, 8).transpose(0, 1))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_several_values(tmp_path, reverse):
    def function(x, y):
        def step(carry, xs):
            (h, k), (x, y) = carry, xs
            h, k = h + x, k * 0.5 + y.sum()
            return (h, k), (h * k, x - y.sum())

        (h, k), (a, b) = scan(step, (torch.zeros(4), torch.ones(())), (x, y), reverse=reverse)
        return h, k, a, b

    compare(tmp_path, function, torch.randn(6, 4), torch.randn(6, 3), again=[(torch.randn(6, 4), torch.randn(6, 3))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_map(tmp_path, dtype):
    def function(xs, y):
        return hop_map(lambda x, y: (x @ y).relu() + 1, xs, y)

    y = torch.randn(4, 2).to(dtype)
    inputs = [(torch.randn(n, 3, 4).to(dtype), y) for n in (1, 9)]
    compare(tmp_path, function, torch.randn(5, 3, 4).to(dtype), y, again=inputs, dynamic=({0: Dim("n", min=1)}, None))


class Decoder(nn.Module):
    """A greedy decoder: a loop with a key-value cache, which ends with a token or at a length."""

    def __init__(self, words=11, size=8, longest=12):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
        self.out = nn.Linear(size, words)
        self.longest, self.size = longest, size

    def forward(self, first):
        keys = torch.zeros(self.longest, self.size)
        values = torch.zeros(self.longest, self.size)
        tokens = torch.zeros(self.longest, dtype=torch.int64)
        place = torch.arange(self.longest)

        def more(i, token, tokens, keys, values):
            return (i < self.longest) & (token != 3)

        def turn(i, token, tokens, keys, values):
            x = self.words(token)
            here = place == i
            keys = torch.where(here[:, None], self.k(x), keys)
            values = torch.where(here[:, None], self.v(x), values)
            scores = keys @ self.q(x) * self.size**-0.5
            scores = scores.masked_fill(place > i, -torch.inf)
            token = self.out(scores.softmax(0) @ values + x).argmax()
            return i + 1, token, torch.where(here, token, tokens), keys, values

        i = torch.zeros((), dtype=torch.int64)
        return while_loop(more, turn, (i, first, tokens, keys, values))


def test_a_decoder_with_a_cache(tmp_path):
    torch.manual_seed(1)
    compare(tmp_path, Decoder(), torch.tensor(5), again=[(torch.tensor(k),) for k in (0, 3, 7, 10)])


class Experts(nn.Module):
    """A mixture of experts: each runs on the rows that a gate sends to it."""

    def __init__(self, size=6, experts=3):
        super().__init__()
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(nn.Linear(size, size) for _ in range(experts))

    def forward(self, x):
        best = self.gate(x).argmax(1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            at = torch.nonzero(best == k).squeeze(1)
            out = out.index_add(0, at, expert(x[at]))
        return (out,)


def test_a_mixture_of_experts(tmp_path):
    torch.manual_seed(0)
    inputs = [(torch.randn(n, 6),) for n in (2, 33)]
    compare(tmp_path, Experts(), torch.randn(9, 6), again=inputs, dynamic=({0: Dim("n", min=2)},))


class Suppresses(nn.Module):
    """Non-maximum suppression: the best box is kept, and those that overlap it are dropped, until none is left."""

    def forward(self, boxes, scores):
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

        def more(left, kept):
            return (left > -torch.inf).any()

        def turn(left, kept):
            best = left.argmax()
            box = boxes.index_select(0, best.reshape(1))[0]
            low = torch.maximum(boxes[:, :2], box[:2])
            high = torch.minimum(boxes[:, 2:], box[2:])
            common = (high - low).clamp(min=0).prod(1)
            share = common / (area + area.index_select(0, best.reshape(1)) - common)
            kept = kept | (torch.arange(kept.shape[0]) == best)
            return left.masked_fill(share > 0.5, -torch.inf), kept

        kept = torch.zeros_like(scores, dtype=torch.bool)
        _, kept = while_loop(more, turn, (scores, kept))
        at = torch.nonzero(kept).squeeze(1)
        return boxes[at], scores[at]


def test_non_maximum_suppression(tmp_path):
    torch.manual_seed(0)

    def drawn(n):
        corner = torch.rand(n, 2) * 4
        return torch.cat([corner, corner + 0.5 + torch.rand(n, 2)], 1), torch.rand(n)

    n = Dim("n", min=2)
    compare(tmp_path, Suppresses(), *drawn(12), again=[drawn(2), drawn(60)], dynamic=({0: n}, {0: n}))


def test_random_numbers_within_control_flow_are_refused(tmp_path):
    module = Flat(lambda x: torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x * 2, (x,)))
    with pytest.raises(inrush.UnsupportedError, match="random numbers within control flow") as error:
        packed(tmp_path, module, torch.ones(3))
    # The line of the draw, as PyTorch records it, not of the choice.
    assert "aten.rand_like" in str(error.value) and "torch.rand_like(" in str(error.value)


def test_dropout_of_inference_within_control_flow(tmp_path):
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: nn.functional.dropout(x, 0.5, False) + 1, lambda x: x * 2, (x,))

    compare(tmp_path, function, torch.ones(3), again=[(-torch.ones(3),)])


def test_loops_in_many_turns_of_several_threads(tmp_path):
    """Turns write into blocks of earlier turns: calls at the same time have blocks of their own."""
    from concurrent.futures import ThreadPoolExecutor

    torch.manual_seed(0)

    def function(x, n):
        def turn(i, x, y):
            return i + 1, y * 0.5 + x, torch.cond(x.sum() > 0, lambda x: x - 1, lambda x: x + 1, (x,))

        return while_loop(lambda i, x, y: i < n, turn, (torch.zeros_like(n), x, x + 1))

    module = Flat(function).eval()
    package = packed(tmp_path, module, torch.randn(3, 5), torch.tensor(3))
    inputs = [(torch.randn(3, 5), torch.tensor(k)) for k in range(40)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda given: agree(module, package, *given), inputs))
