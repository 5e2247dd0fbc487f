"""Transformers of many equal blocks, whose plan is made from a few of them: as exact as eager, beside float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import inrush

BLOCKS, WIDTH, HEADS, WORDS = 8, 64, 4, 97


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Llama(nn.Module):
    """A block with rotary positions, which makes its mask itself."""

    def __init__(self):
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.q, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape

        def heads(y):
            return y.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)

        def turned(y):
            a, b = y.chunk(2, -1)
            return y * cos + torch.cat([-b, a], -1) * sin

        n = self.before(x)
        q, k, v = turned(heads(self.q(n))), turned(heads(self.k(n))), heads(self.v(n))
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length, dtype=x.dtype).masked_fill(ahead, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        n = self.between(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Gpt(nn.Module):
    """A block with a fused projection, two linear layers around a tanh-approximated GELU, and biases."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        parts = self.qkv(self.before(x)).split(WIDTH, -1)
        q, k, v = (p.view(batch, length, HEADS, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.up(self.between(x))
        h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h**3)))
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))
        self.norm = Norm()

    def forward(self, ids):
        x = self.words(ids)
        size = WIDTH // HEADS
        angle = torch.arange(ids.shape[1])[:, None] / 100 ** (torch.arange(0, size, 2) / size)
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x) @ self.words.weight.t()


def ids(length, batch=2):
    return torch.randint(0, WORDS, (batch, length))


def graphs():
    return sum(len(c.graphs) for c in inrush.compilations())


def step(f, model, x, train):
    if not train:
        with torch.no_grad():
            return [f(x)]
    model.zero_grad()
    loss = f(x).double().square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def error(got, want):
    """The largest over all tensors, relative to the norm; tensors that are small beside the others count by these."""
    scale = max(float(w.norm()) for w in want)
    return max(float((g.double() - w).norm()) / max(float(w.norm()), 1e-3 * scale) for g, w in zip(got, want))


@pytest.fixture(params=[Llama, Gpt])
def model(request):
    torch.manual_seed(1)
    return Model(request.param)


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)],
    ids=["float32", "bfloat16", "dynamic"],
)
def test_as_exact_as_eager(model, train, dtype, dynamic):
    model = model.to(dtype)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend="inrush", dynamic=dynamic, options={"strict": True})
    before = graphs()
    for length in (16, 7, 33) if dynamic else (16,):
        x = ids(length)
        want = step(exact, exact, x, train)
        ours, theirs = error(step(compiled, model, x, train), want), error(step(model, model, x, train), want)
        assert ours <= 1.5 * theirs + 1e-6, f"length {length}: {ours}, eager {theirs}"
    assert graphs() == before + (2 if train else 1)


def test_ahead_of_time(model, tmp_path):
    program = torch.export.export(model.eval(), (ids(16),))
    torch.export.save(program, tmp_path / "model.pt2")
    inrush.aot_compile(torch.export.load(tmp_path / "model.pt2"), tmp_path / "model.inrush")
    loaded = inrush.load(tmp_path / "model.inrush")
    exact = copy.deepcopy(model).double()
    x = ids(16)
    with torch.no_grad():
        want, got = [exact(x)], loaded(x)
        ours = error([got] if isinstance(got, torch.Tensor) else list(got), want)
        theirs = error([model(x)], want)
    assert ours <= 1.5 * theirs + 1e-6, f"{ours}, eager {theirs}"
