"""Checks and times GPU kernels on a GPU.

`gpu_check.py [FOLDER...] [--filter TEXT] [--inductor SECONDS] [--seconds S] [--jobs N] [--compiled a,b] [--json FILE]`

FOLDER is what `inrush-gpucheck` wrote. Programs with data are run and compared with the loop interpreter's results; programs
without are run on random inputs, compared with PyTorch where the name says what they compute, and timed against a device copy of
as many bytes. Programs with an `@` in their names have other tiles than the rules choose: of these the table shows what is faster.
`--compiled` runs what needs the package `inrush` itself: `optimiser` (steps over many tensors), `background` (tiles by measurement while calls go on), `tune` (tiles by measurement, in
two processes), `large` (more elements than 32 bits count).
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

import installed  # noqa: F401
from kernel_results import differs, types_within

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
    "layernorm": lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b),
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

    def types_within(self, plan):
        return types_within(plan, lambda name: (self.folder / self.entries[name]["file"]).read_text())

    def launch(self, name, programs, values):
        entry = self.entries[name]
        if name not in self.built:
            self.built[name] = build(self.folder, name, entry, self.target)
        if programs:
            self.built[name][(programs, 1, 1)](*values, *entry["constants"].values())


def as_dtype(held, dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    return held[: held.numel() // size * size].view(dtype)


def argument(a, storage):
    """A number, a tensor, or a descriptor of one."""
    if "int" in a:
        return a["int"]
    if "map" not in a:
        return as_dtype(storage[str(a["buf"])], TORCH[a["type"][1:]])
    dtype, block = a["type"].removeprefix("tensordesc<").removesuffix("]>").split("[")
    base = as_dtype(storage[str(a["map"])], TORCH[dtype])[a["offset"] :]
    return TensorDescriptor(base, a["sizes"], a["strides"], [int(n) for n in block.split(",")])


def prepare(plan, storage):
    """The launches with their tensors."""
    out = []
    for launch in plan["launches"]:
        values = [argument(a, storage) for a in launch["arguments"]]
        out.append((launch["kernel"], launch["programs"], values))
    return out


def results(plan, storage):
    for out in plan["outputs"]:
        flat = as_dtype(storage[str(out["buf"])], getattr(torch, out["dtype"]))
        yield out["name"], torch.as_strided(flat, out["sizes"], out["strides"], out["offset"])


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
    types = kernels.types_within(plan)
    for name, got in results(plan, storage):
        problem = differs(got.cpu(), given[name], types, 1e-4)
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
        problem = differs(outputs[0], want, kernels.types_within(plan), 1e-4)
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
        # In turns: what the machine does besides weighs on both.
        ours, others = [taken], []
        for _ in range(3):
            others.append(median(other.replay, 0.05))
            ours.append(median(graph.replay, 0.05))
        row.append(min(others) / min(ours))
    table.append(row)


def call_time(f, seconds=0.5):
    """Seconds of a call, host and device: the least of many."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    times, began = [], time.time()
    while len(times) < 5 or time.time() - began < seconds:
        start = time.perf_counter()
        f()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def gpt2_parameters(layers, device="cuda"):
    """Tensors of the shapes that a language model has."""
    shapes = [(50257, 768), (1024, 768)]
    for _ in range(layers):
        shapes += [(768,), (768,), (768, 2304), (2304,), (768, 768), (768,)]
        shapes += [(768,), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    shapes += [(768,), (768,)]
    generator = torch.Generator(device).manual_seed(0)
    return [torch.randn(s, device=device, generator=generator) * 0.02 for s in shapes]


def optimiser(failures, until):
    """A compiled step of AdamW over many tensors: right, in few launches, and its time beside others'."""

    def make(**options):
        params = [torch.nn.Parameter(p) for p in gpt2_parameters(12)]
        generator = torch.Generator("cuda").manual_seed(1)
        for p in params:
            p.grad = torch.randn(p.shape, device="cuda", generator=generator)
        return params, torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1, capturable=True, **options)

    want, eager = make(foreach=True)
    for _ in range(3):
        eager.step()
    rows = [("eager, foreach", call_time(eager.step))]
    fused = make(fused=True)[1]
    rows.append(("eager, fused", call_time(fused.step)))
    del fused
    moved = sum(p.numel() for p in want) * 4 * 7
    for backend in ("inrush", "inductor"):
        if time.time() > until:
            print(f"{backend}: no time left")
            continue
        torch._dynamo.reset()
        params, optimiser = make(foreach=True)

        @torch.compile(backend=backend)
        def step(optimiser=optimiser):
            optimiser.step()

        began = time.time()
        for k in range(3):
            step()
        torch.cuda.synchronize()
        first = time.time() - began
        if backend == "inrush":
            import inrush

            print(f"  {inrush.last_compile()}")
            print("  launches:", [len(g.kernels) for g in inrush.last_compile().graphs])
            again, other = make(foreach=True)
            for _ in range(3):
                other.step()
            worst = max(float((a - b).detach().abs().max()) for a, b in zip(params, again))
            print(f"  largest difference to eager after 3 steps: {worst:.2e}")
            if not worst < 1e-5:
                failures.append(f"AdamW differs by {worst}")
        rows.append((f"{backend} (first calls {first:.1f} s)", call_time(step)))
        del params, optimiser, step
    for name, taken in rows:
        print(f"  AdamW over {len(want)} tensors, {name:32} {taken * 1e6:9.1f} us, {moved / taken / 1e12:5.2f} TB/s")


