"""Packages inside PyTorch on a GPU: `inrush.load(path, device="cuda:0")`, and packages of format `aoti` by PyTorch's own loader.

    python gpu_load_check.py [--folder FOLDER] [--device cuda:0] [--zoo FOLDER] [GROUP ...]

Needs PyTorch with CUDA, Triton and the wheel of inrush; no compiler of Rust or C. Packages are made for the GPU that is there, into
FOLDER (a temporary one by default), then each group of checks runs in a process of its own. Results are compared with eager
PyTorch on the GPU in float64: the error must not exceed a small multiple of what eager itself has in the model's dtype. The group
`latency` measures calls of batch 1 against `torch.compile(backend="inrush")`; FOLDER of `--zoo` has a `zoo.py` with public models.

Each check prints a line. The last line is `N failed`; the exit status is 1 if N is not 0. With `--device cpu` the groups that need
no GPU run on packages for the CPU, which tries the script itself.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile

import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export.pt2_archive._package import AOTICompiledModel
from torch.nn import functional as F

import inrush

# Norm of the difference over norm of the expected output that is allowed in addition to eager's own error.
FLOOR = 2e-6
SECONDS = 400
failures = 0


def say(name, right, why=""):
    global failures
    failures += not right
    print(f"{'PASS' if right else 'FAIL'}  {name}{f': {why}' if why else ''}", flush=True)


# The models.


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x).log_softmax(-1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        parts = self.qkv(self.before(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self, layers=2, width=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(1000, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.one, self.two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = F.relu(self.one(self.first(x)))
        x = F.relu(self.two(self.second(x)) + x)
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


class Rows(nn.Module):
    """Any number of rows; outputs nested."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(96), nn.Linear(96, 24)

    def forward(self, x):
        y = F.silu(self.layer(self.norm(x)))
        return {"out": y, "rest": (y.softmax(-1), x.sum(1), x.shape[0])}


class Cached(nn.Module):
    """One step of attention over a cache that the model keeps."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.register_buffer("keys", torch.zeros(1, 4, 32, 16))
        self.register_buffer("values", torch.zeros(1, 4, 32, 16))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        q, k, v = self.qkv(x).view(1, 1, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        places = torch.arange(32, device=x.device)
        here = places.view(1, 1, 32, 1) == self.position
        keys, values = torch.where(here, k, self.keys), torch.where(here, v, self.values)
        seen = (places <= self.position).view(1, 1, 1, 32)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        self.keys.copy_(keys)
        self.values.copy_(values)
        self.position.add_(1)
        return self.out(y.transpose(1, 2).reshape(1, 1, 64))


class Views(nn.Module):
    """Outputs that are an input, views of it, and views of each other."""

    def forward(self, x, y):
        z = x + y
        return x, x.t(), z, z[1:], z.unsqueeze(0), x * 2


class Writes(nn.Module):
    def forward(self, x, y):
        x.mul_(2).add_(y)
        return x + 1


class Slow(nn.Module):
    """Enough products that the device is busy for a while."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 23)

    def forward(self, x):
        for _ in range(16):
            x = torch.tanh(x @ self.weight)
        return x


class Turned(nn.Module):
    """Complex inputs, outputs, weights and a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(16, dtype=torch.complex64))
        self.register_buffer("seen", torch.zeros(16, dtype=torch.complex64))

    def forward(self, z, x):
        self.seen.add_(z.sum(0))
        return z * self.factor + self.seen, torch.view_as_real(z).sum(1) + x, (z @ z.mT).abs(), z[:, ::2]


class Parts(nn.Module):
    """Data decide about sizes and about what runs; branches have weights of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x):
        rows = torch.nonzero(x.sum(1) > 0).squeeze(1)
        y = torch.cond(x.mean() > 0, lambda x: self.first(x).relu(), lambda x: x * 2, (x,))
        return self.second(y[rows]), x[x > 1] * 2, rows + 1


