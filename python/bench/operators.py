"""Every lowered operator of PyTorch's operator table beside eager, each alone on a million elements of float32.

usage: operators.py [--backward] [--only TEXT] [--seconds S] [--json FILE]

Elementwise operators and reductions come from PyTorch's own table (`op_db`), with operands inside their domains; operators
that take more than that are listed here. A compiled function, the code that it ends in (without Dynamo's guards) and eager take
turns of calls; ratios are those of medians and of the best calls, and the latter, which another program disturbs less, give the
order, slowest first, each with a remark on where it loses time. Operators that inrush calls instead of compiling are only counted. Figures mean something on an idle machine.
With `--backward` it is their gradients that are timed (`gradients.py`), of images contiguous and with channels last; what a call takes beside its code
is autograd's then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import sys
import time
import warnings

import torch
import torch.nn.functional as F

import inrush

import gradients

N = 1 << 20
SIDE = 1024


def elementwise():
    """Unary and binary operators and reductions: name, function, arguments."""
    from torch.testing._internal import opinfo
    from torch.testing._internal.common_methods_invocations import op_db

    generator = torch.Generator().manual_seed(0)

    def uniform(low, high, *sizes):
        return torch.rand(*sizes, generator=generator) * (high - low) + low

    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu") or op.variant_test_name:
            continue
        if isinstance(op, opinfo.core.UnaryUfuncInfo):
            low, high = op.domain
            x = uniform(max(low if low is not None else -9.0, -9.0), min(high if high is not None else 9.0, 9.0), N)
            kwargs, _ = op.sample_kwargs("cpu", torch.float32, x)
            yield op.name, (lambda x, op=op.op, k=kwargs: op(x, **k)), (x,)
        elif isinstance(op, opinfo.core.BinaryUfuncInfo):
            yield op.name, op.op, (uniform(0.5, 4.0, N), uniform(0.5, 4.0, N))
        elif isinstance(op, opinfo.core.ReductionOpInfo):
            x = uniform(-1.0, 1.0, SIDE, SIDE)
            yield op.name, op.op, (x,)
            yield op.name + ".rows", (lambda x, op=op.op: op(x, dim=1)), (x,)
            yield op.name + ".columns", (lambda x, op=op.op: op(x, dim=0)), (x,)


def others():
    x, y = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    image = torch.randn(4, 16, 128, 128)
    places = torch.randint(0, SIDE, (SIDE, SIDE))
    vector = torch.randn(N)
    nhwc = image.to(memory_format=torch.channels_last)
    filters, taps, line = torch.randn(16, 16, 3, 3), torch.randn(16, 1, 3, 3), torch.randn(4, 64, 4096)
    queries = torch.randn(4, 8, 512, 64)
    matrices = torch.randn(16, 256, 256)
    grid = torch.rand(4, 128, 128, 2) * 2 - 1
    return {
        "softmax": (lambda x: torch.softmax(x, 1), x),
        "softmax.columns": (lambda x: torch.softmax(x, 0), x),
        "log_softmax": (lambda x: torch.log_softmax(x, 1), x),
        "layer_norm": (lambda x: F.layer_norm(x, (SIDE,)), x),
        "rms_norm": (lambda x: F.rms_norm(x, (SIDE,)), x),
        "group_norm": (lambda x: F.group_norm(x, 4), image),
        "batch_norm": (lambda x: F.batch_norm(x, torch.zeros(16), torch.ones(16)), image),
        "cumsum": (lambda x: x.cumsum(1), x),
        "cumsum.columns": (lambda x: x.cumsum(0), x),
        "cumprod": (lambda x: x.cumprod(1), x),
        "cummax": (lambda x: x.cummax(1), x),
        "transpose": (lambda x: x.t().contiguous(), x),
        "cat": (lambda x, y: torch.cat([x, y]), x, y),
        "flip": (lambda x: x.flip(1), x),
        "roll": (lambda x: x.roll(7, 1), x),
        "tril": (torch.tril, x),
        "where": (lambda x, y: torch.where(x > 0, x, y), x, y),
        "gather": (lambda x, i: x.gather(1, i), x, places),
        "index_select": (lambda x, i: x.index_select(0, i), x, places[0]),
        "embedding": (lambda x, i: F.embedding(i, x), x, places[0]),
        "scatter_add": (lambda x, y, i: x.scatter_add(1, i, y), x, y, places),
        "index_add": (lambda x, y, i: x.index_add(0, i, y), x, y, places[0]),
        "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), x),
        "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), x, y),
        "max_pool2d": (lambda x: F.max_pool2d(x, 2), image),
        "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 1, 1), image),
        "upsample_nearest": (lambda x: F.interpolate(x, scale_factor=2), image[:1]),
        "upsample_bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image[:1]),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), image),
        "pad_reflect": (lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), image),
        "mse_loss": (F.mse_loss, x, y),
        "cross_entropy": (lambda x, i: F.cross_entropy(x, i), x, places[0]),
        "bce_with_logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), x, y),
        "sort.short": (lambda x: torch.sort(x, 1)[0], vector.view(-1, 16)),
        "topk.short": (lambda x: torch.topk(x, 4, 1)[0], vector.view(-1, 16)),
        "median.short": (lambda x: torch.median(x, 1)[0], vector.view(-1, 16)),
        "searchsorted": (lambda s, x: torch.searchsorted(s, x), vector[:SIDE].sort()[0], x),
        "dropout": (lambda x: F.dropout(x, 0.5), x),
        "rand": (torch.rand_like, x),
        "randn": (torch.randn_like, x),
        "randint": (lambda x: torch.randint(0, 100, (N,)), x),
        "bernoulli": (lambda x: torch.empty_like(x).bernoulli_(0.3), x),
        "exponential": (lambda x: torch.empty_like(x).exponential_(), x),
        "mm": (torch.mm, x, y),
        "addmm": (lambda x, y: torch.addmm(x[0], x, y), x, y),
        "bmm": (torch.bmm, matrices, matrices),
        "mv": (lambda x, y: torch.mv(x, y[0]), x, y),
        "linear": (lambda x, y: F.linear(x, y, y[0]), x, y),
        "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), line, torch.randn(64, 64, 3)),
        "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), image, filters),
        "conv2d.channels_last": (lambda x, w: F.conv2d(x, w, padding=1), nhwc, filters),
        "conv2d.1x1": (F.conv2d, image, filters[:, :, :1, :1].contiguous()),
        "conv2d.stride": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), image, filters),
        "conv2d.dilation": (lambda x, w: F.conv2d(x, w, padding=2, dilation=2), image, filters),
        "conv2d.groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), image, filters[:, :4].contiguous()),
        "conv2d.depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=16), image, taps),
        "conv2d.depthwise.channels_last": (lambda x, w: F.conv2d(x, w, padding=1, groups=16), nhwc, taps),
        "conv2d.depthwise.stride": (lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=16), image, taps),
        "conv2d.depthwise7.channels_last": (
            lambda x, w: F.conv2d(x, w, padding=3, groups=192),
            torch.randn(2, 192, 28, 28).to(memory_format=torch.channels_last),
            torch.randn(192, 1, 7, 7),
        ),
        "conv2d.depthwise7.channels_last.7x7": (
            lambda x, w: F.conv2d(x, w, padding=3, groups=768),
            torch.randn(2, 768, 7, 7).to(memory_format=torch.channels_last),
            torch.randn(768, 1, 7, 7),
        ),
        "conv2d.depthwise.14x14": (lambda x, w: F.conv2d(x, w, padding=4, groups=1024), torch.randn(2, 1024, 14, 14), torch.randn(1024, 1, 9, 9)),
        "conv2d.depthwise.7x7": (lambda x, w: F.conv2d(x, w, padding=2, groups=1024), torch.randn(2, 1024, 7, 7), torch.randn(1024, 1, 5, 5)),
        "conv3d": (lambda x, w: F.conv3d(x.view(4, 16, 8, 32, 64), w, padding=1), image, torch.randn(16, 16, 3, 3, 3)),
        "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), image, filters),
        "attention": (F.scaled_dot_product_attention, queries, queries, queries),
        "attention.causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), queries),
        "instance_norm": (F.instance_norm, image),
        "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), image),
        "max_pool2d.channels_last": (lambda x: F.max_pool2d(x, 3, 2, 1), nhwc),
        "upsample_bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), image[:1]),
        "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid),
        "embedding_bag": (lambda x, i: F.embedding_bag(i, x), x, places[:64]),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), image[:1]),
        "fold": (lambda x: F.fold(x, (128, 128), 2, stride=2), torch.randn(4, 64, 4096)),
        "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous(), image),
        "repeat": (lambda x: x.repeat(2, 2), x),
        "stack": (lambda x, y: torch.stack([x, y], 1), x, y),
        "one_hot": (lambda i: F.one_hot(i, SIDE), places[0]),
        "bucketize": (lambda x, s: torch.bucketize(x, s), x, vector[:SIDE].sort()[0]),
        "logcumsumexp": (lambda x: x.logcumsumexp(1), x),
        "l1_loss": (F.l1_loss, x, y),
        "smooth_l1_loss": (F.smooth_l1_loss, x, y),
        "kl_div": (lambda x, y: F.kl_div(x, y, reduction="batchmean"), x.log_softmax(1), y.softmax(1)),
        "cosine_similarity": (F.cosine_similarity, x, y),
        "glu": (lambda x: F.glu(x, 1), x),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), x, y),
        "addcdiv": (torch.addcdiv, x, y, y.abs() + 1),
        "cdist": (lambda x, y: torch.cdist(x[:256, :64], y[:256, :64]), x, y),
    }


# Ratios this far below 1 are noise where both sides do little more than read and write memory.
NOISE = 0.05


def remark(row):
    """Where an operator loses time to eager's; nothing where it is not slower."""
    call, code = row["ratios"]["inrush_best"], row["ratios"]["code_best"]
    if code < 1 - NOISE:
        return "its code is slower"
    if call >= 1:
        return ""
    around = row["inrush"]["best"] - row["code"]["best"]
    within = "not slower" if code >= 1 else f"within {NOISE:.0%}"
    return f"its code is {within}; a call takes {around:.0f} us beside it"


