"""`flex_attention` compiled for a GPU, its kernels in Triton's interpreter, against eager in float64.

Run by `test_flex_attention.py` in a process of its own, since Triton reads at its import whether it interprets. Prints a line of JSON for
each case: `{"name", "called", "kernels", "error", "bound", "layout"}`; those of gradients have `"gradients": true`.

usage: interpreted_attention.py [SEED] [NUMBER OF DRAWN CASES]
"""

import json
import os
import random
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["INRUSH_INTERPRET"] = "cuda:h100"

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import inrush
from inrush import composed_attention

# PyTorch takes no gradients on CPUs.
flex._validate_device = lambda *operands: None

# Where there is a seed a third of the cases runs, others for each commit. These always do: the tests name them.
SEED = None if os.environ.get("INRUSH_EVERY_CASE") else os.environ.get("INRUSH_SEED")
ALWAYS = {"blocks of 24", "a learned bias", "an expanded condition", "as the user wants"}


def drawn(run):
    """Leaves cases out, by their names."""

    def some(name, *args, **named):
        if SEED is None or name in ALWAYS or random.Random(f"{SEED} {run.__name__} {name}").random() < 1 / 3:
            run(name, *args, **named)

    return some


ROUNDING = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def functions(rows, keys, heads):
    """Score and mask functions by name, with what they read."""
    slopes, table = torch.rand(heads), torch.randn(rows, keys)
    groups = torch.arange(max(rows, keys)) // 13
    scores = {
        "none": None,
        "distance": lambda s, b, h, i, j: s + 0.05 * (j - i),
        "slopes": lambda s, b, h, i, j: s - slopes[h] * (i - j).abs(),
        "table": lambda s, b, h, i, j: s + table[i, j],
        "cap": lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + b,
        "hole": lambda s, b, h, i, j: torch.where((i + j) % 3 == 0, -float("inf"), s),
    }
    masks = {
        "none": None,
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (i - j < 9),
        "documents": lambda b, h, i, j: groups[i] == groups[j],
        "heads": lambda b, h, i, j: (j + h) % 2 == 0,
        "nothing": lambda b, h, i, j: i < 0,
        "prefix": lambda b, h, i, j: (j < 5) | (i == j),
    }
    return scores, masks


@drawn
def case(name, shape, dtype, score, mask, groups=1, columns=None, turned=False, block=16):
    """Runs one attention."""
    batch, heads, rows, keys, features = shape
    scores, masks = functions(rows, keys, heads)
    make = lambda h, n, d: torch.randn(batch, n, h, d).transpose(1, 2) if turned else torch.randn(batch, h, n, d)
    sizes = [(heads, rows, features), (heads // groups, keys, features), (heads // groups, keys, columns or features)]
    inputs = [make(*s).to(dtype) for s in sizes]
    listed = None if masks[mask] is None else create_block_mask(masks[mask], None, None, rows, keys, device="cpu", BLOCK_SIZE=block)
    f = lambda q, k, v: flex_attention(q, k, v, score_mod=scores[score], block_mask=listed, enable_gqa=groups > 1, return_lse=True)
    torch._dynamo.reset()
    got = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})(*inputs)
    report = inrush.last_compile().graphs[-1]
    wide = f(*[x.double() for x in inputs])
    eager = f(*inputs)
    error = lambda out: max((x.double() - y).abs().nan_to_num(posinf=0.0).max().item() for x, y in zip(out, wide))
    same_lines = all(((a == -float("inf")) == (b == -float("inf"))).all() for a, b in zip(got, wide))
    print(
        json.dumps(
            {
                "name": name,
                "called": {c.op: c.reason for c in report.calls},
                "kernels": report.kernels,
                "error": error(got) if same_lines else float("inf"),
                "bound": 2 * error(eager) + ROUNDING[dtype] * max(1.0, wide[0].abs().max().item()),
                "layout": got[0].stride() == eager[0].stride() and got[0].dtype == eager[0].dtype,
            }
        ),
        flush=True,
    )


