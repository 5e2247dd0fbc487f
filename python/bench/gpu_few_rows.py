"""Products of few rows with weights of linear layers on a GPU, with bias and relu: microseconds with cold caches.

usage: gpu_few_rows.py [ROWS,ROWS,...]

"library" is eager's addmm and relu, "product" its product alone. Errors are relative, against float64.
"""

import sys

import torch
import triton

WEIGHTS = ((4096, 4096), (11008, 4096), (4096, 11008), (2048, 2048), (2048, 8192), (32000, 4096))


def layer(x, weights, bias):
    return torch.relu(torch.addmm(bias, x, weights))


def micros(call):
    return round(triton.testing.do_bench(call, warmup=10, rep=40, return_mode="median") * 1e3, 1)


def error(result, reference):
    return ((result.double() - reference).norm() / reference.norm()).item()


def measure(rows, columns, depth, dtype=torch.bfloat16):
    x = torch.randn(rows, depth, device="cuda", dtype=dtype)
    weights = (torch.randn(columns, depth, device="cuda", dtype=dtype) * 0.02).t()
    bias = torch.randn(columns, device="cuda", dtype=dtype)
    reference = layer(x.double(), weights.double(), bias.double())
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="inrush")
    errors = [error(f(x, weights, bias), reference) for f in (compiled, layer)]
    times = [
        micros(lambda: compiled(x, weights, bias)),
        micros(lambda: layer(x, weights, bias)),
        micros(lambda: x @ weights),
    ]
    print(
        f"{rows:3} x {depth:5} x {columns:5}: inrush {times[0]:6} library {times[1]:6} product {times[2]:6}"
        f"   errors {errors[0]:.1e} {errors[1]:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    with torch.no_grad():
        for columns, depth in WEIGHTS:
            for rows in map(int, (sys.argv[1] if len(sys.argv) > 1 else "2,4,8,16").split(",")):
                measure(rows, columns, depth)