def once(f, args):
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def measure(f, args, seconds):
    """Median and best in microseconds of a call, of the compiled code that it ends in and of eager, and what inrush calls.

    The compiled code is what the backend gave to Dynamo; what a call takes beside it are Dynamo's guards and wrappers.
    """
    torch._dynamo.reset()
    entered = []

    def backend(graph, inputs):
        entered.append((inrush.backend(graph, inputs, options={"strict": True}), inputs))
        return entered[-1][0]

    compiled = torch.compile(f, backend=backend, fullgraph=True)
    compiled(*args)
    calls = [c.op for g in inrush.last_compile().graphs for c in g.calls if c.op != "inrush.seed.default"]
    ((code, inputs),) = entered
    f(*args)
    times = {"inrush": [], "code": [], "eager": []}
    turns = [("inrush", compiled, args), ("code", code, inputs), ("eager", f, args)]
    end = time.perf_counter() + seconds
    # Each finds in the caches what the one before it left there: every order has its turn.
    for order in itertools.cycle(itertools.permutations(turns)):
        for name, function, operands in order:
            times[name].append(once(function, operands))
        if time.perf_counter() > end and len(times["eager"]) >= 6:
            break
    return {k: {"median": 1e6 * statistics.median(v), "best": 1e6 * min(v)} for k, v in times.items()}, calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backward", action="store_true", help="gradients instead of the operators themselves")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each operator")
    parser.add_argument("--json", help="write everything that was measured here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if options.backward:
        cases, time_of = gradients.cases(elementwise()), gradients.measure
    else:
        cases, time_of = [*elementwise(), *((name, f, tuple(args)) for name, (f, *args) in others().items())], torch.no_grad()(measure)
    rows, called, failed = [], [], []
    for name, f, args in cases:
        if options.only not in name:
            continue
        try:
            times, calls = time_of(f, args, options.seconds)
        except Exception as error:
            failed.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))
            continue
        if calls:
            called.append((name, calls))
            continue
        ratios = {f"{k}_{m}": times["eager"][m] / times[k][m] for k in ("inrush", "code") for m in ("median", "best")}
        rows.append({"operator": name, **times, "ratios": ratios})
        print(f"{name}: {ratios['inrush_best']:.2f}", file=sys.stderr, flush=True)
    rows.sort(key=lambda r: r["ratios"]["inrush_best"])
    print(f"{'':32} {'best us':>30} {'times faster, best':>20} {'median':>20}")
    print(f"{'operator':32} {'inrush':>10}{'its code':>10}{'eager':>10} {'call':>10}{'code':>10} {'call':>10}{'code':>10}")
    for r in rows:
        best = "".join(f"{r[k]['best']:10.0f}" for k in ("inrush", "code", "eager"))
        ratio = [f"{r['ratios'][f'inrush_{m}']:10.2f}{r['ratios'][f'code_{m}']:10.2f}" for m in ("best", "median")]
        print(f"{r['operator']:32} {best} {ratio[0]} {ratio[1]}  {remark(r)}".rstrip())
    slower = sum(r["ratios"]["inrush_best"] < 1 for r in rows)
    slow = sum(r["ratios"]["code_best"] < 1 for r in rows)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{len(rows)} operators, {slower} slower than eager, {slow} of them without what Dynamo takes, "
        f"{len(called)} called, {len(failed)} not run; {torch.get_num_threads()} threads, load {load:.1f}"
    )
    for name, why in failed:
        print(f"  not run: {name}: {why}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"rows": rows, "called": called, "failed": failed}, out, indent=1)


if __name__ == "__main__":
    main()
