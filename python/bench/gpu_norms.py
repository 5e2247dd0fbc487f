"""Cross entropy and group norm on a GPU: checks against eager in float64, and times compared with PyTorch's default backend.

usage: gpu_norms.py

Times are medians in ms with cold caches; `copy` is a device copy of the input. Exit code 1 where a result is off by more than twice
eager's error in the same dtype and a rounding of the result.
"""

import sys

import torch
from torch.nn import functional as F

import inrush  # noqa: F401


def cross_entropy(dtype):
    x, t = torch.randn(8192, 32000, device="cuda", dtype=dtype), torch.randint(0, 32000, (8192,), device="cuda")
    return lambda x, t: F.cross_entropy(x, t), (x, t)


def group_norm(dtype):
    x = torch.randn(16, 512, 64, 64, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
    w, b = (torch.randn(512, device="cuda", dtype=dtype) for _ in range(2))
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (x, w, b)


def log_softmax(dtype):
    return lambda x: torch.log_softmax(x, -1), (torch.randn(8192, 32000, device="cuda", dtype=dtype),)


def layer_norm(dtype):
    return lambda x: F.layer_norm(x, x.shape[-1:]), (torch.randn(8192, 5000, device="cuda", dtype=dtype),)


def wide(values):
    return [v.double() if v.is_floating_point() else v for v in values]


def main():
    import triton

    median = lambda f: triton.testing.do_bench(f, warmup=15, rep=80, return_mode="median")  # noqa: E731
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, ms")
    failed = 0
    for make in (cross_entropy, group_norm, log_softmax, layer_norm):
        for dtype in (torch.bfloat16, torch.float32):
            torch.manual_seed(0)
            f, args = make(dtype)
            name = f"{make.__name__} {str(dtype).removeprefix('torch.')}"
            with torch.no_grad():
                eager = f(*args)
                # Parts of the rows are enough, and fit into memory in float64.
                few = (*wide([args[0][:64]]), *wide([a[:64] if a.shape[0] == args[0].shape[0] else a for a in args[1:]]))
                short = (args[0][:64], *[a[:64] if a.shape[0] == args[0].shape[0] else a for a in args[1:]])
                exact = f(*few)
                text = f"copy {median(lambda: args[0].clone()):.4f}, eager {median(lambda: f(*args)):.4f}"
                for way, options in {"inrush": {"backend": "inrush", "options": {"strict": True}}, "default": {}}.items():
                    torch._dynamo.reset()
                    compiled = torch.compile(f, dynamic=False, **options)
                    got = compiled(*args)
                    text += f", {way} {median(lambda: compiled(*args)):.4f}"
                    if way == "inrush":
                        off = (compiled(*short).double() - exact).abs().max().item()
                        bound = 2 * (f(*short).double() - exact).abs().max().item() + torch.finfo(dtype).eps * exact.abs().max().item()
                        far = (got.double() - eager.double()).abs().max().item() > 0.05 * max(eager.abs().max().item(), 1.0)
                        good = off <= bound and not far
                        failed += not good
                        text = f"{'ok' if good else 'FAILED':6} {text}"
            print(f"{name:24} {text}", flush=True)
            del f, args, eager, got, compiled
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
