"""Checks GPU kernels without a GPU: Triton builds each of them for each target, and its interpreter runs them.

`triton_check.py FOLDER [--build cuda:90,hip:gfx942] [--run] [--jobs N] [--limit N] [--filter TEXT] [--share N]`

FOLDER is what `inrush-gpucheck` wrote. Running compares whole programs with the loop interpreter's results. With `--share N` and
`INRUSH_SEED` one in N programs runs, which ones the seed decides. Exit code 1 when something fails.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path

from kernel_results import differs, largest_within, rounded_weights, types_within


def load(folder, entry, name):
    spec = importlib.util.spec_from_file_location(name, folder / entry["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_wait():
    """Returns a function that does nothing, for kernels that begin with an instruction of another vendor."""
    import triton

    @triton.jit
    def gdc_wait():
        pass

    return gdc_wait


def sample(names, limit):
    """Returns `limit` of the names, evenly spread; `INRUSH_SEED` decides which. All of them where `limit` is 0."""
    step = -(-len(names) // limit) if limit else 1
    first = int(os.environ.get("INRUSH_SEED", 0)) % max(step, 1)
    return names[first::max(step, 1)]


def build(folder, index, targets, args):
    """Compiles every kernel for every target, one vendor after the other."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    failures = []
    for target in targets:
        backend, arch = target.split(":")
        gpu = GPUTarget(backend, int(arch) if arch.isdigit() else arch, 64 if backend == "hip" else 32)
        chosen, start = sample([n for n in index["kernels"] if args.filter in n], args.limit), time.time()
        for name in chosen:
            entry = index["kernels"][name]
            try:
                module = load(folder, entry, name)
                if backend != "cuda" and hasattr(module, "gdc_wait"):
                    module.gdc_wait = without_wait()
                fn = getattr(module, entry["function"])
                signature, attrs = {}, {}
                for i, a in enumerate(entry["arguments"]):
                    signature[a["name"]] = a["type"]
                    if a["divisible"]:
                        attrs[(i,)] = [["tt.divisibility", 16]]
                constants = {}
                for c, v in entry["constants"].items():
                    signature[c] = "constexpr"
                    constants[c] = v
                # Constants stand where the function has them, behind the arguments.
                source = ASTSource(fn, signature, constexprs=constants, attrs=attrs)
                options = {
                    "num_warps": entry["warps"],
                    "num_stages": entry["stages"],
                    "debug": entry["debug"],
                    "sanitize_overflow": False,
                }
                binary = triton.compile(source, target=gpu, options=options)
                shared = binary.metadata.shared
                if shared > (64 << 10 if backend == "hip" else 227 << 10):
                    failures.append(f"{name} for {target}: {shared} bytes of shared memory")
            except Exception as e:
                lines = str(e).strip().splitlines() or [repr(e)]
                failures.append(f"{name} for {target}: " + " | ".join(lines[-6:]))
        print(f"built {len(chosen)} kernels for {target} in {time.time() - start:.1f} s")
    return failures


def left_out(name, share):
    """Returns true if the seed leaves out a program, of which it takes one in `share`."""
    seed = os.environ.get("INRUSH_SEED")
    return seed is not None and random.Random(f"{seed} {name}").randrange(share) != 0


