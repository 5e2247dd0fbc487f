"""`flex_attention` on a GPU: accuracy against eager in float64, and times against PyTorch's default backend.

usage: gpu_attention.py [--check] [--time] [--gradients] [--only NAME ...]

Without options it does all. Each variant is compiled on short sequences and compared with eager in float64; its error may not exceed
twice that of eager in the variant's dtype, plus a rounding of the result. Times are of 4 x 16 x 4096 x 128 in bfloat16: causal, a bias by
distance, and a window, each beside the default backend's, and causal beside `scaled_dot_product_attention`. A variant whose attention is
called instead of compiled fails.

With ``--gradients``, gradients are compared in the same way, then forward and backward passes are timed together and the backward
alone, of 4 x 16 x 4096 x 128 and of one head of 65536 tokens, with the peak of memory that the backward adds. Tiles of these
kernels are tables in ``crates/inrush-kernel/src/block/sizes.rs`` (``GRADIENTS_OF_HALVES``, ``GRADIENTS_OF_F32``).
"""

import argparse
import sys

import torch
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import inrush

DEVICE = "cuda"


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 100)


def shifted(s, b, h, i, j):
    return s + 0.01 * (j - i)


class Variant:
    """One attention: sizes, dtype, functions."""

    def __init__(self, name, shape=(2, 4, 256, 256, 64), dtype=torch.bfloat16, heads=None, score=None, mask=None, turned=False, columns=None, lse=False, block=128):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.heads = heads or shape[1]
        self.score = score
        self.mask = mask
        self.turned = turned
        self.columns = columns or shape[4]
        self.lse = lse
        self.block = block

    def inputs(self):
        batch, heads, rows, keys, features = self.shape
        sizes = [(heads, rows, features), (self.heads, keys, features), (self.heads, keys, self.columns)]
        make = lambda h, n, d: torch.randn(batch, n, h, d).transpose(1, 2) if self.turned else torch.randn(batch, h, n, d)
        return [make(*s).to(DEVICE, self.dtype) for s in sizes]

    def function(self, score=None):
        _, _, rows, keys, _ = self.shape
        mask = None if self.mask is None else create_block_mask(self.mask, None, None, rows, keys, device=DEVICE, BLOCK_SIZE=self.block)
        gqa = self.heads != self.shape[1]
        score = score or self.score
        return lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=gqa, return_lse=self.lse)


def variants():
    slopes = torch.rand(4, device=DEVICE)
    documents = torch.arange(300, device=DEVICE) // 70
    table = torch.randn(4, 300, 300, device=DEVICE)
    return [
        Variant("plain"),
        Variant("causal", mask=causal),
        Variant("causal with logsumexp", mask=causal, lse=True),
        Variant("distance", score=shifted, mask=causal),
        Variant("slopes of heads", score=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs()),
        Variant("window, odd length", (2, 4, 300, 300, 64), mask=window),
        Variant("documents", (1, 4, 300, 300, 64), mask=lambda b, h, i, j: (documents[i] == documents[j]) & (i >= j)),
        Variant("table of biases", (1, 4, 300, 300, 64), score=lambda s, b, h, i, j: s + table[h, i, j]),
        Variant("capped", score=lambda s, b, h, i, j: 20 * torch.tanh(s / 20), mask=causal),
        Variant("grouped heads", (2, 8, 257, 257, 128), heads=2, mask=causal),
        Variant("cross, float32", (2, 3, 77, 131, 32), torch.float32, score=shifted),
        Variant("heads of 256, float16", (1, 2, 190, 190, 256), torch.float16, mask=causal),
        Variant("odd head, other values", (1, 2, 130, 70, 24), torch.float16, columns=48),
        Variant("transposed views", (2, 4, 256, 256, 128), mask=causal, turned=True),
        Variant("blocks of 64", (2, 4, 256, 256, 64), mask=window, block=64),
    ]


def called(report):
    return [c for g in report.graphs for c in g.calls if "attention" in c.op]


def gradients(f, inputs, weights):
    """The gradients of queries, keys and values."""
    own = [x.detach().requires_grad_() for x in inputs]
    out = f(*own)
    outs = list(out) if isinstance(out, tuple) else [out]
    return torch.autograd.grad(outs, own, [w.to(o.dtype) for o, w in zip(outs, weights)])


def check_gradients(only):
    """Compares the gradients of each variant; gives how many fail."""
    torch.manual_seed(0)
    failed = 0
    for v in variants():
        if only and not any(o in v.name for o in only):
            continue
        inputs, f = v.inputs(), v.function()
        weights = [torch.randn(*v.shape[:3], v.columns, device=DEVICE), torch.randn(*v.shape[:3], device=DEVICE)]
        weights = weights if v.lse else weights[:1]
        relative = lambda got, wide: max(((x.double() - y).abs().max() / y.abs().max()).nan_to_num(float("inf")).item() for x, y in zip(got, wide))
        try:
            torch._dynamo.reset()
            got = gradients(torch.compile(f, backend="inrush", options={"strict": True}), inputs, weights)
            left = called(inrush.last_compile())
            wide = gradients(f, [x.double() for x in inputs], weights)
            eager = relative(gradients(f, inputs, weights), wide)
            own = relative(got, wide)
            good = own <= 2 * eager + torch.finfo(v.dtype).eps and not left
            print(f"{'ok' if good else 'FAILED':6} gradients, {v.name:26} error {own:.2e}, eager {eager:.2e}" + "".join(f", {c.op} called: {c.reason}" for c in left), flush=True)
        except Exception as problem:  # All variants are tried.
            good = False
            print(f"FAILED gradients, {v.name:26} {type(problem).__name__}: {str(problem)[:600]}", flush=True)
        failed += not good
    return failed