class Turns(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        def turn(i, y):
            return i + 1, torch.tanh(self.layer(y))

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        last = while_loop(lambda i, y: (i < 20) & (y.abs().sum() > 1), turn, (start, x))
        total, sums = scan(lambda c, row: (c + row, (c * row).clone()), torch.zeros_like(x[0]), x, dim=0)
        return (*last, total, sums)


class Library(nn.Module):
    """Functions of the runtime's library, on the host."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x):
        square = x @ x.mT + 8 * torch.eye(x.shape[-2], device=x.device, dtype=x.dtype)
        values, places = x.reshape(1, -1).sort(-1)
        return self.lstm(x)[0].relu(), torch.fft.rfft(x).abs(), torch.linalg.solve(square, x), values * 2, places + 1


@torch.library.custom_op("inrush_check::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float, shift: torch.Tensor | None = None) -> torch.Tensor:
    return x * by if shift is None else x * by + shift


@scaled.register_fake
def _(x, by, shift=None):
    return torch.empty_like(x)


@torch.library.custom_op("inrush_check::added", mutates_args=("to",))
def added(to: torch.Tensor, x: torch.Tensor) -> None:
    to += x.sum(0)


@torch.library.custom_op("inrush_check::above", mutates_args=())
def above(x: torch.Tensor, limit: float) -> torch.Tensor:
    return x[x > limit].clone()


@above.register_fake
def _(x, limit):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


class Operators(torch.nn.Module):
    """Operators of the user's between kernels, one that writes a buffer, one whose data decide its size."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, x):
        y = scaled(self.linear(x).relu(), 3.0, x[0])
        added(self.seen, y)
        return scaled(y.t() * 2, 0.5) + 1, self.seen * 1, above(y, 0.25) * 2


BATCH = torch.export.Dim("batch", min=1, max=256)


def models():
    """Name: module, lists of inputs, dynamic sizes."""
    torch.manual_seed(0)
    half = [[torch.randint(0, 1000, (2, 64))]]
    return {
        "digits": (Digits(), [[torch.randn(n, 64)] for n in (7, 1, 200)], ({0: BATCH},)),
        "transformer": (Transformer(), [[torch.randint(0, 1000, (2, 48))]], None),
        "transformer_bf16": (Transformer().bfloat16(), half, None),
        "transformer_f16": (Transformer().half(), half, None),
        "residual": (Residual(), [[torch.randn(4, 3, 32, 32)]], None),
        "rows": (Rows(), [[torch.randn(n, 7, 96)] for n in (2, 33, 256, 1)], ({0: BATCH},)),
        "cached": (Cached(), [[torch.randn(1, 1, 64)] for _ in range(24)], None),
        "views": (Views(), [[torch.randn(6, 4), torch.randn(6, 4)]], None),
        "writes": (Writes(), [[torch.randn(6, 4), torch.randn(4)]], None),
        "turned": (Turned(), [[torch.randn(5, 16, dtype=torch.complex64), torch.randn(5, 2)] for _ in range(3)], None),
        "parts": (Parts(), [[torch.randn(n, 16) + shift] for n, shift in ((7, 0.1), (256, -0.1), (2, 0.5))], ({0: BATCH},)),
        "turns": (Turns(), [[torch.randn(9, 16)]], None),
        "library": (Library(), [[torch.randn(3, 40, 16)]], None),
        "operators": (Operators(), [[torch.randn(n, 16)] for n in (7, 256, 2)], ({0: torch.export.Dim("rows", min=2, max=256)},)),
        "slow": (Slow(), [[torch.randn(512, 512)]], None),
    }


def target(device):
    """The preset of inrush for the GPU that is there."""
    if device.type == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(device).lower()
    known = ("h100", "h200", "b200", "a100")
    return next((k for k in known if k in name), "h100" if torch.cuda.get_device_capability(device)[0] == 9 else "a100")


def make(folder, device):
    """Writes all packages."""
    start, aim = time.monotonic(), target(device)
    for name, (module, cases, shapes) in models().items():
        begin = time.monotonic()
        try:
            with torch.no_grad():
                program = torch.export.export(copy.deepcopy(module).eval(), tuple(cases[0]), dynamic_shapes=shapes)
                inrush.aot_compile(program, path(folder, name), targets=[aim])
                if name != "operators":
                    inrush.aot_compile(program, path(folder, name, "pt2"), targets=[aim], format="aoti")
            say(f"make {name} for {aim}", True, f"{time.monotonic() - begin:.1f} s")
        except Exception as error:
            say(f"make {name} for {aim}", False, last_line(error))
    print(f"made in {time.monotonic() - start:.1f} s", flush=True)


def path(folder, name, ending="inrush"):
    return os.path.join(folder, f"{name}.{ending}")


def last_line(error):
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(where[-1].filename)}:{where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {str(error).strip() or 'no text'}{place}"


# Comparisons.


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def off(got, want):
    """Norm of the difference over norm of the expected tensor."""
    if tuple(got.shape) != tuple(want.shape):
        return float("inf")
    got, want = got.double(), want.double()
    return float((got - want).norm() / (want.norm() or 1)) if want.numel() else 0.0


def eager(module, device, exact):
    made = copy.deepcopy(module).eval().to(device)
    return made.double() if exact else made


def wide(inputs, device, exact):
    return [x.to(device).double() if exact and x.is_floating_point() else x.to(device) for x in inputs]


def compared(got, module, inputs, device, floor=FLOOR):
    """The largest error of outputs, and whether it is small compared with that of eager in the same dtype."""
    with torch.no_grad():
        exact = leaves(eager(module, device, True)(*wide(inputs, device, True)))
        plain = leaves(eager(module, device, False)(*wide(inputs, device, False)))
    got, worst, right = leaves(got), 0.0, True
    if len(got) != len(exact):
        return float("inf"), False
    for g, e, p in zip(got, exact, plain):
        if not isinstance(g, torch.Tensor):
            right &= g == e
            continue
        right &= g.device == device and g.dtype == p.dtype and not g.requires_grad
        error, own = off(g, e), off(p, e)
        worst = max(worst, error)
        right &= error <= 4 * own + floor
    return worst, bool(right)


def check(name, module, inputs, device, loaded, floor=FLOOR):
    got = loaded(*[x.to(device) for x in inputs])
    error, right = compared(got, module, inputs, device, floor)
    say(name, right, f"error {error:.1e}")


def refuses(name, words, call):
    try:
        call()
    except Exception as error:
        text = str(error)
        say(name, all(w in text for w in words), f"{type(error).__name__}: {text[:300]}")
    else:
        say(name, False, "nothing was raised")


# Groups of checks. Each takes the folder of packages and the device.


def group_models(folder, device):
    all_models = models()
    for graphs in (False, True) if device.type == "cuda" else (False,):
        for name in ("digits", "transformer", "transformer_bf16", "transformer_f16", "residual", "rows"):
            module, cases, _ = all_models[name]
            try:
                loaded = inrush.load(path(folder, name), device=device, cuda_graphs=graphs)
                for k, inputs in enumerate(cases * 4):
                    got = loaded(*[x.to(device) for x in inputs])
                    error, right = compared(got, module, inputs, device)
                    if not right or k >= len(cases) * 3:
                        say(f"{name}.{k}{' graphs' if graphs else ''}", right, f"error {error:.1e}")
            except Exception as error:
                say(f"{name}{' graphs' if graphs else ''}", False, last_line(error))


def group_state(folder, device):
    for graphs in (False, True) if device.type == "cuda" else (False,):
        module, cases, _ = models()["cached"]
        exact = eager(module, device, True)
        loaded = inrush.load(path(folder, "cached"), device=device, cuda_graphs=graphs)
        worst = 0.0
        for inputs in cases:
            got = loaded(*[x.to(device) for x in inputs])
            with torch.no_grad():
                worst = max(worst, off(got, exact(*wide(inputs, device, True))))
        say(f"a cache that calls write{', graphs' if graphs else ''}", worst < 1e-5, f"error {worst:.1e} in {len(cases)} calls")
        kept = loaded.weights()
        say("weights() has the cache as it is", kept["position"].item() == len(cases) and kept["keys"].device == device, str(kept["position"]))
        loaded.update_weights({"out.bias": torch.zeros(64)})
        loaded.swap_weights()
        say("a swap keeps the cache", loaded.weights()["position"].item() == len(cases))
        loaded.update_weights({"position": torch.zeros(1, dtype=torch.int64)})
        loaded.swap_weights()
        say("an update of the cache replaces it", loaded.weights()["position"].item() == 0)


def close(name, got, want):
    """Compares a call with eager's results, dtypes included."""
    got, want = leaves(got), leaves(want)
    try:
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)
        say(name, all(g.device == w.device for g, w in zip(got, want)))
    except AssertionError as error:
        say(name, False, " ".join(str(error).split())[:300])


