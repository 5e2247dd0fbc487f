"""Matrix products of the engine beside PyTorch's, in one process, in turns, on the same OpenMP threads.

    cargo build --release -p inrush-cpu --example beside
    python python/bench/products.py target/release/examples/libbeside.so [NAME ...] [--own] [--packed] [--seconds S]

Names pick shapes that contain one of them; `--own` gives the engine threads of its own, `--packed` lets it pack the
right-hand side beforehand, `--json` writes one line a shape.
"""
import argparse
import ctypes
import json
import math
import statistics
import time

import torch

# name, batch, m, k, n, layouts of a and b: n as a row-major [m, k] or [k, n], t its transpose in memory (a linear layer's
# weight as b is t; a weight gradient x^T g has a t).
SHAPES = [
    ("square_512", 1, 512, 512, 512, "nn"), ("square_1024", 1, 1024, 1024, 1024, "nt"),
    ("square_1024_nn", 1, 1024, 1024, 1024, "nn"),
    ("distilbert_proj", 1, 128, 768, 768, "nt"), ("distilbert_ffn_in", 1, 128, 768, 3072, "nt"),
    ("distilbert_ffn_out", 1, 128, 3072, 768, "nt"),
    ("distilbert_scores", 12, 128, 64, 128, "nt"), ("distilbert_values", 12, 128, 128, 64, "nn"),
    ("gpt2_qkv", 1, 64, 768, 2304, "nn"), ("gpt2_ffn_in", 1, 64, 768, 3072, "nn"),
    ("gpt2_ffn_out", 1, 64, 3072, 768, "nn"), ("gpt2_proj", 1, 64, 768, 768, "nn"),
    ("gpt2_scores", 12, 64, 64, 64, "nt"), ("gpt2_head", 1, 64, 768, 50257, "nt"),
    ("vit_qkv", 1, 197, 192, 576, "nt"), ("vit_proj", 1, 197, 192, 192, "nt"),
    ("vit_ffn_in", 1, 197, 192, 768, "nt"), ("vit_ffn_out", 1, 197, 768, 192, "nt"),
    ("vit_scores", 3, 197, 64, 197, "nt"), ("vit_values", 3, 197, 197, 64, "nn"), ("vit_head", 1, 1, 192, 1000, "nt"),
    ("llama_q", 1, 128, 512, 512, "nt"), ("llama_kv", 1, 128, 512, 256, "nt"), ("llama_ffn_in", 1, 128, 512, 1376, "nt"),
    ("llama_ffn_out", 1, 128, 1376, 512, "nt"), ("llama_head", 1, 128, 512, 8000, "nt"),
    ("llama_scores", 8, 128, 64, 128, "nt"), ("llama_values", 8, 128, 128, 64, "nn"),
    ("decode_768", 1, 1, 768, 768, "nt"), ("decode_ffn", 1, 1, 768, 3072, "nt"), ("decode_head", 1, 1, 768, 50257, "nt"),
    ("decode_nn_768", 1, 1, 768, 768, "nn"), ("decode_nn_ffn", 1, 1, 768, 3072, "nn"), ("decode_nn_out", 1, 1, 3072, 768, "nn"),
    ("decode_scores", 12, 1, 64, 256, "nt"), ("decode_values", 12, 1, 256, 64, "nn"),
    ("few2", 1, 2, 1024, 4096, "nt"), ("few4", 1, 4, 1024, 4096, "nt"), ("few8", 1, 8, 1024, 4096, "nt"),
    ("few16", 1, 16, 1024, 4096, "nt"), ("few2_nn", 1, 2, 1024, 4096, "nn"), ("few4_nn", 1, 4, 1024, 4096, "nn"),
    ("few8_nn", 1, 8, 1024, 4096, "nn"), ("few16_nn", 1, 16, 1024, 4096, "nn"), ("few32", 1, 32, 1024, 4096, "nt"),
    ("train_dw_ffn", 1, 3072, 128, 768, "tn"), ("train_dw_out", 1, 768, 128, 3072, "tn"), ("train_dw_768", 1, 768, 128, 768, "tn"),
    ("train_dx_ffn", 1, 128, 3072, 768, "nn"), ("train_dx_out", 1, 128, 768, 3072, "nn"),
    ("train_dw_head", 1, 50257, 64, 768, "tn"), ("train_dx_head", 1, 64, 50257, 768, "nn"),
    ("train_dv", 12, 128, 128, 64, "tn"), ("train_vit_dw", 1, 768, 197, 192, "tn"),
    ("batch8_proj", 1, 1024, 768, 768, "nt"), ("batch8_ffn", 1, 1024, 768, 3072, "nt"), ("batch8_dw", 1, 3072, 1024, 768, "tn"),
]