@drawn
def gradients(name, shape, dtype, score, mask, groups=1, columns=None, turned=False, block=16, shared=False, lse=False, learned=False):
    """Runs one attention and its gradients. ``shared``: keys of one batch for all; ``learned``: the score function has a gradient."""
    batch, heads, rows, keys, features = shape
    scores, masks = functions(rows, keys, heads)
    make = lambda b, h, n, d: torch.randn(b, n, h, d).transpose(1, 2) if turned else torch.randn(b, h, n, d)
    of_keys = (1 if shared else batch, heads // groups, keys)
    inputs = [make(*s).to(dtype) for s in ((batch, heads, rows, features), (*of_keys, features), (*of_keys, columns or features))]
    bias = torch.randn(rows, keys, requires_grad=True)
    score = (lambda s, b, h, i, j: s + bias[i, j]) if learned else scores[score]
    listed = None if masks[mask] is None else create_block_mask(masks[mask], batch if shared else None, None, rows, keys, device="cpu", BLOCK_SIZE=block)
    f = lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=listed, enable_gqa=groups > 1, return_lse=bool(lse))
    of_out, of_lse = torch.randn(batch, heads, rows, columns or features).to(dtype), torch.randn(batch, heads, rows)

    def grads(f, kind):
        own = [x.detach().to(kind).requires_grad_() for x in inputs]
        out = f(*own)
        outs, weights = (list(out), [of_out.to(kind), of_lse.to(out[1].dtype)]) if lse else ([out], [of_out.to(kind)])
        if lse == "only":
            outs, weights, own = outs[1:], weights[1:], own[:2]
        return torch.autograd.grad(outs, [*own, bias] if learned else own, weights)

    torch._dynamo.reset()
    got = grads(torch.compile(f, backend="inrush", options={"strict": True, "cache": False}), dtype)
    report = inrush.last_compile().graphs[-1]
    wide, eager = grads(f, torch.float64), grads(f, dtype)
    # An error of NaN is no small one.
    error = lambda all: max(((x.double() - y).abs().max() / y.abs().max().clamp(min=1.0)).nan_to_num(nan=float("inf")).item() for x, y in zip(all, wide))
    print(
        json.dumps(
            {
                "name": f"gradients: {name}",
                "gradients": True,
                "called": {c.op: c.reason for c in report.calls},
                "kernels": report.kernels,
                "error": error(got),
                "bound": 2 * error(eager) + ROUNDING[dtype],
                "layout": all(a.stride() == b.stride() and a.dtype == b.dtype for a, b in zip(got, eager)),
            }
        ),
        flush=True,
    )


