"""Printed source of graphs on a GPU: runs it, the compiled graph and eager, compares results, and times calls.

usage: gpu_source_check.py [--interpreted]

Needs a GPU, or with `--interpreted` none: kernels run in Triton's interpreter then, and times say nothing. Prints a line for each
graph: launches, the largest error against eager, microseconds of a call eagerly, compiled, and of the printed file.
"""

import importlib.util
import os
import re
import statistics
import sys
import tempfile
import time

INTERPRETED = sys.argv[1:] == ["--interpreted"]
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["INRUSH_INTERPRET"] = "cuda:h100"

import torch
from torch import nn
from torch.nn import functional as F

import inrush

DEVICE = "cpu" if INTERPRETED else "cuda"
SIZE = 16 if INTERPRETED else 1024


def chain(x, y):
    """Launches of small kernels that nothing fuses: the time of a call is that of its launches."""
    for _ in range(10):
        x = torch.softmax(x + y, 0) + torch.softmax(y, 1)
    return x


def norm(x, y):
    return F.layer_norm(x, x.shape[-1:]) * y, (x * y).sum(0), x.t()


def product(x, y):
    return F.gelu(x @ y) + x


def written(x, y):
    x.mul_(0.5)
    return x + y.t()


def microseconds(call):
    def synchronize():
        if not INTERPRETED:
            torch.cuda.synchronize()

    times = []
    for _ in range(2 if INTERPRETED else 200):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def load(text):
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location("printed", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    if INTERPRETED:
        from inrush.triton import interpreter_shims

        interpreter_shims.patch()
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(SIZE, 64), nn.GELU(), nn.LayerNorm(64)).to(DEVICE).eval()
    x, y = (torch.randn(SIZE, SIZE, device=DEVICE) for _ in range(2))
    cases = [(f.__name__, f, (x, y)) for f in (chain, norm, product, written)] + [("mlp", mlp, (x,))]
    failed = False
    for name, f, args in cases:
        torch._dynamo.reset()
        compiled = torch.compile(f, backend=inrush.backend, options={"strict": True, "cache": False})
        flat = []
        with torch.no_grad():
            wanted = f(*[a.clone() for a in args])
            compiled(*[a.clone() for a in args])
            # The order in which the graph takes its inputs is that of its printed call: tensors of the model come with it.
            (text,) = inrush.output_code(compiled)
            module = load(text)
            flat = order(module, [a.clone() for a in args], f)
            got = module.call(*flat)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            error = max((g - w).abs().max().item() for g, w in zip(got, wanted))
            ok = all(torch.allclose(g, w, rtol=1e-3, atol=1e-3) for g, w in zip(got, wanted))
            failed |= not ok
            times = [microseconds(lambda: f(*args)), microseconds(lambda: compiled(*args)), microseconds(lambda: module.call(*flat))]
        launches = len(re.findall(r"^ +\w+_kernel(?:_\d+)?\(|torch\.ops\.aten\.", text, re.M))
        print(f"{name:10} {launches:3} launches  error {error:.1e}  eager {times[0]:8.1f}  compiled {times[1]:8.1f}  printed {times[2]:8.1f} us" + ("" if ok else "  WRONG"), flush=True)
    return int(failed)


def order(module, args, f):
    """The inputs of a graph: arguments, and parameters of a module, found by their shapes."""
    pool = args + ([p.detach() for p in f.parameters()] if isinstance(f, nn.Module) else [])
    out = []
    for drawn in module.inputs():
        at = next(k for k, t in enumerate(pool) if t.shape == drawn.shape)
        out.append(pool.pop(at))
    return out


if __name__ == "__main__":
    sys.exit(main())