TUNED = """
import sys, time, torch, inrush
from torch.nn import functional as F
torch.manual_seed(0)

def f(x, w, b):
    return F.gelu(F.layer_norm(x, x.shape[-1:], w, b)), x.t().contiguous(), x.float().var(1)

x = torch.randn(100000, 65, device="cuda", dtype=torch.bfloat16)
w, b = torch.randn(65, device="cuda", dtype=torch.bfloat16), torch.randn(65, device="cuda", dtype=torch.bfloat16)
want = f(x, w, b)
began = time.time()
g = torch.compile(f, backend="inrush", options={"tune": True, "cache": False})
got = g(x, w, b)
torch.cuda.synchronize()
print(f"  first call {time.time() - began:.2f} s")
for line in inrush.last_compile().graphs[0].tuned:
    print("   ", line)
for a, b in zip(got, want):
    torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
"""


def tune(failures, until):
    """Tiles by measurement, and the winners again in a second process."""
    with tempfile.TemporaryDirectory() as cache:
        for k in range(2):
            env = dict(os.environ, INRUSH_CACHE_DIR=cache)
            left = max(until - time.time(), 30)
            done = subprocess.run([sys.executable, "-c", TUNED], capture_output=True, text=True, env=env, timeout=left)
            print(done.stdout, end="")
            if done.returncode:
                failures.append("tuning: " + done.stderr[-1500:])
            elif k == 1 and "from the cache" not in done.stdout:
                failures.append("tuning: winners were not found again")