@drawn
def library(name, shape, dtype, causal=False, mask=None, groups=1, turned=False, scale=None, dynamic=False):
    """Runs what PyTorch makes of a small `scaled_dot_product_attention` on a GPU."""
    batch, heads, rows, keys, features = shape
    make = lambda h, n: torch.randn(batch, n, h, features).transpose(1, 2) if turned else torch.randn(batch, h, n, features)
    inputs = [make(*s).to(dtype) for s in ((heads, rows), (heads // groups, keys), (heads // groups, keys))]
    bias = None if mask is None else torch.where(torch.rand(batch, heads, rows, keys) < mask, torch.randn(rows, keys), -float("inf")).to(dtype)
    flash, efficient = torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_efficient_attention.default
    call = lambda q, k, v: flash(q, k, v, 0.0, causal, scale=scale)[0] if bias is None else efficient(q, k, v, bias, False, 0.0, causal, scale=scale)[0]
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(call, backend="inrush", dynamic=dynamic, options={"strict": True, "cache": False})(*inputs)
    report = inrush.last_compile().graphs[-1]
    whole = lambda kind: torch.nn.functional.scaled_dot_product_attention(
        *(x.to(kind) for x in inputs), attn_mask=None if bias is None else bias.to(kind), is_causal=causal, scale=scale, enable_gqa=groups > 1
    )
    wide, eager = whole(torch.float64), whole(dtype)
    # Rows without keys are zeros, as libraries for GPUs have them.
    error = lambda x: (x.double() - wide.nan_to_num()).abs().max().nan_to_num(nan=float("inf")).item()
    print(
        json.dumps(
            {
                "name": f"library: {name}",
                "called": {c.op: c.reason for c in report.calls},
                "kernels": report.kernels,
                "error": error(got),
                "bound": 2 * error(eager.nan_to_num()) + ROUNDING[dtype] * max(1.0, wide.nan_to_num().abs().max().item()),
                "layout": got.stride() == torch.empty_like(inputs[0].transpose(1, 2)).transpose(1, 2).stride() or bias is not None,
            }
        ),
        flush=True,
    )


# What makes PyTorch compose an attention of products on a GPU is fused on CPUs, unless it is told.
CHOSEN_BY_USER = composed_attention.chosen_by_user


@drawn
def composed(name, shape, dtype, mask=None, groups=1, turned=False, by_user=False, **options):
    """Runs a `scaled_dot_product_attention` that PyTorch composes of products; ``by_user``: because the user wants that."""
    batch, heads, rows, keys, features = shape
    make = lambda h, n: torch.randn(batch, n, h, features).transpose(1, 2) if turned else torch.randn(batch, h, n, features)
    inputs = [make(*s).to(dtype) for s in ((heads, rows), (heads // groups, keys), (heads // groups, keys))]
    dynamic, grouped = options.pop("dynamic", False), groups > 1

    def call(q, k, v):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped, **options)
        # As models do; the kernel gives rows before heads then.
        return out.view(batch, -1, rows, features).transpose(1, 2).contiguous().flatten(2) if turned else out

    composed_attention.chosen_by_user = CHOSEN_BY_USER if by_user else lambda gm: None
    torch._dynamo.reset()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        if dynamic:
            # Heads have a size of their own in models.
            for x in inputs:
                torch._dynamo.mark_static(x, 3)
        got = torch.compile(call, backend="inrush", dynamic=dynamic, options={"strict": True, "cache": False, "warm_start": False})(*inputs)
        eager = call(*inputs)
        mask = mask.double() if mask is not None and mask.is_floating_point() else mask
        wide = call(*(x.double() for x in inputs))
    report = inrush.last_compile().graphs[-1]
    error = lambda x: (x.double() - wide).abs().max().nan_to_num(nan=float("inf")).item()
    row = {"name": f"composed: {name}", "called": {c.op: c.reason for c in report.calls}, "kernels": report.kernels, "error": error(got)}
    row |= {"bound": 2 * error(eager) + ROUNDING[dtype] * max(1.0, wide.abs().max().item()), "layout": got.stride() == eager.stride()}
    print(json.dumps(row | {"by_user": by_user, "kept": report.kept}), flush=True)


def main():
    torch.manual_seed(0)
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    condition = torch.rand(24, 41) < 0.7
    # Transformers make such a mask where nothing is padded; a row of it has no keys.
    expanded = (torch.arange(24) != 3).view(1, 1, 24, 1).expand(2, 1, 24, 41)
    composed("no mask", (2, 4, 24, 41, 32), bf16)
    composed("causal, transposed", (2, 4, 24, 41, 32), f16, turned=True, is_causal=True)
    composed("a condition", (2, 4, 24, 41, 32), bf16, condition)
    composed("an expanded condition", (2, 4, 24, 41, 32), bf16, expanded)
    composed("dynamic sizes", (2, 4, 24, 41, 32), bf16, expanded, dynamic=True)
    composed("a mask", (2, 4, 24, 41, 16), f16, torch.randn(1, 4, 24, 41).half())
    composed("grouped heads", (2, 4, 24, 41, 32), bf16, condition, groups=2, scale=0.3)
    composed("as the user wants", (2, 4, 24, 41, 32), bf16, by_user=True)
    library("plain", (1, 2, 33, 33, 16), torch.float16)
    library("causal, transposed", (2, 2, 40, 21, 32), torch.bfloat16, causal=True, turned=True)
    library("grouped heads", (1, 4, 17, 30, 16), torch.bfloat16, groups=2, scale=0.3)
    library("a mask", (2, 2, 20, 41, 16), torch.float16, mask=0.7)
    library("dynamic sizes", (2, 2, 33, 33, 16), torch.bfloat16, causal=True, dynamic=True)
    library("rows without keys", (1, 2, 20, 5, 16), torch.float16, mask=0.1)
    case("plain", (1, 2, 32, 32, 16), f32, "none", "none")
    case("causal", (2, 2, 48, 48, 16), f16, "none", "causal")
    case("distance, causal", (1, 2, 40, 40, 32), bf16, "distance", "causal")
    case("table, odd lengths", (1, 2, 21, 37, 16), f32, "table", "none")
    case("slopes, window", (1, 4, 50, 50, 16), f32, "slopes", "window")
    case("documents, grouped heads", (1, 4, 41, 41, 16), f16, "none", "documents", groups=2)
    case("masks by head", (1, 3, 20, 33, 16), f32, "cap", "heads")
    case("rows without keys", (1, 1, 20, 20, 16), f32, "none", "nothing")
    case("scores without keys", (1, 1, 20, 20, 16), f32, "hole", "prefix")
    case("transposed, other values", (1, 2, 33, 20, 24), f32, "none", "none", columns=40, turned=True)
    case("blocks of 32", (1, 1, 70, 70, 16), f32, "none", "prefix", block=32)
    case("blocks of 24", (1, 1, 40, 40, 16), f32, "none", "causal", block=24)
    gradients("plain", (1, 2, 32, 32, 16), f32, "none", "none")
    gradients("causal", (2, 2, 48, 48, 16), f16, "none", "causal")
    gradients("distance, causal, logsumexp", (1, 2, 40, 40, 32), bf16, "distance", "causal", lse=True)
    gradients("cap, window, grouped heads", (2, 4, 41, 41, 16), f32, "cap", "window", groups=2)
    gradients("slopes, documents, one batch of keys", (2, 2, 37, 50, 16), f32, "slopes", "documents", shared=True)
    gradients("table, few queries, other values", (1, 2, 3, 37, 24), f16, "table", "none", columns=40, turned=True)
    gradients("rows without keys", (1, 1, 20, 20, 16), f32, "cap", "nothing")
    gradients("scores without keys", (1, 1, 20, 20, 16), f32, "hole", "prefix", lse=True)
    gradients("masks by head, blocks of 32", (1, 3, 70, 33, 16), f32, "none", "heads", block=32)
    gradients("heads of 128", (1, 1, 20, 20, 128), bf16, "none", "causal", columns=64)
    gradients("logarithms of sums alone", (1, 2, 33, 20, 16), f32, "distance", "causal", lse="only")
    gradients("blocks of 24", (1, 1, 40, 40, 16), f32, "none", "causal", block=24)
    gradients("a learned bias", (1, 2, 20, 20, 16), f32, "none", "causal", learned=True)
    draw = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for k in range(int(sys.argv[2]) if len(sys.argv) > 2 else 8):
        groups, heads = draw.choice([1, 1, 2, 3]), draw.choice([1, 2])
        shape = (draw.choice([1, 2]), heads * groups, draw.randint(1, 45), draw.randint(1, 45), draw.choice([16, 20, 32]))
        score, mask = draw.choice(["none", "distance", "slopes", "table", "cap", "hole"]), draw.choice(["none", "causal", "window", "documents", "heads", "prefix"])
        what, dtype = f"drawn {k}: {shape} {score} {mask}", draw.choice([f16, bf16, f32])
        columns, turned = draw.choice([None, 16, 18]), draw.random() < 0.3
        case(what, shape, dtype, score, mask, groups, columns, turned)
        shared, lse = draw.random() < 0.3 and mask != "none", draw.random() < 0.3
        gradients(what, shape, dtype, score, mask, groups, columns, turned, shared=shared, lse=lse)


if __name__ == "__main__":
    main()
