"""Graphs as source: compiles models, writes the source of each graph and what it gives. Run by `test_source.py`.

usage: printed.py FOLDER [interpreted]

Each graph gets a folder with `source.py`, which `run_printed.py` runs, and `case.pt`: inputs, outputs of the graph run eagerly
(of random numbers: those of the compiled graph), and inputs after the call. With `interpreted` graphs are compiled for a GPU that is
not there. Prints a line of JSON for each model: `{"name", "graphs", "refused"}`.
"""

import copy
import json
import os
import subprocess
import sys

FOLDER = sys.argv[1]
INTERPRETED = sys.argv[2:] == ["interpreted"]
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["INRUSH_INTERPRET"] = "cuda:h100"

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import inrush
from conftest import tensors
from inrush import dynamo_backend, source
from test_models import MODELS

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANDOM = ("dropout",)


class Recorder:
    """A compiled graph that notes the first call: inputs, the outputs that they give eagerly, inputs after it."""

    _boxed_call = True
    enters_python = True

    def __init__(self, compiled, gm, name):
        self.compiled, self.gm, self.name = compiled, gm, name
        self.case = None

    def report(self):
        return self.compiled.report()

    def __call__(self, *args):
        if len(args) == 1 and isinstance(args[0], list):
            inputs = list(args[0])
            args[0].clear()
        else:
            inputs = list(args)
        first = self.case is None
        if first:
            before = copy_all(inputs)
            state = torch.get_rng_state()
        outputs = self.compiled(*inputs)
        if first:
            if self.name.startswith(RANDOM):
                reference, after = list(outputs), inputs
            else:
                after = copy_all(before)
                reference = list(pytree.tree_leaves(self.gm(*after)))
            self.case = (before, *copy_together(reference, after), state)
        return outputs


def copy_all(values):
    """Copies of inputs, which keep what shares memory."""
    return copy.deepcopy([v.detach() if isinstance(v, torch.Tensor) else v for v in values])


def copy_together(outputs, inputs):
    """Copies of outputs and inputs; outputs in the memory of inputs stay there."""
    both = copy_all([*outputs, *inputs])
    return both[: len(outputs)], both[len(outputs) :]


def write(name, text, case):
    folder = os.path.join(FOLDER, name)
    os.makedirs(folder)
    with open(os.path.join(folder, "source.py"), "w", encoding="utf-8") as out:
        out.write(text)
    torch.save(case, os.path.join(folder, "case.pt"))


def say(name, graphs, refused=None):
    print(json.dumps({"name": name, "graphs": graphs, "refused": refused}), flush=True)


