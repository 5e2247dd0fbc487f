"""Packages for GPUs on machines without one: a driver in C keeps device memory in this process, Triton's interpreter runs kernels.

`compiled` packages a module with kernels whose machine code is their source. A `Machine` is a process that loads and calls packages.
Run with arguments, this file is that process, or the interpreter of Python that the command line takes for one with Triton.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import threading
import traceback
import types
from multiprocessing import Pipe
from multiprocessing.connection import Connection

# By kind of device: the driver's library, and the model that packages are for.
KINDS = {"cuda": ("libcuda.so.1", "h100"), "rocm": ("libamdhip64.so.7", "mi300x"), "xpu": ("libze_loader.so.1", "max1550")}
# Tests put another program in its place, which builds kernels.
PYTHON = sys.executable
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RELEASE = REPOSITORY / "target" / "release"


def tool(folder, *args, env=None):
    """Runs the command line, which takes `folder` for its cache and this file for a Python that has Triton."""
    python = folder / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} python "$@"\n')
        python.chmod(0o755)
    env = {**os.environ, "INRUSH_PYTHON": str(python), "INRUSH_CACHE_DIR": str(folder / "cache"), **(env or {})}
    return subprocess.run([RELEASE / "inrush", *map(str, args)], capture_output=True, text=True, timeout=300, env=env, check=False)


def compiled(folder, module, inputs, dynamic=None, name="m", targets="h100", options=(), python=None):
    """Packages a module; gives the path. `python` is one whose Triton builds real kernels."""
    import torch

    archive, package = folder / f"{name}.pt2", folder / f"{name}.inrush"
    with torch.no_grad():
        torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic), archive)
    done = tool(folder, "compile", archive, "-o", package, "--target", targets, *options, env=python and {"INRUSH_PYTHON": python})
    if done.returncode:
        raise RuntimeError(done.stderr)
    return package


# The type of a descriptor.
DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")
# The machine's number of a type of elements, and its bytes.
ELEMENTS = {"fp16": (6, 2), "fp32": (7, 4)}
_BYTES = {"i1": 1, "i32": 4, "u32": 4, "fp32": 4}


def places(signature, maps):
    """By parameter: where its arguments begin, and their bytes. A descriptor is several; two addresses follow at the end."""
    out, end = [], 0

    def add(sizes):
        nonlocal end
        all = []
        for size in sizes:
            begin = -(-end // min(size, 64)) * min(size, 64)
            all.append([begin, size])
            end = begin + size
        return all

    for name, t in [*signature, ("scratch", "*i8"), ("profile", "*i8")]:
        described = DESCRIPTOR.fullmatch(t)
        rank = len(described[2].split(",")) if described else 0
        first = [128] if maps else [8, *[8] * (2 * rank), 1]
        out.append((t, add([*first, *[4] * rank, *[8] * rank] if described else [_BYTES.get(t, 8)])))
    return out


def plain(signature, maps, packed):
    """Arguments with the address of a tensor in the place of its descriptor, as Triton's interpreter takes them."""
    out = bytearray()
    for t, all in places(signature, maps)[:-2]:
        values = [packed[at : at + size] for at, size in all]
        if described := DESCRIPTOR.fullmatch(t):
            rank = len(described[2].split(","))
            sizes, strides = values[-2 * rank : -rank], values[-rank:]
            numbers = [int.from_bytes(v, "little") for v in (*sizes, *strides)]
            if maps:
                told = struct.unpack("<10Q5I2I", values[0][:108])
                element = ELEMENTS[described[1]]
                theirs = [*told[1 : 1 + rank][::-1], *[n // element[1] for n in told[6 : 5 + rank][::-1]], 1]
                tile = [*told[10 : 10 + rank][::-1], *told[15:]]
                assert tile == [*json.loads(f"[{described[2]}]"), rank, element[0]], f"a map of {told}"
            else:
                theirs = [int.from_bytes(v, "little") for v in values[1 : 1 + 2 * rank]]
                assert values[1 + 2 * rank] == b"\0", "elements outside are no zeros"
            assert theirs == numbers, f"a descriptor of {theirs} with sizes and strides {numbers}"
            values = [values[0][:8], *sizes, *strides]
        for value in values:
            out += bytes(-len(out) % len(value)) + value
    return bytes(out)


class Machine:
    """A process with the driver. With `late`, work waits in its stream until something waits for the stream. `packages` are loaded
    ahead of PyTorch, so that their products are the driver's: PyTorch brings a cuBLAS for real GPUs, and packages that are loaded
    later must have none. `kind` is that of the GPU."""

    def __init__(self, folder, packages=(), late=True, kind="cuda"):
        source, library = REPOSITORY / "crates/inrush-host/tests/driver/fake.c", folder / KINDS[kind][0]
        if not library.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True, timeout=120)
            (folder / "libcublas.so.12").symlink_to(library)
        self.folder, self.log, self.errors = folder, folder / "log", folder / "errors"
        self.log.write_text("")
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_LOG": str(self.log)} | ({"FAKE_LATE": "1"} if late else {})
        env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        # The process's end is its own, so that the channel ends with it.
        self.channel, theirs = Pipe()
        with self.errors.open("w") as errors, theirs:
            command = [PYTHON, __file__, "serve", theirs.fileno(), kind, *packages]
            keep = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL, "stderr": errors}
            self.process = subprocess.Popen([str(c) for c in command], env=env, **keep)
        self.lock = threading.Lock()
        self.models = [Model(self, k) for k in range(len(packages))]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.process.wait(60)

    def ask(self, what, *args):
        """Has the process do something; gives the result, or raises what it raised there."""
        import inrush

        try:
            with self.lock:
                self.channel.send_bytes(pickle.dumps((what, args)))
                failed, result = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            raise RuntimeError(f"the machine ended: {self.errors.read_text()[-4000:]}") from None
        if failed:
            raise getattr(inrush, failed, RuntimeError)(result)
        return result

    def load(self, package):
        return Model(self, self.ask("load", str(package)))

    def seen(self):
        """What the driver saw since the last look."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        return lines


class Model:
    """A loaded package, like what `inrush.load` gives."""

    def __init__(self, machine, number):
        self.machine, self.number = machine, number

    def __call__(self, *inputs):
        outputs, after = self.machine.ask("call", self.number, inputs)
        for mine, theirs in zip(inputs, after, strict=True):
            if hasattr(mine, "copy_") and not mine.equal(theirs):
                mine.copy_(theirs)
        return tuple(outputs)

    def update_weights(self, weights, **options):
        self.machine.ask("update_weights", self.number, {k: v.detach() for k, v in weights.items()}, options)

    def swap_weights(self):
        self.machine.ask("swap_weights", self.number)

    def weights(self):
        return self.machine.ask("weights", self.number)

    @property
    def signature(self):
        return self.machine.ask("signature", self.number)


def worker(script, socket, refuses=lambda warps: False):
    """The process that builds kernels, without Triton: machine code is the text of the request. `refuses` says which are refused."""
    spec = importlib.util.spec_from_file_location("worker", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(request):
        if refuses(request["options"]["num_warps"]):
            raise RuntimeError("no such device")
        text = pathlib.Path(request["source"]).read_text()
        kernel = {k: request[k] for k in ("function", "signature", "constants")} | {"text": text}
        described = [DESCRIPTOR.fullmatch(t) for _, t in request["signature"]]
        backend, arch = request["target"][:2]
        kernel["maps"] = bool(backend == "cuda" and int(arch) >= 90 and any(described))
        if kernel["maps"] or backend == "xpu":
            # Arguments come one by one, of which the driver must know the sizes.
            kernel = {"places": [at for _, all in places(request["signature"], kernel["maps"]) for at in all]} | kernel
        head = bytes.fromhex("03022307") if backend == "xpu" else b"\x7fELF"
        code = head + json.dumps(kernel).encode() + b"\0"
        code += bytes(-len(code) % 4)
        os.makedirs(request["out"], exist_ok=True)
        module.place(request["out"], f"{request['id']}.cubin", code)
        has_ptx = request.get("ptx") and request["target"][0] == "cuda"
        module.place(request["out"], f"{request['id']}.ptx", b".version 8.7\n.target sm_90a\n")
        path = os.path.join(request["out"], request["id"])
        warps = request["options"]["num_warps"]
        metadata = {"name": request["function"], "num_warps": warps, "num_ctas": 1, "shared": 0, "bytes": len(code)}
        if kernel["maps"]:
            metadata["tensordesc_meta"] = [
                {"swizzle": 0, "elem_type": ELEMENTS[d[1]][0], "elem_size": ELEMENTS[d[1]][1], "fp4_padded": False}
                | {"block_size": json.loads(f"[{d[2]}]")}
                for d in described
                if d
            ]
        return {"binary": f"{path}.cubin", "metadata": metadata} | ({"ptx": has_ptx and f"{path}.ptx"} if request.get("ptx") else {})

    sys.modules["triton"] = types.SimpleNamespace(__version__="interpreted")
    module.build, module.begin, module.leave_out_digest = build, lambda folder: None, lambda release: None
    sys.argv = [script, socket]
    module.main()


def interpret_kernels(native):
    """Has the driver run kernels in Triton's interpreter. The result must be kept."""
    from inrush.triton import interpreter

    @functools.cache
    def kernel(text):
        k = json.loads(text)
        return interpreter.kernel(k["text"], k["function"], [tuple(p) for p in k["signature"]], list(k["constants"].items()))

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_size_t)
    def interpret(text, grid, arguments, bytes_):
        try:
            made, packed = kernel(text), ctypes.string_at(arguments, bytes_)
            if any(t.startswith("tensordesc<") for _, t in made[1]):
                packed = plain(made[1], json.loads(text)["maps"], packed)
            interpreter.launch(made, [grid[k] for k in range(3)], packed)
        except BaseException:
            traceback.print_exc()
            os._exit(3)

    native.fake_interpret(interpret)
    return interpret