def library(path):
    lib = ctypes.CDLL(path)
    lib.beside_pool.restype = ctypes.c_void_p
    lib.beside_product.restype = ctypes.c_void_p
    lib.beside_product.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int]
    lib.beside_run.argtypes = lib.beside_free.argtypes = lib.beside_threads.argtypes = [ctypes.c_void_p]
    return lib


def operand(batch, rows, cols, layout, dtype):
    t = torch.randn(batch, cols, rows).transpose(1, 2) if layout == "t" else torch.randn(batch, rows, cols)
    return t.to(dtype)


def typical(f, calls):
    times = []
    for _ in range(calls):
        # One thread alone: its own time, which others cannot disturb.
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        f()
        times.append(clock() - start)
    # Other processes disturb the slow half.
    return statistics.quantiles(times, n=20)[0] if len(times) > 19 else min(times)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("library")
    args.add_argument("names", nargs="*")
    args.add_argument("--own", action="store_true")
    args.add_argument("--packed", action="store_true")
    args.add_argument("--bf16", action="store_true")
    args.add_argument("--json", action="store_true")
    args.add_argument("--threads", type=int)
    args.add_argument("--seconds", type=float, default=0.25)
    args = args.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    lib = library(args.library)
    pool = lib.beside_pool(torch.get_num_threads() if args.own else 0)
    assert pool, "no OpenMP runtime in this process"
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    ratios = []
    for name, batch, m, k, n, layout in SHAPES:
        if args.names and not any(part in name for part in args.names):
            continue
        a, b = operand(batch, m, k, layout[0], dtype), operand(batch, k, n, layout[1], dtype)
        # Weights of a model do not stay in the caches between calls: as many copies as leave them.
        copies = max(1, min(64, (48 << 20) // (b.numel() * b.element_size()))) if batch == 1 and layout[0] == "n" else 1
        bs = [b] + [b.clone(memory_format=torch.preserve_format) for _ in range(copies - 1)]
        ours, theirs = torch.empty(batch, m, n, dtype=dtype), torch.empty(batch, m, n, dtype=dtype)
        sizes = (ctypes.c_int64 * 10)(batch, m, k, n, *a.stride(), *b.stride())
        flags = int(args.packed) | 2 * int(args.bf16)
        plans = [lib.beside_product(pool, sizes, a.data_ptr(), x.data_ptr(), ours.data_ptr(), flags) for x in bs]
        assert all(plans), name
        flat_a, flat_bs, flat_c = a[0], [x[0] for x in bs], theirs[0]
        turn = [0, 0]

        def peer():
            turn[0] = (turn[0] + 1) % copies
            if batch == 1:
                torch.mm(flat_a, flat_bs[turn[0]], out=flat_c)
            else:
                torch.bmm(a, bs[turn[0]], out=theirs)

        def engine():
            turn[1] = (turn[1] + 1) % copies
            assert lib.beside_run(plans[turn[1]]) == 0

        peer()
        engine()
        reference = a.double() @ b.double()
        error = ((ours.double() - reference).abs().max() / reference.abs().max()).item()
        once = max(typical(peer, 3), 1e-6)
        calls = max(3, min(2000, int(args.seconds / 8 / once)))
        p, e = [], []
        for _ in range(5):
            p.append(typical(peer, calls))
            e.append(typical(engine, calls))
        p, e = min(p), min(e)
        ratios.append(p / e)
        gflops = 2e-9 * batch * m * k * n
        if args.json:
            print(json.dumps({"name": name, "peer_us": p * 1e6, "us": e * 1e6, "ratio": p / e, "error": error}), flush=True)
        else:
            print(f"{name:20} {batch:3} {m:6} {k:6} {n:6} {layout}  peer {p * 1e6:9.1f} us {gflops / p:6.1f} GFLOP/s   "
                  f"engine {e * 1e6:9.1f} us {gflops / e:6.1f}   ratio {p / e:5.2f}  error {error:.1e}", flush=True)
        for plan in plans:
            lib.beside_free(plan)
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