IN_BACKGROUND = """
import copy, sys, time, torch, inrush
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
torch.manual_seed(0)

class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(1024, 2048), torch.nn.Linear(2048, 1024)
        self.norm = torch.nn.LayerNorm(1024)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x)))) * x.std(-1, keepdim=True)

def time_of(f, x):
    for _ in range(5):
        f(x)
    torch.cuda.synchronize()
    began = time.time()
    for _ in range(100):
        f(x)
    torch.cuda.synchronize()
    return (time.time() - began) / 100 * 1e6

def device(f, x):
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(20):
            f(x)
        torch.cuda.synchronize()
    return sum(e.self_device_time_total for e in p.key_averages() if e.device_type.name == "CUDA") / 20

with torch.no_grad():
    step = Step().cuda().bfloat16().eval()
    x = torch.randn(128, 1024, device="cuda", dtype=torch.bfloat16)
    want = step(x)
    check = lambda got: torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    began = time.time()
    options = {"tune": "background", "cudagraphs": sys.argv[1] == "captured", "strict": True}
    f = torch.compile(step, backend="inrush", options=options)
    check(f(x))
    print(f"  first call {time.time() - began:.2f} s")
    if sys.argv[1] == "left":
        # The process ends while its kernels are measured.
        sys.exit(0)
    calls = captures = 0
    while not inrush.wait_for_tuning(0.002):
        check(f(x))
        calls += 1
        if calls % 10 == 0:
            # Other threads must not end a capture in the global mode.
            graph, y = torch.cuda.CUDAGraph(), torch.zeros(8, device="cuda")
            with torch.cuda.graph(graph):
                y += 1
            graph.replay()
            captures += 1
            assert y.sum().item() == 8, y
    print(f"  {time.time() - began:.1f} s, {calls} calls and {captures} captures meanwhile")
    check(f(x))
    for _ in range(4):
        check(f(x))
    tuned = inrush.last_compile().graphs[-1].tuned
    print(f"  {len(tuned)} kernels")
    for line in tuned:
        print("   ", line)
    assert any(line.startswith("product ") for line in tuned), "nothing was measured"
    rules = torch.compile(copy.deepcopy(step), backend="inrush", options={**options, "tune": False, "cache": False})
    for _ in range(4):
        check(rules(x))
    # By turns: neither has a quieter machine.
    times = [(time_of(rules, x), time_of(f, x)) for _ in range(8)]
    before, after = (min(t) for t in zip(*times))
    print(f"  {before:.1f} us by the rules, {after:.1f} us tuned; on the device {device(rules, x):.1f} and {device(f, x):.1f}")
"""


def background(failures, until):
    """Tiles that are measured while calls go on, with captured calls too; and a process that ends before that is done."""
    for way in ("issued", "captured", "left"):
        with tempfile.TemporaryDirectory() as cache:
            env = dict(os.environ, INRUSH_CACHE_DIR=cache)
            left = min(max(until - time.time(), 60), 3600)
            began = time.time()
            try:
                done = subprocess.run([sys.executable, "-c", IN_BACKGROUND, way], capture_output=True, text=True, env=env, timeout=left)
            except subprocess.TimeoutExpired:
                failures.append(f"tuning in the background, {way}: not done in {left:.0f} s")
                continue
            print(f" {way}: {time.time() - began:.1f} s\n{done.stdout}", end="")
            if done.returncode:
                failures.append(f"tuning in the background, {way}: " + done.stderr[-1500:])


def large(failures, until):
    """More elements than 32 bits count."""
    n = (1 << 31) + 65
    x = torch.ones(n, dtype=torch.int8, device="cuda")
    x[-1] = 5

    @torch.compile(backend="inrush")
    def f(x):
        return x * 2 + 1

    y = f(x)
    ends = [int(y[k]) for k in (0, (1 << 31) - 1, 1 << 31, n - 2, n - 1)]
    if ends != [3, 3, 3, 3, 11] or int((y != 3).sum()) != 1:
        failures.append(f"a tensor of {n} elements: {ends}")
    del y

    @torch.compile(backend="inrush")
    def rows(x):
        return x[:-1].view(64, -1).sum(1, dtype=torch.int64)

    got = rows(x)
    if not bool((got == (n - 1) // 64).all()):
        failures.append(f"rows of a tensor of {n} elements: {got.tolist()[:4]}")
    print(f"  {n} elements: right")


COMPILED = {"optimiser": optimiser, "tune": tune, "background": background, "large": large}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="*")
    parser.add_argument("--filter", default="")
    parser.add_argument("--inductor", type=float, default=0, help="seconds for timing torch.compile beside")
    parser.add_argument("--seconds", type=float, default=1e9, help="no other tile is tried after that time")
    parser.add_argument("--jobs", type=int, default=0, help="processes that build ahead")
    parser.add_argument("--compiled", default="", help=f"of {', '.join(COMPILED)}")
    parser.add_argument("--json", type=Path, help="the whole table")
    args = parser.parse_args()
    start = time.time()
    target = triton.runtime.driver.active.get_current_target()
    # Scratch memory of kernels that make descriptors.
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
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
    for name in filter(None, args.compiled.split(",")):
        print(f"{name}, after {time.time() - start:.0f} s")
        try:
            COMPILED[name](failures, start + args.seconds)
        except Exception as e:
            failures.append(f"{name}: {type(e).__name__}: {str(e)[-1500:]}")
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