def group_complex(folder, device):
    module, cases, _ = models()["turned"]
    module = copy.deepcopy(module).eval().to(device)
    loaded = inrush.load(path(folder, "turned"), device=device)
    loaded.update_weights({"factor": module.factor})
    loaded.swap_weights()
    with torch.no_grad():
        for k, (z, x) in enumerate(cases):
            z, x = z.to(device), x.to(device)
            close(f"turned.{k}", loaded(z, x), module(z, x))
        strided, conjugate = cases[0][0].to(device).T.contiguous().T, cases[1][0].to(device).conj()
        close("turned, other strides", loaded(strided, x), module(strided, x))
        close("turned, a conjugate", loaded(conjugate, x), module(conjugate.resolve_conj(), x))
    refuses("turned, real numbers", ("complex64", "float32"), lambda: loaded(x, x))


def group_parts(folder, device):
    # PyTorch's recurrent layers round to TF32 otherwise.
    torch.backends.cudnn.allow_tf32 = False
    for name in ("parts", "turns", "library"):
        module, cases, _ = models()[name]
        module = copy.deepcopy(module).eval().to(device)
        loaded = inrush.load(path(folder, name), device=device)
        loaded.update_weights(dict(module.state_dict()))
        loaded.swap_weights()
        with torch.no_grad():
            for k, (x,) in enumerate(cases * 3):
                x = x.to(device)
                close(f"{name}.{k}", loaded(x), module(x))
            for _ in range(200):
                kept = loaded(x)
            close(f"{name}, the last of many calls", kept, module(x))
    if device.type == "cuda":
        side = torch.cuda.Stream(device)
        with torch.cuda.stream(side), torch.no_grad():
            close("library, on another stream", loaded(x), module(x))
        words = ("control flow, which the host decides",)
        refuses("turns, captured", words, lambda: inrush.load(path(folder, "turns"), device=device, cuda_graphs=True))


def group_operators(folder, device):
    module, cases, _ = models()["operators"]
    module = copy.deepcopy(module).eval().to(device)
    loaded = inrush.load(path(folder, "operators"), device=device)
    loaded.update_weights(dict(module.state_dict()))
    loaded.swap_weights()
    with torch.no_grad():
        for k, (x,) in enumerate(cases * 3):
            x = x.to(device)
            close(f"operators.{k}", loaded(x), module(x))
        for _ in range(200):
            kept, want = loaded(x), module(x)
        close("operators, the last of many calls", kept, want)
        if device.type == "cuda":
            side = torch.cuda.Stream(device)
            with torch.cuda.stream(side):
                close("operators, on another stream", loaded(x), module(x))


def group_layouts(folder, device):
    module, _, _ = models()["rows"]
    loaded = inrush.load(path(folder, "rows"), device=device)
    base = torch.randn(9, 96, 7)
    inputs = {
        "transposed": base.to(device).transpose(1, 2),
        "rows of more": torch.randn(12, 7, 96, device=device)[3:],
        "every second": torch.randn(5, 7, 192, device=device)[:, :, ::2],
        "expanded": torch.randn(1, 7, 96, device=device).expand(6, 7, 96),
        "not aligned": torch.randn(5 * 7 * 96 + 1, device=device)[1:].view(5, 7, 96),
        "negated when read": torch.randn(5, 7, 96, dtype=torch.complex64, device=device).conj().imag,
    }
    for name, x in inputs.items():
        try:
            error, right = compared(loaded(x), module, [x], device)
            say(f"an input that is {name}", right, f"error {error:.1e}")
        except Exception as error:
            say(f"an input that is {name}", False, last_line(error))
    views = inrush.load(path(folder, "views"), device=device)
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 4, device=device)
    got = views(x, y)
    want = Views()(x, y)
    say("outputs that are views have the right values", all(torch.equal(g, w) and g.stride() == w.stride() for g, w in zip(got, want)))
    if device.type == "cuda":
        say("an output that is an input is that tensor's memory", got[0].data_ptr() == x.data_ptr() and got[1].data_ptr() == x.data_ptr())
        say("views of an output share its memory", got[3].data_ptr() == got[2].data_ptr() + 16 and got[4].data_ptr() == got[2].data_ptr())
    writes = inrush.load(path(folder, "writes"), device=device)
    y = torch.randn(4, device=device)
    for name, x in (("row-major", torch.randn(6, 4, device=device)), ("transposed", torch.randn(4, 6, device=device).t())):
        try:
            want = x * 2 + y
            out = writes(x, y)
            say(f"an input that is written, {name}", torch.allclose(x, want) and torch.allclose(out, want + 1))
        except Exception as error:
            say(f"an input that is written, {name}", False, last_line(error))


