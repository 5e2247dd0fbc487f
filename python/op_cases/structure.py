"""What surrounds the operators: call trees, weights that are shared or not contiguous, constants, outputs that compute nothing."""

import collections

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .pointwise import INF, NAN, spread

Pair = collections.namedtuple("Pair", ["left", "right"])
pytree._register_namedtuple(Pair, serialized_type_name="inrush.Pair")


class Fn(nn.Module):
    """A module around a function: `self` is passed for its parameters."""

    def __init__(self, fn, **tensors):
        super().__init__()
        self.fn = fn
        for name, value in tensors.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *args, **kwargs):
        return self.fn(self, *args, **kwargs)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.embedding = nn.Embedding(9, 5)
        self.head = nn.Linear(5, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.inner = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
        self.inner[1].bias = self.inner[0].bias

    def forward(self, ids):
        return self.head(self.inner(self.embedding(ids)))


class Weights(nn.Module):
    """Parameters and buffers that are views of one storage, transposed, scalar, empty, of every dtype."""

    def __init__(self):
        super().__init__()
        base = spread("storage", torch.float32, 6, 8)
        self.transposed = nn.Parameter(base.t())
        self.part = nn.Parameter(base[2:4, 1:7])
        self.column = nn.Parameter(base[:, 3])
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("empty", torch.zeros(0, 4))
        self.register_buffer("half_", spread("half", torch.float16, 6))
        self.register_buffer("brain", spread("brain", torch.bfloat16, 6))
        self.register_buffer("double_", spread("double", torch.float64, 6))
        self.register_buffer("flags", torch.tensor([True, False, True, True, False, True]))
        self.register_buffer("bytes_", torch.tensor([0, 1, 2, 127, 128, 255], dtype=torch.uint8))
        self.register_buffer("shorts", torch.tensor([-1, 0, 5, 300, -300, 7], dtype=torch.int16), persistent=False)
        self.register_buffer("longs", torch.tensor([1 << 40, -1, 0, 1, 2, 3]), persistent=False)
        self.register_buffer("expanded", torch.tensor([[1.0], [2.0]]).expand(2, 6))

    def forward(self, x):
        y = x @ self.transposed[:6] + self.part.sum() * self.scalar
        z = self.column * self.half_ + self.brain.float() * self.double_
        w = torch.where(self.flags, self.bytes_, self.shorts) + self.longs
        return y, z, w, torch.cat([self.empty[:, :2].flatten(), x[0]]), self.expanded * x[:2]


def tree(_, batch, pair, *, scale, extra=None):
    a, (b, c) = batch["a"], batch["nested"]
    return {"sum": a + b + pair.left, "list": [c * scale, (pair.right,)], "pair": Pair(a - b, None), "none": extra}


def cases(suite):
    x, y = spread("s1", torch.float32, 3, 4), spread("s2", torch.float32, 3, 4)
    suite.model("tied_weights", Tied().eval(), [torch.tensor([[0, 3, 8]])], "zoo", tol="norm")
    suite.model("weights", Weights(), [spread("s3", torch.float32, 5, 6)], tol="norm")
    args = [{"a": x, "nested": (y, x * 2)}, Pair(y, x + 1)]
    suite.model("trees", Fn(tree), args, kwargs={"scale": torch.tensor(0.5), "extra": None})
    suite.model("kwargs_only", Fn(lambda _, *, b, a: a - b), [], kwargs={"b": x, "a": y}, tol="exact")
    suite.model("constant_inputs", Fn(lambda _, t, n, f, flag, word: t * n + f if flag and word == "go" else t), [x, 3, 0.5, True, "go"])
    suite.model("list_input", Fn(lambda _, parts: torch.cat(parts, 1)), [[x, y, x]], tol="exact")
    suite.model("dict_output", Fn(lambda _, t: {"z": t + 1, "a": t - 1}), [x], tol="exact")
    suite.model("single_in_tuple", Fn(lambda _, t: (t + 1,)), [x], tol="exact")
    suite.model("none_outputs", Fn(lambda _, t: (None, t * 2, None)), [x], tol="exact")
    suite.model("scalar_outputs", Fn(lambda _, t: (t + 1, t.shape[0], 2.5, True)), [x], tol="exact")
    suite.model("output_is_input", Fn(lambda _, t, u: (t, t + u, u)), [x, y], tol="exact")
    suite.model("output_is_view_of_input", Fn(lambda _, t: (t.t(), t[1:], t.view(-1))), [x], tol="exact")
    suite.model("output_twice", Fn(lambda _, t: (lambda r: (r, r, r.t()))(t + 1)), [x], tol="exact")
    suite.model("output_is_weight", Fn(lambda m, t: (m.w, m.w + t, m.b), w=nn.Parameter(y), b=torch.arange(4)), [x], tol="exact")
    suite.model("unused", Fn(lambda m, t, u: t + 1, w=nn.Parameter(y), b=torch.arange(4)), [x, y], tol="exact")
    suite.model("no_inputs", Fn(lambda m: m.w.exp(), w=nn.Parameter(y)), [])
    suite.model("no_operators", Fn(lambda _, t: t), [x], tol="exact")
    suite.model("lifted_constants", Fn(lambda _, t: t * torch.tensor([1.0, -INF, NAN, 2.0]) + torch.tensor(3)), [x], tol="exact")
    suite.model("lifted_constant_index", Fn(lambda _, t: t[:, torch.tensor([3, 1])] + torch.tensor([[5], [6], [7]])), [x], tol="exact")
    suite.model("scalar_kinds", Fn(lambda _, t: (t.clamp(-INF, INF), t + 10**12, t * 1e-40, t * True, t.masked_fill(t > 0, NAN))), [x], tol="exact")
    suite.model("zero_dim_input", Fn(lambda _, t, s: t * s + s), [x, torch.tensor(2.0)])
    suite.model("empty_input", Fn(lambda _, t: (t + 1, t.sum(), torch.cat([t, t], 1))), [torch.zeros(0, 4)], tol="exact")
    suite.model(
        "strided_inputs",
        Fn(lambda _, a, b, c: (a + b.t(), a.sum(0), b @ a, c * 2)),
        [spread("s4", torch.float32, 4, 3).t(), spread("s5", torch.float32, 8, 6)[::2, ::2], spread("s6", torch.float32, 4).expand(3, 4)],
        tol="norm",
    )
    every = [torch.tensor([0, 1, 1, 0]).to(d) for d in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)]
    suite.model("every_dtype", Fn(lambda _, *ts: tuple(torch.cat([t, t]) for t in ts) + tuple(t.float() + 1 for t in ts)), every, tol="exact")
    suite.model(
        "refuses",
        Fn(lambda _, t, i: t[i] * 2),
        [x, torch.tensor([2, -1])],
        tol="exact",
        reject=[
            ("index out of range", (x, torch.tensor([0, 3]))),
            ("index below range", (x, torch.tensor([-4, 0]))),
            ("dtype of input 0", (x.double(), torch.tensor([0, 1]))),
            ("dtype of input 1", (x, torch.tensor([0, 1]).int())),
            ("size of input 0", (x[:, :3], torch.tensor([0, 1]))),
            ("rank of input 0", (x[0], torch.tensor([0, 1]))),
            ("input 1 is missing", (x,)),
        ],
    )

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)) for _ in range(3))
            self.scale = nn.ParameterDict({"a-b": torch.ones(4) * 2})

        def forward(self, x):
            for block in self.blocks:
                x = x + block(x) * self.scale["a-b"]
            return x

    suite.model("nested_modules", Nested().eval(), [x], tol="norm")
    suite.model("metadata", Fn(lambda _, t: t.to("cpu").to(torch.float32).contiguous().to(memory_format=torch.preserve_format) + t.numel() + t.dim()), [x], tol="exact")