def program(kind, library, *words):
    """Runs the `main` of a program that is a library, over the driver."""
    interpret = interpret_kernels(ctypes.CDLL(KINDS[kind][0]))
    assert interpret
    arguments = [w.encode() for w in (library, *words)]
    return ctypes.CDLL(library).main(len(arguments), (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None))


def serve(channel, kind, *packages):
    """Loads and calls packages over the driver."""
    native = ctypes.CDLL(KINDS[kind][0])
    spec = importlib.util.spec_from_file_location("inrush_runtime._native", RELEASE / "libinrush_runtime_native.so")
    runtime = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runtime)
    if library := os.environ.get("FAKE_OPERATORS"):
        runtime.load_operators(library)
    models = [runtime.load(package, device=f"{kind}:0", flat=True) for package in packages]
    import torch

    interpret = interpret_kernels(native)
    assert interpret

    def host(x):
        """A result in memory of the host."""
        if isinstance(x, (int, float, bool, type(None))):
            return x
        if getattr(x, "dtype", None) == "bfloat16":
            flat = torch.frombuffer(bytearray(x.tobytes()) or bytearray(2), dtype=torch.bfloat16)
            return flat[: x.nbytes // 2].reshape(x.shape)
        x = x.numpy() if hasattr(x, "numpy") else x
        return torch.from_numpy(x)

    def load(package, options=None):
        models.append(runtime.load(package, device=f"{kind}:0", flat=True, **(options or {})))
        return len(models) - 1

    def call(number, inputs):
        outputs = models[number](*inputs)
        return [host(o) for o in (outputs if isinstance(outputs, tuple) else (outputs,))], inputs

    def signature(number):
        s = models[number].signature
        outputs = [types.SimpleNamespace(shape=o.shape, dtype=o.dtype) for o in s.outputs]
        return types.SimpleNamespace(text=str(s), outputs=outputs)

    tasks = {
        "load": load,
        "call": call,
        "update_weights": lambda number, weights, options: models[number].update_weights(weights, **options),
        "swap_weights": lambda number: models[number].swap_weights(),
        "weights": lambda number: {k: host(v) for k, v in models[number].weights().items()},
        "signature": signature,
    }
    channel = Connection(int(channel))
    while True:
        try:
            what, args = pickle.loads(channel.recv_bytes())
        except EOFError:
            return
        try:
            answer = None, tasks[what](*args)
        except Exception as e:
            if not isinstance(e, runtime.Error):
                traceback.print_exc()
            answer = type(e).__name__, str(e)
        channel.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "serve":
        serve(*rest)
    elif what == "program":
        # The program's threads end with it.
        code = program(*rest)
        sys.stdout.flush()
        os._exit(code)
    elif rest[0] == "-c":
        print("interpreted")
    else:
        # A python that refuses all kernels, or those of some warps.
        worker(*rest, refuses=lambda warps: what in ("refuse", f"refuse{warps}"))
