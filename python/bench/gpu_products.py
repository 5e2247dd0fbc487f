"""Products of halves on a GPU: kernels, the vendor's library, and the rules that choose between them.

usage: gpu_products.py [--layouts nt,nn,tn,tt] [--rows M,M..] [--columns N,N..] [--terms K,K..] [--tune]

Each line is `silu(x @ w + b) * g` in bfloat16 of M x N results with sums of K terms: the library's product alone, the library with a
kernel for what follows, the persistent kernel, in us with cold caches, and the quotient of the last two. A star marks what the rule takes. `--tune` prints what tuning measures
instead: the library with a kernel for what follows, one kernel with the fastest tile, and how much the rules' tile loses. `nt`: rows of x
and columns of w are contiguous, as in a linear layer; `nn`: rows of both. At the end: what the rule's choices lose against the
better one of each shape. Exit code 1 where a result is off.
"""

import argparse
import itertools
import re
import statistics
import sys

import torch
from gpu_dynamic import events
from torch.nn import functional as F

import inrush  # noqa: F401


def operands(m, n, k, layout):
    """Matrices of m x k and k x n, a bias, and factors of the result."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02
    x = x if layout[0] == "n" else x.t().contiguous().t()
    w = w if layout[1] == "t" else w.t().contiguous().t()
    return x, w.t(), torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.randn(m, n, device="cuda", dtype=torch.bfloat16)


def gated(x, w, b, g):
    return F.silu(torch.addmm(b, x, w)) * g


def compiled(products):
    torch._dynamo.reset()
    return torch.compile(gated, backend="inrush", options={"strict": True, "products": products})


def tuned(args):
    """Microseconds with the library, with one kernel, and with one kernel by the tile of the rules; and if they take the kernel."""
    torch._dynamo.reset()
    result = torch.compile(gated, backend="inrush", options={"strict": True, "tune": True, "cache": False})(*args)
    lines = inrush.last_compile().graphs[-1].tuned
    (product,) = [line for line in lines if line.startswith("product ")]
    library, kernel = (float(t) for t in re.findall(r"(?:library|kernel) ([\d.]+) us", product))
    # The kernel is tuned once more, under its own name, where it is taken.
    tiles = [re.search(r": \S+ ([\d.]+) us, \S+ ([\d.]+) us", line) for line in lines if line.startswith("addmm_")]
    rule = next((float(t[1]) / float(t[2]) for t in tiles if t), None)
    return result, library, kernel, rule, takes_kernel(args)


def tune(options):
    """Prints what tuning measures; returns how many results were off."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, us: library, kernel, library by kernel, the rules' tile by the best", flush=True)
    failed, lost = 0, []
    for layout, m, n, k in itertools.product(options.layouts, options.rows, options.columns, options.terms):
        torch.manual_seed(0)
        args = operands(m, n, k, layout)
        result, library, kernel, rule, taken = tuned(args)
        exact = gated(*(a.double() for a in args))
        wrong = ((result.double() - exact).norm() / exact.norm()).item() > 1e-2
        failed += wrong
        by_rule = kernel * (rule or 1) if taken else library
        lost.append(by_rule / min(kernel, library))
        told = f"{rule:6.3f}" if rule else "     -"
        mark = "*" if taken else " "
        print(f"{layout} {m:6} {n:6} {k:6} {library:9.1f} {kernel:9.1f}{mark} {library / kernel:6.3f} {told}{'  WRONG' if wrong else ''}", flush=True)
    print(f"the rules lose {100 * statistics.mean(lost) - 100:.1f} % in the mean, {100 * max(lost) - 100:.1f} % at most")
    return failed


def takes_kernel(args):
    """Returns true if the rule takes the kernel."""
    compiled("auto")(*args)
    return not inrush.last_compile().graphs[-1].libraries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("--layouts", type=lambda text: text.split(","), default=["nt"])
    parser.add_argument("--rows", type=numbers, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--columns", type=numbers, default=[1024, 4096, 11008])
    parser.add_argument("--terms", type=numbers, default=[512, 1024, 4096, 11008])
    parser.add_argument("--tune", action="store_true", help="print what tuning measures")
    options = parser.parse_args()
    if options.tune:
        sys.exit(tune(options) > 0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, us: product alone, library, kernel, library by kernel", flush=True)
    failed, lost = 0, []
    for layout, m, n, k in itertools.product(options.layouts, options.rows, options.columns, options.terms):
        torch.manual_seed(0)
        args = operands(m, n, k, layout)
        calls = {"alone": lambda: torch.mm(args[0], args[1])}
        for products in ("library", "kernel"):
            f = compiled(products)
            f(*args)
            calls[products] = lambda f=f: f(*args)
        times = {name: statistics.median(t) for name, t in zip(calls, zip(*([events(c, ()) for c in calls.values()] for _ in range(3))))}
        exact = gated(*(a.double() for a in args))
        error = lambda got: ((got.double() - exact).norm() / exact.norm()).item()
        wrong = error(calls["kernel"]()) > 2 * error(calls["library"]()) + 1e-3
        failed += wrong
        taken = takes_kernel(args)
        lost.append(times["kernel" if taken else "library"] / min(times["kernel"], times["library"]))
        print(
            f"{layout} {m:6} {n:6} {k:6} {times['alone']:9.1f} {times['library']:9.1f} {times['kernel']:9.1f}{'*' if taken else ' '} "
            f"{times['library'] / times['kernel']:6.3f}{'  WRONG' if wrong else ''}",
            flush=True,
        )
    print(f"the rule loses {100 * statistics.mean(lost) - 100:.1f} % in the mean, {100 * max(lost) - 100:.1f} % at most")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