def group_refusals(folder, device):
    loaded = inrush.load(path(folder, "digits"), device=device)
    other = "meta" if device.type == "cpu" else "cpu"
    refuses("a tensor of another device", (f"is on {other}", str(device), "`x`"), lambda: loaded(torch.randn(7, 64, device=other)))
    refuses("another dtype", ("`x`", "float64"), lambda: loaded(torch.randn(7, 64, device=device).double()))
    refuses("another rank", ("`x`", "dimensions"), lambda: loaded(torch.randn(64, device=device)))
    refuses("another size", ("63",), lambda: loaded(torch.randn(7, 63, device=device)))
    refuses("a size outside of the range", ("300", "1..=256"), lambda: loaded(torch.randn(300, 64, device=device)))
    refuses("a weight of another size", ("layers.0.bias",), lambda: loaded.update_weights({"layers.0.bias": torch.ones(3, device=device)}))
    refuses("a swap without an update", ("no new weights",), loaded.swap_weights)
    say("the package works after refusals", loaded(torch.randn(7, 64, device=device)).shape == (7, 10))
    if device.type == "cpu":
        return
    say("without a device the GPU is used where there is no target for CPUs", inrush.load(path(folder, "digits")).device == torch.device("cuda:0"))
    say("`cuda` is the current device", inrush.load(path(folder, "digits"), device="cuda").device.index == torch.cuda.current_device())
    refuses("a package without a target for CPUs", ("compiled for",), lambda: inrush.load(path(folder, "digits"), device="cpu"))
    refuses("a device that is not there", ("cuda:63",), lambda: inrush.load(path(folder, "digits"), device="cuda:63"))
    refuses("threads on a GPU", ("threads",), lambda: inrush.load(path(folder, "digits"), device=device, threads=2))
    if torch.cuda.device_count() > 1:
        second = torch.device("cuda:1")
        there = inrush.load(path(folder, "digits"), device=second)
        module, cases, _ = models()["digits"]
        check("a package on the second GPU, the first being current", module, cases[0], second, there)
        say("the current device stays", torch.cuda.current_device() == 0)
        refuses("a tensor of the other GPU", ("cuda:0", "cuda:1"), lambda: there(torch.randn(7, 64, device="cuda:0")))


def group_streams(folder, device):
    module, cases, _ = models()["slow"]
    (x,) = wide(cases[0], device, False)
    with torch.no_grad():
        want = eager(module, device, False)(x)
    for graphs in (False, True):
        note = " graphs" if graphs else ""
        loaded = inrush.load(path(folder, "slow"), device=device, cuda_graphs=graphs)
        for _ in range(4):
            loaded(x)
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)
        start = time.monotonic()
        y = loaded(x)
        issued = time.monotonic() - start
        torch.cuda.synchronize()
        took = time.monotonic() - start
        say(f"a call returns before the work is done{note}", issued < took / 4, f"{issued * 1e3:.2f} ms of {took * 1e3:.0f} ms")
        say(f"and its result is right{note}", off(y, want) < 1e-4, f"{off(y, want):.1e}")
        side = [torch.cuda.Stream() for _ in range(3)]
        worst = 0.0
        for k in range(30):
            stream = side[k % 3]
            with torch.cuda.stream(stream):
                torch.cuda._sleep(5_000_000)
                # The input is made by work of this stream, and the result read by it.
                given = x * 1.0
                result = loaded(given)
                del given
                shifted = result + 0
                del result
            torch.cuda.current_stream().wait_stream(stream)
            worst = max(worst, off(shifted, want))
        say(f"calls on several streams come after what writes their inputs{note}", worst < 1e-4, f"{worst:.1e}")
        wrong = []

        def work(loaded=loaded, wrong=wrong):
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(40):
                    if off(loaded(x * 1.0), want) > 1e-4:
                        wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        say(f"six threads, each on its stream{note}", not wrong and not any(t.is_alive() for t in threads), f"{len(wrong)} wrong")
    loaded = inrush.load(path(folder, "slow"), device=device)
    for _ in range(4):
        loaded(x)
    fixed, graph = x.clone(), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            loaded(fixed)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        out = loaded(fixed)
    fixed.copy_(x * 0.5)
    graph.replay()
    torch.cuda.synchronize()
    with torch.no_grad():
        want = eager(module, device, False)(x * 0.5)
    say("a caller captures a call with torch.cuda.graph", off(out, want) < 1e-4, f"{off(out, want):.1e}")