def time_gradients(only):
    """Compares times of forward and backward passes, and of the backward pass alone, with those of the default backend."""
    shape, long = (4, 16, 4096, 4096, 128), (1, 1, 65536, 65536, 64)
    rows = [
        Variant("causal", shape, mask=causal),
        Variant("distance, causal", shape, score=shifted, mask=causal),
        Variant("plain", shape),
        Variant("grouped heads, causal", shape, heads=4, mask=causal),
        Variant("causal, heads of 64", (4, 16, 4096, 4096, 64), mask=causal),
        Variant("65536 tokens, causal", long, mask=causal),
        Variant("65536 tokens, distance", long, score=shifted),
    ]
    print(f"{torch.cuda.get_device_name()}: forward and backward; backward, ms; MiB that the backward adds")
    for v in rows:
        if only and not any(o in v.name for o in only):
            continue
        inputs, f = [x.requires_grad_() for x in v.inputs()], v.function()
        row = {}
        for name, backend in (("inrush", "inrush"), ("default", "inductor")):
            try:
                torch._dynamo.reset()
                compiled = torch.compile(f, backend=backend)
                weight = torch.randn(*v.shape[:3], v.columns, device=DEVICE, dtype=v.dtype)
                out = compiled(*inputs)
                backward = lambda o=out, w=weight: torch.autograd.grad(o, inputs, w, retain_graph=True)
                grads = backward()
                del grads
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                backward()
                torch.cuda.synchronize()
                added = (torch.cuda.max_memory_allocated() - before) / 2**20
                both = median(lambda c=compiled, w=weight: torch.autograd.grad(c(*inputs), inputs, w))
                row[name] = (both, median(backward), added)
            except Exception as problem:  # The other backend is timed all the same.
                print(f"  {v.name} by {name}: {type(problem).__name__}: {str(problem)[:400]}", flush=True)
        text = "; ".join(f"{k} {a:.4f}, {b:.4f}, {m:.0f} MiB" for k, (a, b, m) in row.items())
        if len(row) == 2:
            text += f"; {row['default'][0] / row['inrush'][0]:.2f} and {row['default'][1] / row['inrush'][1]:.2f} x default"
        print(f"{v.name:24} {text}", flush=True)


def error(got, want):
    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    return max((x.double() - y).abs().nan_to_num(posinf=0.0).max().item() for x, y in pairs)


def check(only):
    """Compares each variant; gives how many fail."""
    torch.manual_seed(0)
    failed = 0
    for v in variants():
        if only and not any(o in v.name for o in only):
            continue
        inputs, f = v.inputs(), v.function()
        try:
            torch._dynamo.reset()
            compiled = torch.compile(f, backend="inrush", options={"strict": True})
            got = compiled(*inputs)
            left = called(inrush.last_compile())
            wide = f(*[x.double() for x in inputs])
            eager = error(f(*inputs), wide)
            own = error(got, wide)
            last = got[0] if isinstance(got, tuple) else got
            bound = 2 * eager + torch.finfo(v.dtype).eps * last.abs().max().item()
            good = own <= bound and not left
            print(f"{'ok' if good else 'FAILED':6} {v.name:26} error {own:.2e}, eager {eager:.2e}" + "".join(f", {c.op} called: {c.reason}" for c in left), flush=True)
        except Exception as problem:  # All variants are tried.
            good = False
            print(f"FAILED {v.name:26} {type(problem).__name__}: {str(problem)[:600]}", flush=True)
        failed += not good
    return failed


def median(f):
    import triton

    return triton.testing.do_bench(f, warmup=25, rep=100, return_mode="median")


def times(only):
    """Times the long attentions."""
    shape = (4, 16, 4096, 4096, 128)
    alibi = torch.rand(16, device=DEVICE)
    long = [
        Variant("causal", shape, mask=causal),
        Variant("distance, causal", shape, score=shifted, mask=causal),
        Variant("slopes, causal", shape, score=lambda s, b, h, i, j: s + alibi[h] * (j - i), mask=causal),
        Variant("window", shape, mask=lambda b, h, i, j: (i >= j) & (i - j < 512)),
        Variant("plain", shape),
        Variant("causal, heads of 64", (4, 16, 4096, 4096, 64), mask=causal),
    ]
    print(f"{torch.cuda.get_device_name()}, ms")
    for v in long:
        if only and not any(o in v.name for o in only):
            continue
        inputs, f = v.inputs(), v.function()
        row = {}
        for name, backend in (("inrush", "inrush"), ("default", "inductor")):
            try:
                torch._dynamo.reset()
                compiled = torch.compile(f, backend=backend)
                with torch.no_grad():
                    out = compiled(*inputs)
                    row[name] = median(lambda c=compiled: c(*inputs))
                row["out " + name] = out
            except Exception as problem:  # The other backend is timed all the same.
                print(f"  {v.name} by {name}: {type(problem).__name__}: {str(problem)[:400]}", flush=True)
        if v.name.startswith("causal"):
            row["library"] = median(lambda: F.scaled_dot_product_attention(*inputs, is_causal=True))
        text = ", ".join(f"{k} {x:.4f}" for k, x in row.items() if not k.startswith("out"))
        if "inrush" in row:
            text += "".join(f", {x / row['inrush']:.2f} x {k}" for k, x in row.items() if k in ("default", "library"))
        if "out inrush" in row and "out default" in row:
            text += f", difference {(row['out inrush'] - row['out default']).abs().max().item():.1e}"
        print(f"{v.name:22} {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    all_of_it = not (args.check or args.time or args.gradients)
    failed = check(args.only) if args.check or all_of_it else 0
    if args.time or all_of_it:
        times(args.only)
    if args.gradients or all_of_it:
        failed += check_gradients(args.only)
        time_gradients(args.only)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
