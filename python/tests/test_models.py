"""Small models of the usual families, in eval and in training, static and dynamic."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8), nn.BatchNorm2d(8), nn.Hardswish())
        self.shortcut = nn.Conv2d(8, 8, 1, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = self.depthwise(x) + self.shortcut(x)
        return self.head(F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, dim=32, heads=4, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(x)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Attention(causal=True) for _ in range(2))
        self.norm = nn.LayerNorm(32)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.t()


class Rotary(nn.Module):
    """RMS norm, rotary positions, gated units."""

    def __init__(self, dim=32):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(dim, 64, bias=False), nn.Linear(dim, 64, bias=False), nn.Linear(64, dim, bias=False)

    def rotate(self, x):
        t, d = x.shape[-2:]
        angle = torch.arange(t)[:, None] / 100 ** (torch.arange(0, d, 2) / d)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1).flatten(-2).to(x.dtype)

    def forward(self, x):
        n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        q, k = self.rotate(self.q(n)), self.rotate(self.k(n))
        scores = (q @ k.transpose(-1, -2)) / 32**0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = x + scores.masked_fill(~mask, float("-inf")).softmax(-1) @ self.v(n)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


MODELS = {
    "convolutional": (Convolutional, lambda n: torch.randn(n, 3, 16, 16)),
    "attention": (Attention, lambda n: torch.randn(n, 7, 32)),
    "language": (Language, lambda n: torch.randint(0, 50, (n, 9))),
    "rotary": (Rotary, lambda n: torch.randn(n, 6, 32)),
    "recurrent": (Recurrent, lambda n: torch.randn(n, 4, 6)),
    "group_norm": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 4, 2)), lambda n: torch.randn(n, 4, 9, 9)),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(1)
    make, inputs = MODELS[request.param]
    return make(), inputs


def test_eval(check, model):
    model, inputs = model
    model.eval()
    with torch.no_grad():
        report = check(model, inputs(3), calls=2, rtol=1e-4, atol=1e-4)
    assert report.kernels > 0


def test_training(check, model):
    model, inputs = model
    check.training(model, inputs(3), rtol=1e-3, atol=1e-4)


def test_dynamic_batch(check, model):
    model, inputs = model
    model.eval()
    compiled = torch.compile(model, backend="inrush", dynamic=True, options={"strict": True})
    with torch.no_grad():
        for n in (2, 5):
            x = inputs(n)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_bfloat16(check, model):
    model, inputs = model
    model.eval().bfloat16()
    x = inputs(2)
    x = x if x.dtype == torch.int64 else x.bfloat16()
    with torch.no_grad():
        check(model, x, rtol=5e-2, atol=5e-2)


def test_weights_may_change(check):
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="inrush")
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.mul_(3)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.data = torch.randn(4, 4)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_training_loop(check):
    def run(compiled):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
        step = torch.compile(model, backend="inrush", options={"strict": True}) if compiled else model
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(32, 8), torch.randn(32, 1)
        losses = []
        for _ in range(10):
            optimiser.zero_grad()
            loss = F.mse_loss(step(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return torch.tensor(losses), model[1].running_mean

    torch.testing.assert_close(run(True), run(False), rtol=1e-3, atol=1e-4)
