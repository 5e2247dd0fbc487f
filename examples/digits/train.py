"""Trains a small network on scikit-learn's handwritten digits and exports it for `inrush run`.

usage: train.py [OUT_DIR]      (needs python/requirements-bench.txt; about a minute on two cores)

It writes `digits.pt2` (batch is dynamic), `digits.inputs.safetensors` (the held-out images, key "0") and
`digits.expect.safetensors` (PyTorch's logits for them, key "0", and the true classes, key "labels").
"""

import os
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 0
HELD_OUT = 450
EPOCHS = 60


class Residual(nn.Module):
    """Two 3x3 convolutions, batch-normalised, around a shortcut."""

    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x
        return F.relu(y, inplace=True)


class Attention(nn.Module):
    """A pre-norm transformer block: self-attention over the positions of the image, then a two-layer perceptron."""

    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(c), nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.norm2, self.up, self.down = nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Digits(nn.Module):
    """8x8 grey images with values 0 to 16 -> ten logits."""

    def __init__(self, c=32, d=64, heads=4):
        super().__init__()
        self.stem, self.stem_bn = nn.Conv2d(1, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.block = Residual(c)
        self.patch = nn.Conv2d(c, d, 3, stride=2, padding=1)
        self.position = nn.Parameter(torch.randn(1, 16, d) * 0.02)
        self.attention = Attention(d, heads)
        self.norm = nn.LayerNorm(d)
        self.score = nn.Linear(d, 1)
        self.head = nn.Linear(d, 10)

    def forward(self, x):
        x = x / 8.0 - 1.0
        x = F.relu(self.stem_bn(self.stem(x)), inplace=True)
        x = self.patch(self.block(x))
        x = x.flatten(2).transpose(1, 2) + self.position
        x = self.norm(self.attention(x))
        weight = torch.softmax(self.score(x), dim=1)
        return self.head((weight * x).sum(dim=1))


def shifted(x):
    """Moves each image by up to one pixel each way: the only augmentation."""
    dy, dx = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(F.pad(x, (1, 1, 1, 1)), (dy, dx), (2, 3))[:, :, 1:-1, 1:-1]


def train(model, x, y):
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    steps = EPOCHS * ((len(x) + 63) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(model(shifted(x[rows])), y[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def relative_traces(program):
    """Source paths in the archive are shown by error messages: keep them, without the directories of this machine."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    packages = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    for node in program.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            node.meta["stack_trace"] = trace.replace(packages + os.sep, "").replace(root + os.sep, "")
    return program


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    os.makedirs(out, exist_ok=True)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(data.target, dtype=torch.int64)
    keep, held = train_test_split(torch.arange(len(x)).numpy(), test_size=HELD_OUT, stratify=data.target, random_state=SEED)

    start = time.perf_counter()
    model = train(Digits(), x[keep], y[keep])
    images, labels = x[held].contiguous(), y[held].contiguous()
    with torch.no_grad():
        logits = model(images)
        batch = torch.export.Dim("batch", min=1, max=4096)
        program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    accuracy = (logits.argmax(1) == labels).float().mean().item()

    path = os.path.join(out, "digits")
    torch.export.save(relative_traces(program), path + ".pt2")
    save_file({"0": images}, path + ".inputs.safetensors")
    save_file({"0": logits.contiguous(), "labels": labels}, path + ".expect.safetensors")
    count = sum(p.numel() for p in model.parameters())
    size = os.path.getsize(path + ".pt2") / 1e6
    print(f"{len(keep)} training images, {len(held)} held out, {count} parameters, archive {size:.2f} MB")
    print(f"accuracy on the held-out images {accuracy:.4f}, training took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
