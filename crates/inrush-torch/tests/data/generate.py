"""Writes the small archives of this folder: `python generate.py`, with torch 2.11 or newer.

Each archive is about one part of the format. Names of source files are shortened, so that archives do not depend on where
they were written.
"""

import collections
import os
import re

import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, save

HERE = os.path.dirname(os.path.abspath(__file__))
FRAME = re.compile(r'File "([^"]*)"')


def shorten(match):
    path = match.group(1)
    at = path.find("site-packages/")
    return 'File "%s"' % (path[at + 14 :] if at >= 0 else os.path.basename(path))


def write(name, module, args, kwargs=None, decompose=False, **options):
    program = export(module.eval(), args, kwargs or {}, **options)
    if decompose:
        program = program.run_decompositions({})
    for graph in [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]:
        for node in graph.graph.nodes:
            node.meta.pop("nn_module_stack", None)
            node.meta.pop("source_fn_stack", None)
            if node.meta.get("stack_trace"):
                node.meta["stack_trace"] = FRAME.sub(shorten, node.meta["stack_trace"])
    path = os.path.join(HERE, name + ".pt2")
    save(program, path)
    print(f"{name}: {os.path.getsize(path)} bytes, {program.range_constraints}, {program._guards_code}")


class Weights(torch.nn.Module):
    """Every kind of weight: tied and transposed parameters, views of one storage, buffers, a constant."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.tied = self.first
        self.turned = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
        storage = torch.arange(8, dtype=torch.float64)
        self.register_buffer("head", storage[:4])
        self.register_buffer("tail", storage[4:], persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count.add_(1)
        y = x * self.first + self.tied * self.turned
        return y + (self.head + self.tail).sum() + torch.tensor([1.0, 2.0, 3.0])


Pair = collections.namedtuple("Pair", ["a", "b"])
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="pair")


class Nested(torch.nn.Module):
    """Nested inputs and outputs, inputs that export makes constants."""

    def forward(self, x, items, pair, scale, mode=None, *, mask, flag=True):
        y = x * scale + items[0] + items[1]["k"]
        parts = torch.split(y, 1)
        return {"sum": pair.a + pair.b, "parts": list(parts)}, Pair(y * mask, None), 3, 2.5


class Sizes(torch.nn.Module):
    """A symbolic size, another that is twice it, arithmetic on both."""

    def forward(self, x, y):
        z = y.view(x.shape[0], 2, -1)
        return z + x.shape[0], x.shape[0] * 2 + 1


class Conditions(torch.nn.Module):
    """Conditions on sizes that export turns into guards."""

    def forward(self, x, y):
        torch._check(x.shape[0] % 3 != 0)
        return x[: x.shape[0] // 2] + y


class Data(torch.nn.Module):
    """Sizes that are read from data."""

    def forward(self, x, n):
        k = n.item()
        torch._check(k >= 1)
        torch._check(k <= x.shape[0])
        return x[:k].sum(), torch.nonzero(x)


class Modes(torch.nn.Module):
    """Graphs inside graphs that only set a mode."""

    def forward(self, x):
        with torch.no_grad():
            a, b = (x + 1).chunk(2)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = a @ b.t()
        return c * x.sum()


class Branch(torch.nn.Module):
    """A branch on data: a higher-order operator with two graphs."""

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


class Loops(torch.nn.Module):
    """Control flow within control flow, and sizes that data decide within it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(1.0, 8.0))

    def forward(self, x, n):
        def chosen(x):
            at = torch.nonzero(x > 0).squeeze(1)
            return torch.cond(x.max() > 2, lambda x: x * self.scale + at.sum(), lambda x: x + 10, (x,))

        def turn(i, x):
            return i + 1, torch.cond(x.sum() > 0, chosen, lambda x: x + 3, (x,))

        return while_loop(lambda i, x: i < n, turn, (torch.zeros_like(n), x))


class Scans(torch.nn.Module):
    """A scan over a symbolic number of slices, with functions whose results data decide about before and after it."""

    def forward(self, x):
        at = torch.nonzero(x.sum(1) > 0).squeeze(1)
        total, sums = scan(lambda h, x: (h * 0.5 + x, (h * x).sum()), torch.zeros(4), x)
        return x[at] + total, sums, torch.unique(x.round().to(torch.int64))


class Writes(torch.nn.Module):
    """Writes to a buffer and to an input, in functional form."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x, out):
        self.total.add_(x.sum(0))
        out.copy_(x * 2)
        return self.total.mean()


@torch.library.custom_op("nowhere::twice", mutates_args=())
def twice(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x * times


@torch.library.custom_op("nowhere::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + 1, x + 2


twice.register_fake(lambda x, times=2: torch.empty_like(x))
pair.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))


class Foreign(torch.nn.Module):
    """Operators that nobody knows."""

    def forward(self, x):
        a, b = torch.ops.nowhere.pair(x)
        y = torch.ops.nowhere.twice(a + b)
        return torch.ops.nowhere.twice(y)


if __name__ == "__main__":
    torch.manual_seed(0)
    write("weights", Weights(), (torch.ones(2, 3),))
    tensors = [torch.ones(2, 2) * k for k in range(5)]
    write(
        "nested",
        Nested(),
        (tensors[0], [tensors[1], {"k": tensors[2]}], Pair(tensors[3], tensors[4]), 1.5),
        {"mask": torch.ones(2, 2, dtype=torch.bool), "flag": False},
    )
    rows = Dim("rows", min=2, max=64)
    write(
        "sizes",
        Sizes(),
        (torch.ones(4, 3), torch.ones(8, 5)),
        dynamic_shapes=({0: rows}, {0: 2 * rows, 1: Dim.AUTO}),
    )
    automatic = {0: Dim.AUTO}
    write("conditions", Conditions(), (torch.ones(4), torch.ones(2)), dynamic_shapes=(automatic, automatic))
    write("data", Data(), (torch.arange(6.0), torch.tensor(3)))
    write("modes", Modes(), (torch.ones(4, 3),))
    write("loops", Loops(), (torch.arange(7.0) - 3, torch.tensor(3)))
    write("scans", Scans(), (torch.arange(20.0).reshape(5, 4) - 9,), dynamic_shapes=({0: Dim("t", min=2)},))
    write("branch", Branch(), (torch.ones(3),))
    write("writes", Writes(), (torch.ones(2, 3), torch.zeros(2, 3)), decompose=True)
    write("foreign", Foreign(), (torch.ones(3),))
    torch.save({"w": torch.ones(2)}, os.path.join(HERE, "checkpoint.pt"))