def group_memory(folder, device):
    module, cases, _ = models()["slow"]
    (x,) = wide(cases[0], device, False)
    loaded = inrush.load(path(folder, "slow"), device=device)
    for _ in range(8):
        y = loaded(x)
    del y
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = loaded(x)
    grown = torch.cuda.memory_allocated() - before
    say("an output is memory of PyTorch's allocator", grown == y.numel() * 4, f"{grown} bytes")
    del y
    peak = []
    for _ in range(200):
        loaded(x)
        peak.append(torch.cuda.memory_reserved())
    say("memory does not grow from call to call", peak[10] == peak[-1], f"{peak[10]} and {peak[-1]} bytes")
    free, _ = torch.cuda.mem_get_info()
    hoard = [torch.empty(1 << 28, dtype=torch.uint8, device=device) for _ in range(max(1, (free - (1 << 29)) >> 28))]
    del hoard
    kept = torch.cuda.memory_reserved()
    again = inrush.load(path(folder, "slow"), device=device)
    say("a package loads and runs where PyTorch has cached nearly all memory", off(again(x), loaded(x)) == 0.0, f"{kept >> 20} MiB are PyTorch's")
    wide_, _, _ = models()["rows"]
    rows = inrush.load(path(folder, "rows"), device=device)
    del again
    large = torch.randn(256, 7, 96, device=device)
    rows(large)
    torch.cuda.empty_cache()
    held = []
    try:
        while True:
            held.append(torch.empty(1 << 28, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:
        pass
    try:
        while True:
            held.append(torch.empty(1 << 14, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:
        pass
    try:
        big = [rows(large) for _ in range(2000)]
        say("lack of memory is PyTorch's error", False, f"{len(big)} calls had memory")
    except Exception as error:
        say("lack of memory is PyTorch's error", isinstance(error, torch.OutOfMemoryError), last_line(error)[:200])
    big = held = None
    # For eager's answer cuBLAS takes memory outside of PyTorch's cache.
    torch.cuda.empty_cache()
    small = torch.randn(3, 7, 96, device=device)
    error, right = compared(rows(small), wide_, [small], device)
    say("and calls go on afterwards", right, f"error {error:.1e}")
    output = loaded(x)
    want = output.clone()
    del loaded, rows
    torch.cuda.synchronize()
    say("an output outlives its package", torch.equal(output, want))


def sets_of(module, device, count):
    """Weights, and the model with them."""
    torch.manual_seed(5)
    made = []
    for _ in range(count):
        values = {n: torch.randn_like(p) / p.shape[-1] ** 0.5 for n, p in module.state_dict().items()}
        changed = copy.deepcopy(module)
        changed.load_state_dict(values)
        made.append((values, eager(changed, device, True)))
    return made


def group_weights(folder, device):
    module, _, _ = models()["digits"]
    x = torch.randn(33, 64, device=device)
    for graphs in (False, True) if device.type == "cuda" else (False,):
        note = " graphs" if graphs else ""
        loaded = inrush.load(path(folder, "digits"), device=device, cuda_graphs=graphs)
        sets = sets_of(module, device, 3)
        wanted = [m(x.double()).detach() for _, m in sets]
        for k, (values, _) in enumerate(sets):
            given = {n: v.to(device) if k % 2 else v for n, v in values.items()}
            loaded.update_weights(given, all=True)
            loaded.swap_weights()
            error = max(off(loaded(x), wanted[k]) for _ in range(4))
            say(f"weights from {'the GPU' if k % 2 else 'the CPU'}{note}", error < 1e-5, f"{error:.1e}")
        kept = loaded.weights()
        say(f"weights() gives them back{note}", all(torch.equal(kept[n], sets[-1][0][n].to(device)) for n in kept))
        loaded.update_weights({"layers.0.bias": torch.zeros(128)})
        loaded.discard_update()
        say(f"a discarded update changes nothing{note}", off(loaded(x), wanted[2]) < 1e-5)
        strided = {n: v.to(device).t().contiguous().t() if v.dim() == 2 else v for n, v in sets[0][0].items()}
        loaded.update_weights(strided)
        loaded.swap_weights()
        say(f"weights of other strides{note}", off(loaded(x), wanted[0]) < 1e-5)
        over, wrong, calls = threading.Event(), [], []

        def work(loaded=loaded, wrong=wrong, over=over, calls=calls, wanted=wanted):
            n = 0
            context = torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else torch.no_grad()
            with context:
                while not over.is_set():
                    y = loaded(x)
                    n += 1
                    if min(off(y, w) for w in wanted) > 1e-5:
                        wrong.append(min(off(y, w) for w in wanted))
            calls.append(n)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for k in range(60):
            values = sets[k % 3][0]
            loaded.update_weights({n: v.to(device) for n, v in values.items()} if k % 2 else values, all=True)
            loaded.swap_weights()
        over.set()
        for t in threads:
            t.join(60)
        say(f"60 swaps under 4 threads{note}", not wrong and len(calls) == 4, f"{sum(calls)} calls, {len(wrong)} of mixed weights")


# Packages of format `aoti`.


def aoti(folder, name, device, runners=1):
    index = device.index if device.type == "cuda" else -1
    loader = torch._C._aoti.AOTIModelPackageLoader(path(folder, name, "pt2"), "model", False, runners, index)
    return AOTICompiledModel(loader)


def group_aoti(folder, device):
    all_models = models()
    for name in ("digits", "transformer", "transformer_bf16", "transformer_f16", "residual", "rows"):
        module, cases, _ = all_models[name]
        try:
            loaded = aoti(folder, name, device)
            for k, inputs in enumerate(cases):
                got = loaded(*[x.to(device) for x in inputs])
                if name == "rows":
                    got["rest"] = (*got["rest"][:2], int(got["rest"][2]))
                error, right = compared(got, module, inputs, device)
                say(f"aoti {name}.{k}", right, f"error {error:.1e}")
        except Exception as error:
            say(f"aoti {name}", False, last_line(error))
    module, cases, _ = all_models["cached"]
    exact, loaded = eager(module, device, True), aoti(folder, "cached", device)
    worst = 0.0
    for inputs in cases:
        with torch.no_grad():
            worst = max(worst, off(loaded(*[x.to(device) for x in inputs]), exact(*wide(inputs, device, True))))
    say("aoti: a cache that calls write", worst < 1e-5, f"{worst:.1e}")
    x, y = torch.randn(6, 4, device=device), torch.randn(6, 4, device=device)
    got, want = aoti(folder, "views", device)(x, y), Views()(x, y)
    say("aoti: outputs that are views", all(torch.equal(g, w) for g, w in zip(got, want)))
    y = torch.randn(4, device=device)
    for title, x in (("row-major", torch.randn(6, 4, device=device)), ("transposed", torch.randn(4, 6, device=device).t())):
        want = x * 2 + y
        (out,) = aoti(folder, "writes", device).loader.run([x, y])
        say(f"aoti: an input that is written, {title}", torch.allclose(x, want) and torch.allclose(out, want + 1))
    loaded = aoti(folder, "digits", device)
    say("aoti: metadata", loaded.get_metadata()["AOTI_DEVICE_KEY"] == device.type, str(loaded.get_metadata()))
    other = "cpu" if device.type == "cuda" else "meta"
    for title, x in (("device", torch.randn(7, 64, device=other)), ("dtype", torch.randn(7, 64, device=device).double()), ("size", torch.randn(7, 63, device=device))):
        refuses(f"aoti: another {title} (the text is on stderr)", (), lambda x=x: loaded.loader.run([x]))
    say("aoti: it works after refusals", loaded(torch.randn(7, 64, device=device)).shape == (7, 10))
    start = time.monotonic()
    by_loader = torch._inductor.aoti_load_package(path(folder, "digits", "pt2"))
    module, cases, _ = all_models["digits"]
    check(f"aoti_load_package ({time.monotonic() - start:.1f} s)", module, cases[0], device, by_loader)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        second = torch.device("cuda:1")
        check("aoti: device_index=1", module, cases[0], second, aoti(folder, "digits", second))


def group_aoti_streams(folder, device):
    module, cases, _ = models()["slow"]
    (x,) = wide(cases[0], device, False)
    with torch.no_grad():
        want = eager(module, device, False)(x)
    loaded = aoti(folder, "slow", device, runners=4)
    for _ in range(4):
        (y,) = loaded.loader.run([x])
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    start = time.monotonic()
    (y,) = loaded.loader.run([x])
    issued = time.monotonic() - start
    torch.cuda.synchronize()
    took = time.monotonic() - start
    say("aoti: a call returns before the work is done", issued < took / 4, f"{issued * 1e3:.2f} ms of {took * 1e3:.0f} ms")
    say("aoti: and its result is right", off(y, want) < 1e-4)
    side, worst = [torch.cuda.Stream() for _ in range(3)], 0.0
    for k in range(30):
        stream = side[k % 3]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(5_000_000)
            (y,) = loaded.loader.run([x * 1.0])
            shifted = y + 0
            del y
        torch.cuda.current_stream().wait_stream(stream)
        worst = max(worst, off(shifted, want))
    say("aoti: calls on the current stream", worst < 1e-4, f"{worst:.1e}")
    before = torch.cuda.memory_allocated()
    (y,) = loaded.loader.run([x])
    say("aoti: an output is memory of PyTorch's allocator", torch.cuda.memory_allocated() - before == y.numel() * 4)


def group_aoti_constants(folder, device):
    module, _, _ = models()["digits"]
    x = torch.randn(33, 64, device=device)
    loaded = aoti(folder, "digits", device, runners=4)
    sets = sets_of(module, device, 3)
    wanted = [m(x.double()).detach() for _, m in sets]
    say("aoti: names", sorted(loaded.get_constant_fqns()) == sorted(module.state_dict()))
    for k, (values, _) in enumerate(sets):
        try:
            given = {n: v.to(device) for n, v in values.items()}
            loaded.load_constants(given, check_full_update=True)
            say(f"aoti: load_constants {k}", off(loaded(x), wanted[k]) < 1e-5, f"{off(loaded(x), wanted[k]):.1e}")
        except Exception as error:
            say(f"aoti: load_constants {k}", False, last_line(error))
    part = {"layers.0.bias": sets[0][0]["layers.0.bias"].to(device)}
    loaded.load_constants(part, check_full_update=False)
    mixed = copy.deepcopy(module)
    mixed.load_state_dict({**sets[2][0], **{n: v.cpu() for n, v in part.items()}})
    say("aoti: a part of the constants", off(loaded(x), eager(mixed, device, True)(x.double())) < 1e-5)
    refuses("aoti: a constant of another size (the text is on stderr)", (), lambda: loaded.load_constants({"layers.0.bias": torch.ones(3, device=device)}, check_full_update=False))
    with tempfile.TemporaryDirectory() as there:
        import zipfile

        with zipfile.ZipFile(path(folder, "digits", "pt2")) as package:
            package.extractall(there)
        (top,) = os.listdir(there)
        library = os.path.join(there, top, "data/aotinductor/model/inrush.wrapper.so")
        runner = torch._C._aoti.AOTIModelContainerRunnerCuda(library, 1, str(device)) if device.type == "cuda" else torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)

        def run():
            return runner.run([x])[0]

        first = run()
        refuses("aoti: a swap without an update (the text is on stderr)", (), runner.swap_constant_buffer)
        values = {n: v.to(device) for n, v in sets[0][0].items()}
        runner.update_constant_buffer(values, True, True)
        say("aoti: an update of the inactive set changes no call", torch.equal(run(), first))
        runner.swap_constant_buffer()
        say("aoti: a swap", off(run(), wanted[0]) < 1e-5)
        runner.update_constant_buffer({n: v.to(device) for n, v in sets[1][0].items()}, True, True)
        runner.update_constant_buffer({n: v.to(device) for n, v in sets[2][0].items()}, False, True)
        say("aoti: an update of the active set", off(run(), wanted[2]) < 1e-5)
        runner.swap_constant_buffer()
        say("aoti: it left the inactive set as it was", off(run(), wanted[1]) < 1e-5)
        runner.update_constant_buffer(values, True, True)
        runner.free_inactive_constant_buffer()
        refuses("aoti: a swap after the inactive set was freed (the text is on stderr)", (), runner.swap_constant_buffer)
        blob = b""
        for value in sets[0][0].values():
            raw = value.numpy().tobytes()
            blob += raw + bytes(-len(raw) % 64)
        with open(os.path.join(there, "blob"), "wb") as file:
            file.write(blob)
        try:
            runner.update_constant_buffer_from_blob(os.path.join(there, "blob"))
            say("aoti: a blob of constants", off(run(), wanted[0]) < 1e-5)
        except Exception as error:
            say("aoti: a blob of constants", False, last_line(error))
    managed(loaded, module, sets, x, device)
    threads_of(loaded, sets, wanted, x, device)


def managed(loaded, module, sets, x, device):
    """Constants in memory of the caller's."""
    values = {n: v.to(device).clone() for n, v in sets[1][0].items()}
    try:
        loaded.load_constants(values, check_full_update=True, user_managed=True)
        say("aoti: constants of the caller", off(loaded(x), sets[1][1](x.double())) < 1e-5)
        for v in values.values():
            v.mul_(0.5)
        if device.type == "cpu":
            return
        halved = copy.deepcopy(module)
        halved.load_state_dict({n: v.cpu() for n, v in values.items()})
        want = eager(halved, device, True)(x.double())
        say("aoti: calls read what the caller wrote to them", off(loaded(x), want) < 1e-5)
        del values
        torch.cuda.empty_cache()
        say("aoti: the container keeps them", off(loaded(x), want) < 1e-5)
    except Exception as error:
        say("aoti: constants of the caller", False, last_line(error))


def threads_of(loaded, sets, wanted, x, device):
    """Calls from threads while constants change."""
    loaded.load_constants({n: v.to(device) for n, v in sets[0][0].items()}, check_full_update=True)
    over, wrong, calls = threading.Event(), [], []

    def work():
        n = 0
        context = torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else torch.no_grad()
        with context:
            while not over.is_set():
                (y,) = loaded.loader.run([x])
                n += 1
                if min(off(y, w) for w in wanted) > 1e-5:
                    wrong.append(1)
        calls.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for k in range(40):
        loaded.load_constants({n: v.to(device) for n, v in sets[k % 3][0].items()}, check_full_update=True)
    over.set()
    for t in threads:
        t.join(60)
    say("aoti: 40 updates under 4 threads", not wrong and len(calls) == 4, f"{sum(calls)} calls, {len(wrong)} of mixed constants")


# Times.


def times(call, seconds=1.5):
    """Median microseconds of a call with its work done, and of its issue alone."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    whole, issue, end = [], [], time.monotonic() + seconds
    while time.monotonic() < end or len(whole) < 20:
        start = time.perf_counter()
        call()
        issued = time.perf_counter()
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - start)
        issue.append(issued - start)
    return statistics.median(whole) * 1e6, statistics.median(issue) * 1e6


def measured(zoo):
    """Models whose latency is measured."""
    own = {"transformer of 6 layers": (Transformer(6, 256), (torch.randint(0, 1000, (1, 64)),)), "residual": (Residual(64), (torch.randn(1, 3, 32, 32),))}
    if zoo:
        sys.path.insert(0, zoo)
        try:
            from zoo import ZOO
        except Exception as error:
            print(f"no zoo: {last_line(error)}", flush=True)
            ZOO = {}
        for name in ("resnet18", "gpt2", "llama_8l", "vit_tiny"):
            if name in ZOO and sum(n in ZOO for n in own) < 2:
                try:
                    own[name] = ZOO[name]()
                except Exception as error:
                    print(f"no {name}: {last_line(error)}", flush=True)
    return own


def group_latency(folder, device, zoo=None):
    torch.manual_seed(0)
    for name, (module, inputs) in measured(zoo).items():
        try:
            at = path(folder, f"latency_{name.replace(' ', '_')}")
            with torch.no_grad():
                program = torch.export.export(copy.deepcopy(module).eval(), inputs)
            inrush.aot_compile(program, at, targets=[target(device)])
            given = [x.to(device) for x in inputs]
            there = eager(module, device, False)
            lines = {}
            with torch.no_grad():
                want = leaves(there(*given))
                lines["eager"] = times(lambda there=there, given=given: there(*given))
                for graphs in (False, True):
                    loaded = inrush.load(at, device=device, cuda_graphs=graphs)
                    note = ", graphs" if graphs else ""
                    lines[f"package{note}"] = times(lambda loaded=loaded, given=given: loaded(*given))
                    lines[f"package, flat{note}"] = times(lambda loaded=loaded, given=given: loaded.flat(*given))
                    got = leaves(loaded(*given))
                compiled = torch.compile(there, backend="inrush")
                lines["torch.compile(inrush)"] = times(lambda compiled=compiled, given=given: compiled(*given))
                torch._dynamo.reset()
                compiled = torch.compile(there, backend="inrush", options={"cudagraphs": True})
                lines["torch.compile(inrush), graphs"] = times(lambda compiled=compiled, given=given: compiled(*given))
            worst = max(off(g, w) for g, w in zip(got, want))
            say(f"latency {name}", worst < 1e-2, f"error to eager {worst:.1e}")
            for title, (whole, issue) in lines.items():
                print(f"      {title:32} {whole:9.1f} us, issued in {issue:9.1f} us", flush=True)
        except Exception as error:
            say(f"latency {name}", False, last_line(error))


# Loads a package where Triton cannot be imported, and calls it.
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch, inrush
path, data, device = sys.argv[1:]
inputs, wanted = torch.load(data)
got = inrush.load(path, device=device)(*[x.to(device) for x in inputs])
for g, w in zip(torch.utils._pytree.tree_leaves(got), wanted, strict=True):
    torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)
assert sys.modules["triton"] is None
"""


def group_userkernels(folder, device):
    """Triton kernels of users. Takes `exported_kernels.py` and `user_kernels.py` from this folder or from `tests`."""
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tests"))
    import exported_kernels

    aim = target(device)
    for name, case in exported_kernels.CASES.items():
        try:
            program, plain, calls = exported_kernels.exported(*case, device=device)
            file = path(folder, f"kernels {name}")
            inrush.aot_compile(program, file, targets=[aim])
            on_host = name in ("in a branch", "of found")
            for graphs in (False, True):
                if graphs and on_host:
                    refuses(f"kernels {name}, graphs", ["graph"], lambda file=file: inrush.load(file, device=device, cuda_graphs=True))
                    continue
                # Calls of a graph write its state too.
                loaded, there = inrush.load(file, device=device, cuda_graphs=graphs), copy.deepcopy(plain)
                worst = 0.0
                for inputs in calls * (4 if graphs else 1):
                    theirs, ours = [x.clone() for x in inputs], [x.clone() for x in inputs]
                    with torch.no_grad():
                        wanted, got = leaves(there(*theirs)), leaves(loaded(*ours))
                    worst = max(worst, *(off(g, w) for g, w in zip((*got, *ours), (*wanted, *theirs), strict=True)))
                say(f"kernels {name}{', graphs' if graphs else ''}", worst < 1e-5, f"error {worst:.1e}")
        except Exception as error:
            say(f"kernels {name}", False, last_line(error))
    program, plain, calls = exported_kernels.exported(*exported_kernels.CASES["between others, dynamic"], device=device)
    file = path(folder, "kernels alone")
    inrush.aot_compile(program, file, targets=[aim])
    with torch.no_grad():
        wanted = [t.cpu() for t in leaves(plain(*calls[0]))]
    torch.save(([x.cpu() for x in calls[0]], wanted), f"{file}.data")
    command = [sys.executable, "-c", WITHOUT_TRITON, file, f"{file}.data", str(device)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    say("kernels without Triton", done.returncode == 0, done.stderr.strip()[-300:])
    inrush.aot_compile(program, path(folder, "kernels alone", "pt2"), targets=[aim], format="aoti")
    got = leaves(aoti(folder, "kernels alone", device)(*calls[0]))
    worst = max(off(g.cpu(), w) for g, w in zip(got, wanted, strict=True))
    say("aoti kernels", worst < 1e-5, f"error {worst:.1e}")
    group_tuned_kernels(folder, device, exported_kernels)


def group_tuned_kernels(folder, device, exported_kernels):
    """A configuration that is far slower than the other, the first one, is not taken where both were measured."""
    n = 1 << 24
    module = exported_kernels.Module(lambda _, x, y: exported_kernels.tuned(x)).to(device)
    x = torch.randn(n, device=device)
    program = torch.export.export(module, (x, x))
    file = path(folder, "kernels tuned")
    inrush.aot_compile(program, file, targets=[target(device)])
    loaded = inrush.load(file, device=device)
    say("kernels tuned", off(loaded(x, x), x * 3) < 1e-6)
    if torch.cuda.get_device_capability(device)[0] == 9:
        with zipfile.ZipFile(file) as package:
            manifest = package.read("inrush.json").decode()
        say("kernels tuned by measurement", "configuration 2 of 2" in manifest and "the fastest here" in manifest)
    whole, issue = times(lambda: loaded(x, x))
    eager, _ = times(lambda: x * 3)
    print(f"      tuned kernel, 64 MiB {whole:9.1f} us, issued in {issue:9.1f} us; eager's product {eager:9.1f} us", flush=True)
    small = exported_kernels.Module(lambda m, x, y: exported_kernels.in_order(exported_kernels.Kernels, m, x, y)).to(device)
    x, y = torch.randn(7, 18, device=device), torch.randn(7, 18, device=device)
    program, file = torch.export.export(small, (x, y)), path(folder, "kernels small")
    inrush.aot_compile(program, file, targets=[target(device)])
    for title, call in {
        "eager, launched by Triton": small,
        "package": inrush.load(file, device=device),
        "package, graphs": inrush.load(file, device=device, cuda_graphs=True),
    }.items():
        with torch.no_grad():
            whole, issue = times(lambda call=call: call(x, y))
        print(f"      four small kernels: {title:26} {whole:9.1f} us, issued in {issue:9.1f} us", flush=True)


GROUPS = ("models", "state", "complex", "parts", "operators", "layouts", "refusals", "userkernels", "weights", "streams", "memory", "aoti", "aoti_streams", "aoti_constants", "latency")
# Groups that need no GPU.
ANYWHERE = ("models", "state", "complex", "parts", "operators", "layouts", "refusals", "weights", "aoti", "aoti_constants")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all without one")
    parser.add_argument("--folder")
    parser.add_argument("--device", default="cuda:0", type=torch.device)
    parser.add_argument("--zoo", metavar="FOLDER")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    if a.inside:
        (group,) = a.groups
        try:
            extra = (a.zoo,) if group == "latency" else ()
            globals()["make" if group == "make" else f"group_{group}"](a.folder, a.device, *extra)
        except Exception as error:
            traceback.print_exc()
            say(f"group {group}", False, last_line(error))
        print(f"{failures} failed in {group}", flush=True)
        # The interpreter's end is not what is checked.
        sys.stdout.flush()
        sys.exit(min(failures, 99))
    groups = a.groups or (GROUPS if a.device.type == "cuda" else ANYWHERE)
    folder = a.folder or tempfile.mkdtemp(prefix="inrush-load-check-")
    os.makedirs(folder, exist_ok=True)
    failed = 0
    for group in ("make", *groups):
        start = time.monotonic()
        command = [sys.executable, os.path.abspath(__file__), group, "--inside", "--folder", folder, "--device", str(a.device)]
        command += ["--zoo", a.zoo] if a.zoo else []
        try:
            status = subprocess.run(command, timeout=SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            status = f"no end in {SECONDS} s"
        if not isinstance(status, int) or status < 0 or status > 99:
            print(f"FAIL  group {group}: the process ended with {status}", flush=True)
            status = 1
        failed += status
        print(f"-- {group}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"{failed} failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
