"""Packages with programs for GPUs: made where there is PyTorch and no GPU, run by the command alone where there is a GPU.

    python gpu_package_check.py --make FOLDER --inrush BINARY   # packages, inputs, eager's outputs, libraries, scripts
    python FOLDER/gpu_package_check.py --run FOLDER             # on a machine with a GPU and its driver

`--make` takes `libinrush.so` and `libinrush_runtime_native.so` from the folder of the binary, and gcc. Build them by themselves
(`cargo build --release -p inrush-cli --bin inrush`, then `cargo build --release -p inrush-capi -p inrush-runtime-python --lib`): in
one command with the binary they hold the compiler too. `--run` needs what is in the folder, NumPy, and PyTorch for the steps with its
tensors: after the command it runs `gpu_embed_check` (C) and the steps of `gpu_embed_check.py`. It runs the command with an empty PATH and an `INRUSH_PYTHON`
that does not exist, so that neither Python nor Triton nor a compiler can take part. Each model is packaged for an H100 with
products by cuBLAS and with all of it compiled, and for an A100, whose PTX the driver of a later GPU finishes. cuBLAS is looked
for by the loader; `--cublas FOLDER` names its folder, and without it what needs it is skipped. The exit status is 1 if a run
fails or a result is off.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import time

import gpu_embed_check
from gpu_host_check import TOLERANCE, transformer, write_cases, write_tensors

HERE = os.path.dirname(os.path.abspath(__file__))
# Name of the package's kind, targets, whether products are compiled.
KINDS = (("h100", "cpu,h100", False), ("h100_alone", "h100,mi300x", True), ("a100_ptx", "a100", True))


def models():
    """Name, module, dtype, dynamic dimensions, lists of inputs."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Residual(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
            self.one, self.two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            x = F.relu(self.one(self.first(x)))
            x = F.relu(self.two(self.second(x)) + x)
            return self.head(F.max_pool2d(x, 2).mean((2, 3)))

    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(96), nn.Linear(96, 24)

        def forward(self, x):
            y = F.silu(self.layer(self.norm(x)))
            return y, y.softmax(-1), x.sum(1)

    class Rotary(nn.Module):
        """Positions as complex factors."""

        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(64.0), 10000.0 ** (-torch.arange(16.0) / 16))
            self.register_buffer("factors", torch.polar(torch.ones(64, 16), angles))

        def forward(self, x):
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 16, 2))
            turned = pairs * self.factors[: x.shape[1]].view(1, -1, 1, 16)
            return torch.view_as_real(turned).flatten(3), (turned.abs() + 1).log()

    class Parts(nn.Module):
        """Data decide about sizes and about what runs."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)

        def forward(self, x):
            rows = torch.nonzero(x.sum(1) > 0).squeeze(1)
            y = torch.cond(x.mean() > 0, lambda x: self.first(x).relu(), lambda x: x * 2, (x,))
            return self.second(y[rows]), x[x > 1] * 2, (rows + 1).to(x.dtype)

    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            from torch._higher_order_ops.scan import scan
            from torch._higher_order_ops.while_loop import while_loop

            def turn(i, y):
                return i + 1, torch.tanh(self.layer(y))

            last = while_loop(lambda i, y: (i < 20) & (y.abs().sum() > 1), turn, (torch.zeros((), dtype=torch.int64, device=x.device), x))
            total, sums = scan(lambda c, row: (c + row, (c * row).clone()), torch.zeros_like(x[0]), x, dim=0)
            return last[0].to(x.dtype), last[1], total, sums

    class Library(nn.Module):
        """Functions of the runtime's library, on the host."""

        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(32, 16, batch_first=True)

        def forward(self, x):
            square = x @ x.mT + 8 * torch.eye(x.shape[-2], device=x.device)
            values, places = x.reshape(1, -1).sort(-1)
            return self.lstm(x)[0].relu(), torch.fft.rfft(x).abs(), torch.linalg.solve(square, x), values * 2, (places + 1).to(x.dtype)

    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=256)
    yield "transformer", transformer(2), "float32", None, [[torch.randint(0, 1000, (2, 48))]]
    yield "transformer_half", transformer(2).half(), "float16", None, [[torch.randint(0, 1000, (2, 64))]]
    yield "residual", Residual(32), "float32", None, [[torch.randn(4, 3, 32, 32)]]
    yield "complex", Rotary(), "float32", None, [[torch.randn(2, 24, 3, 32)]]
    yield "parts", Parts(), "float32", ({0: batch},), [[torch.randn(n, 32) + shift] for n, shift in ((7, 0.1), (256, -0.1), (2, 0.5))]
    yield "turns", Turns(), "float32", None, [[torch.randn(9, 32)]]
    yield "library", Library(), "float32", None, [[torch.randn(3, 40, 32)]]
    yield "rows", Rows(), "float32", ({0: batch},), [[torch.randn(n, 7, 96)] for n in (2, 33, 256)]


def package(binary, folder, name, archive):
    """Compiles an archive into a package of each kind."""
    for kind, targets, compiled in KINDS:
        output = os.path.join(folder, f"{name}.{kind}.inrush")
        command = [binary, "compile", archive, "-o", output, "--target", targets, "--json"]
        command += ["--no-libraries"] if compiled else []
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"INRUSH_PYTHON": sys.executable})
        if done.returncode:
            raise SystemExit(f"{name} for {targets}: {done.stderr.strip()}")
        line = json.loads(done.stdout)
        print(f"made {name} for {line['target']}: {line['bytes'] / 1e6:.2f} MB in {line['compile_ms'] / 1e3:.1f} s", flush=True)


