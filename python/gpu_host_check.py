"""Runs models on a GPU by the command alone, without PyTorch, and compares with what eager PyTorch gives on the CPU.

    python gpu_host_check.py --make FOLDER                  # with PyTorch: archives, inputs, eager's outputs
    python gpu_host_check.py --run FOLDER --inrush BINARY   # on a machine with a GPU: Triton builds, the command runs

The two may be different machines. `--run` needs Triton in this interpreter and NVIDIA's driver, not PyTorch. Each model runs
with products by cuBLAS and with all of it compiled (`--no-libraries`), at each of its sizes. The exit status is 1 if a result is
off or a run fails, and 2 if a library was asked for and none was called.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys

# Norm of the difference over norm of the expected output. Products of float32 add up in another order.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def transformer(layers, causal=True):
    """A small transformer over tokens."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, heads = 128, 4

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n, length, width = x.shape
            parts = self.qkv(self.before(x)).view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=causal)
            x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
            return x + self.down(F.gelu(self.up(self.after(x))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(1000, width), nn.Embedding(64, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000, bias=False)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Transformer()


def models():
    """Name, module, dtype, dynamic dimensions, lists of inputs."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Normalised(nn.Module):
        """Normalisations and activations, no product."""

        def __init__(self):
            super().__init__()
            self.layer, self.group = nn.LayerNorm(320), nn.GroupNorm(4, 32)
            self.batch = nn.BatchNorm1d(32).eval()
            self.scale = nn.Parameter(torch.randn(320))

        def forward(self, x):
            y = F.gelu(self.layer(x)) * self.scale
            z = F.silu(self.group(self.batch(y))) + x
            return z, z.softmax(-1), z.var(-1)

    class Convolutional(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32).eval()
            self.second, self.head = nn.Conv2d(32, 64, 3, stride=2, bias=False), nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.norm(self.first(x)))
            x = F.max_pool2d(F.silu(self.second(x)), 2)
            return self.head(x.mean((2, 3)))

    class Products(nn.Module):
        def forward(self, a, b, c):
            return torch.mm(a, b), torch.bmm(c, c.transpose(1, 2)), (a @ b).t()[1:] + 1

    torch.manual_seed(0)
    ids = lambda n, m: torch.randint(0, 1000, (n, m))  # noqa: E731
    rows = torch.export.Dim("rows", min=2, max=64)
    yield "normalised", Normalised(), "float32", None, [[torch.randn(8, 32, 320)]]
    yield "normalised_rows", Normalised(), "float32", ({0: rows},), [[torch.randn(n, 32, 320)] for n in (2, 5, 64)]
    yield "transformer", transformer(4), "float32", None, [[ids(2, 48)]]
    yield "transformer_half", transformer(4, causal=False).half(), "float16", None, [[ids(2, 64)]]
    yield "convolutional", Convolutional(), "float32", None, [[torch.randn(4, 3, 32, 32)]]
    inputs = [torch.randn(33, 65), torch.randn(65, 17), torch.randn(6, 9, 31)]
    yield "products", Products(), "float32", None, [inputs]


def write_tensors(path, tensors):
    """Writes a safetensors file."""
    import torch

    header, blob = {}, b""
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
    for name, t in tensors.items():
        t = t.detach().contiguous()
        data = bytes(t.flatten().view(torch.uint8).tolist())
        kind = names[str(t.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + blob)


def write_cases(folder, name, module, dtype, cases):
    """Writes inputs and what eager gives for them. Makes a module of half precision one of float32."""
    import torch

    for k, inputs in enumerate(cases):
        # Half precision is compared with what float32 gives for the same weights.
        wide = module.float() if dtype != "float32" else module
        out = wide(*[x.float() if x.is_floating_point() else x for x in inputs])
        out = out if isinstance(out, tuple) else (out,)
        out = [o.to(getattr(torch, dtype)) for o in out]
        write_tensors(os.path.join(folder, f"{name}.{k}.inputs"), {str(i): x for i, x in enumerate(inputs)})
        write_tensors(os.path.join(folder, f"{name}.{k}.expect"), {str(i): x for i, x in enumerate(out)})


def make(folder):
    import torch

    os.makedirs(folder, exist_ok=True)
    index = []
    for name, module, dtype, dynamic, cases in models():
        module.eval()
        with torch.no_grad():
            program = torch.export.export(module, tuple(cases[0]), dynamic_shapes=dynamic)
            torch.export.save(program, os.path.join(folder, f"{name}.pt2"))
            write_cases(folder, name, module, dtype, cases)
        index.append({"name": name, "dtype": dtype, "cases": len(cases)})
        print(f"made {name}")
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump(index, file)


def run(folder, binary, device, seconds):
    with open(os.path.join(folder, "index.json")) as file:
        index = json.load(file)
    wrong = products = 0
    for model in index:
        for k in range(model["cases"]):
            for extra in ([], ["--no-libraries"]):
                base = os.path.join(folder, model["name"])
                command = [binary, "run", f"{base}.pt2", "--device", device, "--json", *extra]
                command += ["--inputs", f"{base}.{k}.inputs", "--expect", f"{base}.{k}.expect"]
                command += ["--tolerance", str(TOLERANCE[model["dtype"]]), "--seconds", str(seconds)]
                done = subprocess.run(
                    command, capture_output=True, text=True, env=os.environ | {"INRUSH_PYTHON": sys.executable}
                )
                title = f"{model['name']}.{k} {' '.join(extra) or 'cuBLAS'}"
                if done.returncode or not done.stdout:
                    wrong += 1
                    print(f"FAILED  {title}: {(done.stderr or done.stdout).strip()}")
                if not done.stdout:
                    continue
                line = json.loads(done.stdout.splitlines()[-1])
                products += line["products"] if not extra else 0
                error = line["max_rel_err"]
                print(
                    f"{'off' if done.returncode else 'ok':7} {title}: error {error if error is None else format(error, '.1e')},"
                    f" {line['launches']} launches, {line['products']} products, {line['run_ms']:.3f} ms"
                )
    if wrong:
        print(f"{wrong} runs failed")
        return 1
    return 0 if products else 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--inrush", metavar="BINARY", default="inrush")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=0.5)
    a = parser.parse_args()
    if a.make:
        make(a.make)
    if a.run:
        sys.exit(run(a.run, a.inrush, a.device, a.seconds))


if __name__ == "__main__":
    main()