def run(folder, index, args):
    """Runs whole programs in the interpreter."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    np.seterr(all="ignore")
    shims = load(Path(__file__).parent / "inrush" / "triton", {"file": "interpreter_shims.py"}, "interpreter_shims")
    shims.patch()
    modules, failures, done, start = {}, [], 0, time.time()

    def kernel(name):
        if name not in modules:
            module = load(folder, index["kernels"][name], name)
            shims.supply(module)
            modules[name] = module
        return getattr(modules[name], index["kernels"][name]["function"])

    part, parts = (int(n) for n in args.part.split("/"))
    for program in index["programs"][part::parts]:
        if args.filter not in program["name"] or left_out(program["name"], args.share):
            continue
        if program["refused"]:
            print(f"refused {program['name']}: {program['refused'][0].splitlines()[0]}")
        plan = program.get("run")
        if plan is None or (args.limit and done >= args.limit):
            continue
        done += 1
        began = time.time()
        try:
            given = load_file(folder / plan["data"])
            storage = {}
            for k, n in plan["buffers"].items():
                held = torch.zeros(max(n, 16), dtype=torch.uint8)
                content = given.get(f"buf{k}")
                if content is None:
                    held.fill_(0xA5)
                else:
                    raw = content.contiguous().view(torch.uint8).flatten()
                    held[: raw.numel()] = raw
                storage[k] = held
            tensors = []
            for launch in plan["launches"]:
                entry = index["kernels"][launch["kernel"]]
                values = [argument(a, storage) for a in launch["arguments"]]
                tensors += values
                if launch["programs"] > 0:
                    kernel(launch["kernel"])[(launch["programs"],)](*values, **entry["constants"])
            texts = {launch["kernel"]: (folder / index["kernels"][launch["kernel"]]["file"]).read_text() for launch in plan["launches"]}
            types = types_within(plan, texts.__getitem__)
            within, moved = largest_within(tensors, texts.values()), rounded_weights(plan, tensors)
            for out in plan["outputs"]:
                dtype = getattr(torch, out["dtype"])
                held = storage[str(out["buf"])]
                size = torch.empty(0, dtype=dtype).element_size()
                flat = held[: held.numel() // size * size].view(dtype)
                want = given[out["name"]]
                if want.dtype == torch.uint8:
                    want = want.view(dtype)
                got = torch.as_strided(flat, out["sizes"], out["strides"], out["offset"])
                problem = differs(got, want, types, 5e-5, within, moved)
                if problem:
                    failures.append(f"{program['name']} {out['name']}: {problem} ({', '.join(program['kernels'])})")
        except Exception as e:
            text = str(e).strip().splitlines() or [repr(e)]
            cause = e.__cause__ or e
            failures.append(f"{program['name']}: {type(cause).__name__} {text[-1][:200]} {cause!r:.300}")
            if args.verbose:
                traceback.print_exc()
        if args.verbose:
            print(f"{program['name']} {time.time() - began:.2f} s")
    print(f"ran {done} programs in {time.time() - start:.1f} s")
    return failures


def argument(a, storage):
    """A number, a tensor, or a descriptor of one."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    if "int" in a:
        return a["int"]
    dtype, _, block = a["type"].removeprefix("tensordesc<").removesuffix("]>").partition("[")
    dtype = TORCH[dtype.removeprefix("*")]
    held = storage[str(a["map"] if "map" in a else a["buf"])]
    size = torch.empty(0, dtype=dtype).element_size()
    flat = held[: held.numel() // size * size].view(dtype)
    if "map" not in a:
        return flat
    return TensorDescriptor(flat[a["offset"] :], a["sizes"], a["strides"], [int(n) for n in block.split(",")])


def run_in_processes(args):
    """Runs every n-th program in each of n processes, with one thread each. Returns the number of those that failed."""
    command = [sys.executable, __file__, str(args.folder), "--run", "--limit", str(args.limit), "--filter", args.filter]
    command += ["--share", str(args.share)]
    command += ["--verbose"] * args.verbose
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen([*command, "--part", f"{k}/{args.jobs}"], env=env) for k in range(args.jobs)]
    return sum(child.wait() != 0 for child in children)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", default="")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run programs")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--filter", default="")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    index = json.loads((args.folder / "index.json").read_text())
    failures = []
    if args.build:
        failures += build(args.folder, index, args.build.split(","), args)
    if args.run and args.jobs > 1:
        if failed := run_in_processes(args):
            failures.append(f"{failed} of {args.jobs} processes")
    elif args.run:
        # The interpreter is chosen when a kernel is defined.
        os.environ["TRITON_INTERPRET"] = "1"
        import torch

        global TORCH
        TORCH = {
            "i1": torch.bool, "u8": torch.uint8, "i8": torch.int8, "u16": torch.uint16, "i16": torch.int16,
            "u32": torch.uint32, "i32": torch.int32, "u64": torch.uint64, "i64": torch.int64,
            "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
            "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
            "fp8e4b8": torch.float8_e4m3fnuz, "fp8e5b16": torch.float8_e5m2fnuz,
        }
        failures += run(args.folder, index, args)
    for f in failures:
        print("FAILED", f)
    if args.part == "0/1":
        refused = sum(1 for p in index["programs"] if p["refused"])
        print(f"{len(failures)} failures; {refused} of {len(index['programs'])} programs hold kernels that are refused")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