def make(folder, binary):
    """Writes packages, inputs and expected outputs."""
    import torch

    os.makedirs(folder, exist_ok=True)
    digits = os.path.join(HERE, "..", "examples", "digits")
    index = [{"name": "digits", "dtype": "float32", "cases": 1}]
    for kind in ("inputs", "expect"):
        with open(os.path.join(digits, f"digits.{kind}.safetensors"), "rb") as file:
            text = file.read()
        with open(os.path.join(folder, f"digits.0.{kind}"), "wb") as file:
            file.write(text)
    package(binary, folder, "digits", os.path.join(digits, "digits.pt2"))
    for name, module, dtype, dynamic, cases in models():
        module.eval()
        with torch.no_grad():
            program = torch.export.export(module, tuple(cases[0]), dynamic_shapes=dynamic)
            archive = os.path.join(folder, f"{name}.pt2")
            torch.export.save(program, archive)
            package(binary, folder, name, archive)
            os.remove(archive)
            write_cases(folder, name, module, dtype, cases)
        index.append({"name": name, "dtype": dtype, "cases": len(cases)})
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump(index, file)
    gpu_embed_check.make(folder, binary, package, write_tensors, os.path.dirname(os.path.abspath(binary)))
    bytes_ = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(folder) for f in files)
    print(f"{folder}: {bytes_ / (1 << 20):.1f} MiB")


def bare(cublas):
    """An environment without Python, Triton and compilers."""
    kept = {k: v for k, v in os.environ.items() if k in ("HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TMPDIR")}
    roots = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    found = [f for root in roots for f in sorted(glob.glob(os.path.join(root, "nvidia", "*", "lib")))]
    folders = ([cublas] if cublas else found) + [f for f in (kept.get("LD_LIBRARY_PATH"),) if f]
    return kept | {"PATH": "/nonexistent", "INRUSH_PYTHON": "/nonexistent/python", "LD_LIBRARY_PATH": ":".join(folders)}


def run(folder, binary, device, seconds, cublas):
    with open(os.path.join(folder, "index.json")) as file:
        index = json.load(file)
    binary, environment = os.path.abspath(binary), bare(cublas)
    wrong = count = skipped = 0
    for model in index:
        for kind, _, _ in KINDS:
            for k in range(model["cases"]):
                base = os.path.join(folder, model["name"])
                command = [binary, "run", f"{base}.{kind}.inrush", "--device", device, "--json"]
                command += ["--inputs", f"{base}.{k}.inputs", "--expect", f"{base}.{k}.expect"]
                command += ["--tolerance", str(TOLERANCE[model["dtype"]]), "--seconds", str(seconds)]
                start = time.monotonic()
                done = subprocess.run(command, capture_output=True, text=True, env=environment)
                took = time.monotonic() - start
                title, count = f"{model['name']}.{k} {kind}", count + 1
                if "`libcublas` (12 or 13) is not found" in done.stderr:
                    skipped += 1
                    print(f"SKIP  {title}: no cuBLAS", flush=True)
                    continue
                if not done.stdout:
                    wrong += 1
                    print(f"FAIL  {title}: {done.stderr.strip()}", flush=True)
                    continue
                wrong += done.returncode != 0
                line = json.loads(done.stdout.splitlines()[-1])
                error = line["max_rel_err"]
                print(
                    f"{'FAIL' if done.returncode else 'PASS'}  {title}: error {error if error is None else format(error, '.1e')}, "
                    f"{line['launches']} launches, {line['products']} products, open {line['load_ms']:.1f} ms, "
                    f"first result {line['first_ms']:.1f} ms after start, call {line['run_ms']:.3f} ms, process {took:.2f} s",
                    flush=True,
                )
    refused = refusals(folder, binary, device, environment)
    steps = gpu_embed_check.run(folder, device, environment)
    print(f"{count} runs, {wrong} failed, {skipped} skipped; {refused} refusals were wrong; {steps} steps of embedding failed")
    return 1 if wrong or refused or steps or count == skipped else 0


def refusals(folder, binary, device, environment):
    """Runs what must be refused; gives how many were not, or without the right words."""
    wrong = 0
    h100 = os.path.join(folder, "digits.h100_alone.inrush")
    for target, words in (("rocm:0", "no HIP driver"), ("cuda:99", "device 99"), ("cpu", "compiled for")):
        command = [binary, "run", h100, "--device", target]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        right = done.returncode not in (0, 101) and words in done.stderr
        wrong += not right
        print(f"{'PASS' if right else 'FAIL'}  refusal of {target}: {done.stderr.strip()}", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--inrush", metavar="BINARY", help="the command; for --run that of the folder without this")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--cublas", metavar="FOLDER", help="folder of libcublas, instead of the loader's and pip's")
    a = parser.parse_args()
    if a.make:
        make(a.make, a.inrush or shutil.which("inrush") or "inrush")
    if a.run:
        sys.exit(run(a.run, a.inrush or os.path.join(a.run, "inrush"), a.device, a.seconds, a.cublas))


if __name__ == "__main__":
    main()