def record(name, f, *args, dynamic=None, backward=False, options=None):
    """Compiles and calls a function, and writes its graphs."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    recorders = []
    compile_native = dynamo_backend.compile_native

    def recorded(gm, options, report, later=False):
        compiled = compile_native(gm, options, report, later)
        recorders.append(Recorder(compiled, gm, name))
        return recorders[-1]

    dynamo_backend.compile_native = recorded
    try:
        compiled = torch.compile(f, backend="inrush", options={"strict": True, "cache": False, **(options or {})}, dynamic=dynamic)
        out = compiled(*args)
        if backward:
            sum(t.float().square().mean() for t in tensors(out)).backward()
    finally:
        dynamo_backend.compile_native = compile_native
    try:
        texts = [source.print_graph(r, "graph") for r in recorders]
    except inrush.UnsupportedError as error:
        say(name, 0, str(error))
        return
    for k, (r, text) in enumerate(zip(recorders, texts)):
        write(f"{name} {k}", text, r.case)
    say(name, len(texts))


def export(name, model, args, dynamic_shapes=None, target=None):
    """Exports a model, has the command print it, and writes what it gives eagerly."""
    folder = os.path.join(FOLDER, f"{name} archive")
    os.makedirs(folder)
    torch.manual_seed(0)
    program = torch.export.export(model, args, dynamic_shapes=dynamic_shapes)
    archive = os.path.join(folder, "model.pt2")
    torch.export.save(program, archive)
    tool = os.path.join(REPOSITORY, "target", "release", "inrush")
    command = [tool, "compile", archive, "--emit", "python", "-o", os.path.join(folder, "source.py")]
    done = subprocess.run(command + (["--target", "h100"] if INTERPRETED else []), capture_output=True, text=True)
    if done.returncode:
        say(f"{name} archive", 0, done.stderr)
        return
    before = copy_all(pytree.tree_leaves(args))
    after = copy.deepcopy(args)
    with torch.no_grad():
        outputs = pytree.tree_leaves(model(*after))
    case = (before, *copy_together(outputs, pytree.tree_leaves(after)), torch.get_rng_state())
    torch.save(case, os.path.join(folder, "case.pt"))
    say(f"{name} archive", 1)


def views(x):
    return x[1:, ::2], x.t(), (x * 2).t(), x.view(-1)[3:9] + 1, (x + 1)[1:], x


def written(x, y):
    x.add_(1)
    y[1:].mul_(x[1:])
    return (x @ y.t()).sum(), x.t() * 2


def expanded(x):
    return (x[:, :1].expand(-1, 9) * 2).sum(1), x[:1].expand(4, -1)


def called(x):
    return torch.linalg.inv(x @ x.t() + 5 * torch.eye(7)) + 1, *torch.linalg.slogdet(x @ x.t() + 5 * torch.eye(7))


def data_dependent(x):
    return x[x[:, 0] > 0] * 2, x.nonzero() + 1


def sorting(x):
    return x.sort(-1)[0] + 1, x.topk(3)[1], x.argsort(0)


def halves(x):
    x = x.bfloat16()
    return (x @ x.t()).softmax(-1), x.sum(0), x.to(torch.float16) * 2


def constants(x):
    table = torch.tensor([0.5, -1.5, float("inf"), 2.25])
    return table[(x[:, 0] > 0).long()] + torch.arange(7), torch.full((2, 3), 7, dtype=torch.int32), torch.tensor(True)


def indices(x, i):
    return x[i] + 1, F.embedding(i, x), x.index_add(0, i, torch.ones(4, 18))


def integers(x, n: int):
    return x[: n // 2] * n, x.reshape(n, -1).sum(1), n + 1


def complex_numbers(x):
    z = torch.complex(x, x + 1)
    return (z * z.conj()).real, torch.view_as_real(z * 2)


def empty(x):
    return x[:0] + 1, x[:0].sum(), torch.cat([x, x[:0]]) * 2


def grouped(x):
    torch.manual_seed(3)
    return F.conv2d(x, torch.ones(8, 2, 3, 3), stride=2, dilation=2, padding=3, groups=2), F.conv_transpose2d(x, torch.ones(4, 3, 2, 2), stride=2)


class Library(nn.Module):
    """Functions of the library, where results are the same whatever computes them."""

    def forward(self, x):
        a = x @ x.t() + 5 * torch.eye(x.shape[0])
        spectrum = torch.fft.fft2(x + 1j * x.flip(0), norm="ortho")
        half = torch.fft.rfft(x)
        # Values that differ: eager's order of equal ones is its own.
        long = (x.reshape(1, -1) * torch.linspace(1, 2, 50)[:, None]).reshape(1, -1)
        q, r = torch.linalg.qr(x.t())
        values, vectors = torch.linalg.eigh(a)
        u, s, v = torch.linalg.svd(x, full_matrices=False)
        return (
            *long.sort(dim=1, stable=True), *long.topk(600, dim=1, largest=False), q @ r, r.abs(), vectors * values @ vectors.t(), u * s @ v,
            torch.linalg.lu_factor(a)[0], *x.sort(dim=1, descending=True, stable=True), *x.topk(3, dim=0), torch.linalg.inv(a) + 1, torch.linalg.solve(a, x), torch.linalg.det(a), torch.linalg.cholesky(a),
            *torch.linalg.slogdet(a), torch.linalg.eigvalsh(a), torch.linalg.svdvals(x), torch.matrix_exp(x[:, :7] / 9), torch.view_as_real(spectrum),
            torch.fft.irfft(half * 2, n=18), torch.linalg.solve_triangular(a, x, upper=True),
        )  # fmt: skip


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        self.count.add_(x.sum(0))
        return self.linear(x) + self.count


def main():
    torch.manual_seed(0)
    x, y, ids = torch.randn(7, 18), torch.randn(7, 18), torch.tensor([1, 6, 0, 3])
    small = {"attention", "rotary"} if INTERPRETED else set(MODELS)
    for name, (make, inputs) in MODELS.items():
        if name not in small:
            continue
        model = make().eval()
        with torch.no_grad():
            record(name, model, inputs(3))
        if name in ("convolutional", "attention"):
            record(f"{name} training", make().train(), inputs(2), backward=True)
        with torch.no_grad():
            export(name, model, (inputs(2),), ({0: torch.export.Dim.AUTO},))
    mlp = nn.Sequential(nn.Linear(18, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    record("mlp", mlp, x, backward=True)
    for f, args in ((views, (x,)), (written, (x.clone(), y.clone())), (expanded, (x,)), (called, (x,)), (sorting, (x,)), (halves, (x,))):
        record(f.__name__, f, *args)
        record(f"{f.__name__} dynamic", f, *copy.deepcopy(args), dynamic=True)
    record("constants", constants, x)
    record("indices", indices, x, ids)
    record("integers", integers, x, 7, dynamic=True)
    record("complex", complex_numbers, x)
    record("empty", empty, x)
    record("dropout", lambda x: (F.dropout(x, 0.5), torch.rand_like(x) + 1), x)
    if INTERPRETED:
        record("maps", lambda x: x.t().contiguous(), torch.randn(128, 128).bfloat16(), options={"pointers": "map"})
    else:
        record("grouped", grouped, torch.randn(2, 4, 9, 9))
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            record("data", data_dependent, x)
    export("mlp", mlp.eval(), (x,), ({0: torch.export.Dim("batch", min=2, max=64)},))
    if not INTERPRETED:
        export("library", Library(), (x,))
    export("counter", Counter(), (torch.randn(4, 3),))


main()
