"""Checks and times GPU kernels on a GPU.

`gpu_check.py FOLDER... [--filter TEXT] [--inductor SECONDS] [--seconds S] [--jobs N] [--json FILE]`

FOLDER is what `inrush-gpucheck` wrote. Programs with data are run and compared with the loop interpreter's results; programs
without are run on random inputs, compared with PyTorch where the name says what they compute, and timed against a device copy of
as many bytes. Programs with an `@` in their names have other tiles than the rules choose: of these the table shows what is faster.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

import torch
import triton

TORCH = {
    "i1": torch.bool, "u8": torch.uint8, "i8": torch.int8, "u16": torch.uint16, "i16": torch.int16,
    "u32": torch.uint32, "i32": torch.int32, "u64": torch.uint64, "i64": torch.int64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}


def rms_norm(x, w):
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * w.float()).to(x.dtype)


# What the benchmark graphs compute, by the first word of their names.
EAGER = {
    "pointwise": lambda a, b: torch.sigmoid(a * b) + a,
    "softmax": lambda x: torch.softmax(x, -1),
    "layernorm_gelu": lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)),
    "rmsnorm_silu": lambda x, w, g: rms_norm(x, w) * torch.nn.functional.silu(g),
    "transpose": lambda x: x.t().contiguous(),
    "rowvar": lambda x: x.var(1),
    "colsum": lambda x: x.sum(0),
    "matmul": lambda a, b: a @ b,
    "narrow": lambda x: x.to(torch.float8_e4m3fn).float() + x.to(torch.float8_e5m2).float(),
    "sumall": lambda x: x.sum(),
    "tanhgelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def build(folder, name, entry, target):
    """One kernel, from Triton's cache where a worker has built it."""
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location(name, folder / entry["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature, attrs = {}, {}
    for i, a in enumerate(entry["arguments"]):
        signature[a["name"]] = a["type"]
        if a["divisible"]:
            attrs[(i,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(entry["constants"], "constexpr")
    source = ASTSource(getattr(module, entry["function"]), signature, constexprs=dict(entry["constants"]), attrs=attrs)
    options = {"num_warps": entry["warps"], "num_stages": entry["stages"], "debug": entry["debug"], "sanitize_overflow": False}
    return triton.compile(source, target=target, options=options)


def prebuild(job):
    """In a process of its own: the kernel, and the stub that launches its like."""
    try:
        from triton.backends.nvidia.driver import CudaLauncher

        made = build(*job)
        CudaLauncher(made.src, made.metadata)
    except Exception:
        pass  # It fails again where it is needed, and is reported there.


class Kernels:
    def __init__(self, folder, index, target):
        self.folder, self.entries, self.target, self.built = folder, index["kernels"], target, {}

    def launch(self, name, programs, values):
        entry = self.entries[name]
        if name not in self.built:
            self.built[name] = build(self.folder, name, entry, self.target)
        if programs:
            self.built[name][(programs, 1, 1)](*values, *entry["constants"].values())


def as_dtype(held, dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    return held[: held.numel() // size * size].view(dtype)


def prepare(plan, storage):
    """The launches with their tensors."""
    out = []
    for launch in plan["launches"]:
        values = [
            a["int"] if "int" in a else as_dtype(storage[str(a["buf"])], TORCH[a["type"][1:]]) for a in launch["arguments"]
        ]
        out.append((launch["kernel"], launch["programs"], values))
    return out


def results(plan, storage):
    for out in plan["outputs"]:
        flat = as_dtype(storage[str(out["buf"])], getattr(torch, out["dtype"]))
        yield out["name"], torch.as_strided(flat, out["sizes"], out["strides"], out["offset"])


def differs(got, want):
    if got.numel() == 0:
        return None
    if not want.dtype.is_floating_point:
        bad = (got != want).flatten()
        return f"{int(bad.sum())} of {bad.numel()} elements" if bad.any() else None
    bound = {torch.float64: 1e-10, torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(want.dtype, 1e-4)
    a, b = got.double().flatten(), want.double().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = b.isfinite()
    scale = b[finite].abs().max() if finite.any() else torch.ones((), device=b.device)
    bad = ~(same | ((a - b).abs() <= bound * torch.maximum(b.abs(), 0.1 * scale)))
    if not bad.any():
        return None
    at = int(bad.nonzero()[0])
    return f"{int(bad.sum())} of {bad.numel()} elements, {at} is {float(a[at])}, not {float(b[at])}"


def run_case(kernels, folder, program, failures):
    from safetensors.torch import load_file

    plan = program["run"]
    given = load_file(folder / plan["data"])
    storage = {}
    for k, n in plan["buffers"].items():
        held = torch.full((max(n, 16),), 0xA5, dtype=torch.uint8)
        content = given.get(f"buf{k}")
        if content is not None:
            raw = content.contiguous().view(torch.uint8).flatten()
            held[: raw.numel()] = raw
        storage[k] = held.cuda()
    for name, programs, values in prepare(plan, storage):
        kernels.launch(name, programs, values)
    torch.cuda.synchronize()
    for name, got in results(plan, storage):
        problem = differs(got.cpu(), given[name])
        if problem:
            failures.append(f"{program['name']} {name}: {problem} ({', '.join(program['kernels'])})")


def median(f, seconds=0.15):
    f()
    torch.cuda.synchronize()
    pairs, began = [], time.time()
    while len(pairs) < 10 or (time.time() - began < seconds and len(pairs) < 200):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        FLUSH.zero_()
        a.record()
        f()
        b.record()
        pairs.append((a, b))
        if len(pairs) % 10 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairs)
    return times[len(times) // 2] * 1e-3


def run_benchmark(kernels, program, failures, table, copies, compare):
    plan = program["run"]
    storage = {k: torch.full((max(n, 16),), 0xA5, dtype=torch.uint8, device="cuda") for k, n in plan["buffers"].items()}
    inputs = []
    for given in plan["random"]:
        flat = as_dtype(storage[str(given["buf"])], getattr(torch, given["dtype"]))
        flat.copy_(torch.randn(flat.shape, device="cuda", dtype=torch.float32).to(flat.dtype))
        inputs.append(torch.as_strided(flat, given["sizes"], given["strides"], given["offset"]))
    launches = prepare(plan, storage)

    def call():
        for name, programs, values in launches:
            kernels.launch(name, programs, values)

    call()
    torch.cuda.synchronize()
    outputs = [o for _, o in results(plan, storage)]
    kind = next((k for k in EAGER if program["name"].startswith(k)), None)
    if kind:
        wide = [i.float() if i.dtype.is_floating_point else i for i in inputs]
        want = EAGER[kind](*wide).to(outputs[0].dtype)
        problem = differs(outputs[0], want)
        if problem:
            failures.append(f"{program['name']}: {problem}")
        del wide, want
    # A graph takes the launcher's own time away.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    variant = "@" in program["name"]
    taken = median(graph.replay, 0.03 if variant else 0.15)
    moved = sum(t.numel() * t.element_size() for t in inputs + outputs)
    if moved not in copies:
        a = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        copies[moved] = median(lambda: b.copy_(a))
        del a, b
    row = [program["name"], moved / taken / 1e12, copies[moved] / taken, taken * 1e6]
    if compare and kind and not variant and time.time() < compare:
        torch._dynamo.reset()
        f = torch.compile(EAGER[kind])
        f(*inputs)
        other = torch.cuda.CUDAGraph()
        with torch.cuda.graph(other):
            f(*inputs)
        row.append(median(other.replay) / taken)
    table.append(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--filter", default="")
    parser.add_argument("--inductor", type=float, default=0, help="seconds for timing torch.compile beside")
    parser.add_argument("--seconds", type=float, default=1e9, help="no other tile is tried after that time")
    parser.add_argument("--jobs", type=int, default=0, help="processes that build ahead")
    parser.add_argument("--json", type=Path, help="the whole table")
    args = parser.parse_args()
    start = time.time()
    target = triton.runtime.driver.active.get_current_target()
    if args.jobs:
        import multiprocessing

        jobs = []
        for folder in args.folder:
            entries = json.loads((folder / "index.json").read_text())["kernels"]
            jobs += [(folder, name, entry, target) for name, entry in entries.items()]
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            for _ in pool.imap_unordered(prebuild, jobs, chunksize=4):
                pass
        print(f"built {len(jobs)} kernels in {time.time() - start:.1f} s")
    global FLUSH
    # Larger than the cache: what is timed comes from memory.
    FLUSH = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    failures, table, copies, ran = [], [], {}, 0
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    for folder in args.folder:
        index = json.loads((folder / "index.json").read_text())
        kernels = Kernels(folder, index, target)
        # Other tiles come last, for what time is left.
        for program in sorted(index["programs"], key=lambda p: "@" in p["name"]):
            if args.filter not in program["name"]:
                continue
            if program["refused"]:
                print(f"refused {program['name']}: {program['refused'][0].splitlines()[0]}")
            plan = program.get("run")
            if plan is None:
                continue
            if "@" in program["name"] and time.time() - start > args.seconds:
                continue
            ran += 1
            try:
                if "data" in plan:
                    run_case(kernels, folder, program, failures)
                else:
                    run_benchmark(kernels, program, failures, table, copies, args.inductor and args.inductor + start)
            except Exception as e:
                text = str(e).strip().splitlines() or [repr(e)]
                failures.append(f"{program['name']}: {type(e).__name__}: " + " | ".join(text[-5:])[:600])
                if "CUDA error" in str(e):
                    break
    if table:
        print(f"{'program':42} {'TB/s':>6} {'of copy':>8} {'us':>9}" + ("  inductor/ours" if args.inductor else ""))
    for name, rate, share, taken, *other in table:
        if "@" in name:
            continue
        print(f"{name:42} {rate:6.2f} {share:8.2f} {taken:9.1f}" + (f" {other[0]:8.2f}" if other else ""))
        others = sorted((row for row in table if row[0].startswith(f"{name}@")), key=lambda row: row[3])
        for row in others[:4]:
            if row[3] < 0.98 * taken:
                print(f"    {row[0][len(name):]:38} {row[1]:6.2f} {row[2]:8.2f} {row[3]:9.1f}")
    if args.json:
        args.json.write_text(json.dumps(table))
    for f in failures:
        print("FAILED", f)
    print(f"{ran} programs ran, {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
