"""Symbolic sizes: several symbols, equalities, derived sizes, arithmetic on sizes in views and in values. Each model runs on
several sizes, 1 among them, and refuses those outside its ranges."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from .pointwise import spread
from .structure import Fn


def mat(*sizes):
    return spread("dynamic" + repr(sizes), torch.float32, *sizes)


def cases(suite):
    b, s, h = Dim("b", min=1, max=64), Dim("s", min=1, max=512), Dim("h", min=1, max=128)

    def model(name, fn, shapes, dims, *tags, tol="norm", reject=(), make=mat, **weights):
        """`shapes`: for each run, the sizes of every input; `dims`: the dynamic dimensions of every input."""
        runs = [tuple(make(*size) for size in sizes) for sizes in shapes]
        bad = [(why, tuple(make(*size) for size in sizes)) for why, sizes in reject]
        module = fn if isinstance(fn, nn.Module) else Fn(fn, **weights)
        # In Fn the inputs arrive as one tuple of positional arguments.
        dynamic = (tuple(dims),) if isinstance(module, Fn) else tuple(dims)
        suite.model(name, module, runs[0], *tags, dynamic=dynamic, runs=runs[1:], tol=tol, reject=bad)

    batches = [((n, 5),) for n in (4, 1, 2, 3, 8, 17)]
    row = [{0: b}]
    too_many = ("batch above its range", ((65, 5),))
    model("dynamic_pointwise", lambda _, t: F.gelu(t) * t.sigmoid() + 1, batches, row, tol="close", reject=[too_many, ("a fixed size", ((4, 6),)), ("rank", ((4, 5, 1),))])
    model("dynamic_linear", lambda m, t: F.relu(F.linear(t, m.w, m.c)), batches, row, w=nn.Parameter(mat(7, 5)), c=nn.Parameter(mat(7)))
    model("dynamic_reductions", lambda _, t: (t.sum(), t.mean(0), t.sum(1), t.var(0, correction=0), t.amax(0), t.argmax(0)), batches, row)
    model("dynamic_softmax", lambda _, t: (t.softmax(0), t.softmax(1), F.layer_norm(t, (5,))), batches, row)
    model("dynamic_views", lambda _, t: (t.view(-1), t.reshape(t.shape[0], 1, 5), t.t().flatten(), t.unsqueeze(0).expand(3, -1, -1), t.repeat(2, 1)), batches, row, tol="exact")
    model("dynamic_sizes_as_values", lambda _, t: (t / t.shape[0], torch.arange(t.shape[0]), t.new_zeros(t.shape[0], 2), torch.full((t.shape[0],), 2.0), t * (t.shape[0] * 2 + 1)), batches, row, tol="close")
    model("dynamic_size_outputs", lambda _, t: (t.shape[0], t.shape[0] * 5, t + 1), batches, row, tol="exact")
    model("dynamic_cat", lambda _, t: torch.cat([t, t * 2, t[:1]], 0), batches, row, tol="exact")
    model("dynamic_cat_after_slice", lambda _, t: torch.cat([t[:, 2:], t[:, :2].neg()], 1), batches, row, tol="exact")
    model("dynamic_inplace", lambda _, t: (lambda y: (y[:, 0].add_(1), y.relu_())[1])(t.clone()), batches, row, tol="exact")
    model("dynamic_index", lambda _, t: (t[torch.arange(t.shape[0]) // 2], t.flip(0), t.index_select(0, torch.arange(t.shape[0]))), batches, row, tol="exact")
    model("dynamic_roll_pad", lambda _, t: (F.pad(t, (0, 0, 1, 2)), t.cumsum(0)), batches, row, tol="close")
    pairs = [((4, 6), (4, 6)), ((1, 6), (1, 6)), ((9, 6), (9, 6))]
    model("dynamic_equal", lambda _, t, u: t + u, pairs, [{0: b}, {0: b}], tol="exact", reject=[("batches differ", ((4, 6), (5, 6)))])
    grids = [((3, 10), (10, 6)), ((1, 1), (1, 1)), ((8, 33), (33, 2)), ((64, 512), (512, 128)), ((2, 7), (7, 9))]
    model("dynamic_matmul", lambda _, t, u: t @ u, grids, [{0: b, 1: s}, {0: s, 1: h}], reject=[("inner sizes differ", ((3, 10), (9, 6)))])
    sequences = [((2, 7, 8),), ((1, 1, 8),), ((3, 16, 8),), ((5, 130, 8),)]
    model("dynamic_two_symbols", lambda _, t: (t + t.sum(1, keepdim=True), t.flatten(0, 1), t.transpose(0, 1).reshape(t.shape[1], -1), t.view(-1, 8).sum(0)), sequences, [{0: b, 1: s}])
    model("dynamic_two_outputs_sizes", lambda _, t: (t.new_ones(t.shape[0] * t.shape[1]), t.view(t.shape[0] * t.shape[1], 2, 4), torch.arange(t.shape[1])[None] + torch.zeros(t.shape[0], 1)), sequences, [{0: b, 1: s}])

    class Attention(nn.Module):
        def __init__(self, causal):
            super().__init__()
            torch.manual_seed(8)
            self.qkv, self.out, self.causal = nn.Linear(8, 24), nn.Linear(8, 8), causal

        def forward(self, x):
            n, length, width = x.shape
            q, k, v = self.qkv(x).view(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(y.transpose(1, 2).reshape(n, length, width))

    class Mask(nn.Module):
        def forward(self, x):
            n = x.shape[1]
            keep = torch.arange(n)[:, None] >= torch.arange(n)[None]
            return torch.softmax((x @ x.mT).masked_fill(~keep, float("-inf")), -1) @ x

    model("dynamic_attention", Attention(False), sequences, [{0: b, 1: s}])
    model("dynamic_causal", Attention(True), sequences, [{0: b, 1: s}])
    model("dynamic_mask", Mask(), sequences, [{0: b, 1: s}])
    half = Dim("half", min=2, max=32)
    evens = [((n, 3),) for n in (8, 4, 6, 64)]
    model("dynamic_even", lambda _, t: (t[::2] + t[1::2], t.view(-1, 2, 3).sum(1), t[: t.shape[0] // 2]), evens, [{0: 2 * half}], reject=[("an odd size", ((7, 3),))])
    nexts = [((5, 3), (4, 3)), ((3, 3), (2, 3)), ((18, 3), (17, 3))]
    model("dynamic_plus_one", lambda _, t, u: t[1:] + u, nexts, [{0: b + 1}, {0: b}], tol="exact", reject=[("the sizes must differ by one", ((4, 3), (4, 3)))])
    joined = [((4, 3), (6, 3)), ((1, 3), (2, 3)), ((7, 3), (1, 3))]
    model("dynamic_cat_two", lambda _, t, u: torch.cat([t, u, t]).relu(), joined, [{0: b}, {0: s}], tol="exact")
    model("dynamic_floor_division", lambda _, t: (torch.arange(t.shape[0] // 2 + 3), t.new_ones(t.shape[0] // 3 + t.shape[0] % 3 + 2), t + t.shape[0] // 4), [((n, 3),) for n in (9, 4, 5, 31)], [{0: Dim("n", min=4, max=99)}], tol="exact", reject=[("below its range", ((3, 3),))])
    images = [((2, 3, 16, 20),), ((1, 3, 9, 8),), ((3, 3, 33, 17),)]
    height, width = Dim("height", min=8, max=64), Dim("width", min=8, max=64)
    sizes = [{0: b, 2: height, 3: width}]
    model("dynamic_conv", lambda m, t: F.relu(F.conv2d(t, m.w, m.c, stride=2, padding=1)), images, sizes, w=nn.Parameter(mat(4, 3, 3, 3)), c=nn.Parameter(mat(4)))
    model("dynamic_conv_batch", lambda m, t: F.conv2d(t, m.w).mean((2, 3)), [((n, 3, 9, 9),) for n in (2, 1, 5)], [{0: b}], w=nn.Parameter(mat(4, 3, 3, 3)))
    even = [{0: b, 2: 2 * Dim("rows", min=4, max=32), 3: 2 * Dim("columns", min=4, max=32)}]
    model("dynamic_pool", lambda _, t: (F.max_pool2d(t, 3, 2, 1), F.avg_pool2d(t, 2), F.adaptive_avg_pool2d(t, 1)), [((2, 3, 16, 20),), ((1, 3, 8, 10),), ((3, 3, 34, 64),)], even)
    model("dynamic_depthwise", lambda m, t: F.conv2d(t, m.w, padding=1, groups=3), images, sizes, w=nn.Parameter(mat(3, 1, 3, 3)))
    zero = Dim("zero", min=0, max=16)
    model("dynamic_zero", lambda _, t: (t + 1, t.sum(0), torch.cat([t, t], 1), t @ t.mT), [((n, 5),) for n in (3, 0, 1)], [{0: zero}])
    model("dynamic_broadcast", lambda _, t, u: t * u + t.sum(0), [((4, 3), (1, 3)), ((1, 3), (1, 3)), ((6, 3), (1, 3))], [{0: b}, None])

    class Recurrent(nn.Module):
        """A state that follows the batch: the buffer is fixed, the result is not."""

        def __init__(self):
            super().__init__()
            self.register_buffer("table", mat(64, 4))

        def forward(self, x):
            return x + self.table[: x.shape[0]]

    model("dynamic_table", Recurrent(), [((n, 4),) for n in (3, 1, 64)], [{0: b}], tol="exact")
    auto = [((4, 6),), ((2, 9),), ((11, 3),)]
    model("dynamic_auto", lambda _, t: (t.reshape(-1), t.sum(1)), auto, [{0: Dim.AUTO, 1: Dim.AUTO}])
    suite.model("dynamic_int_input", Fn(lambda _, t, n: t * n + n), [mat(3), 4], dynamic=((None, Dim.DYNAMIC),), runs=[(mat(3), 7), (mat(3), 2)])

    class Nonzero(nn.Module):
        def forward(self, x):
            return x[x > 0].sum()

    class Item(nn.Module):
        def forward(self, x, n):
            k = n.item()
            torch._check(k >= 0)
            torch._check(k <= x.shape[0])
            return x.narrow(0, 0, k).sum(0), torch.arange(k)

    suite.model("unbacked_mask", Nonzero(), [mat(4, 5)], "later", runs=[(-mat(4, 5),)], tol="norm")
    suite.model("unbacked_item", Item(), [mat(6, 3), torch.tensor(4)], "later", runs=[(mat(6, 3), torch.tensor(0))], tol="norm")
