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
import subprocess
import sys
import threading
import traceback
import types
from multiprocessing import Pipe
from multiprocessing.connection import Connection

# By kind of device: the driver's library, and the model that packages are for.
KINDS = {"cuda": ("libcuda.so.1", "h100"), "rocm": ("libamdhip64.so.7", "mi300x")}
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
            command = [sys.executable, __file__, "serve", theirs.fileno(), kind, *packages]
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


def worker(script, socket):
    """The process that builds kernels, without Triton: machine code is the text of the request."""
    spec = importlib.util.spec_from_file_location("worker", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(request):
        text = pathlib.Path(request["source"]).read_text()
        kernel = {k: request[k] for k in ("function", "signature", "constants")} | {"text": text}
        code = b"\x7fELF" + json.dumps(kernel).encode() + b"\0"
        os.makedirs(request["out"], exist_ok=True)
        module.place(request["out"], f"{request['id']}.cubin", code)
        has_ptx = request.get("ptx") and request["target"][0] == "cuda"
        module.place(request["out"], f"{request['id']}.ptx", b".version 8.7\n.target sm_90a\n")
        path = os.path.join(request["out"], request["id"])
        warps = request["options"]["num_warps"]
        metadata = {"name": request["function"], "num_warps": warps, "num_ctas": 1, "shared": 0, "bytes": len(code)}
        return {"binary": f"{path}.cubin", "metadata": metadata} | ({"ptx": has_ptx and f"{path}.ptx"} if request.get("ptx") else {})

    sys.modules["triton"] = types.SimpleNamespace(__version__="interpreted")
    module.build, module.begin, module.leave_out_digest = build, lambda folder: None, lambda release: None
    sys.argv = [script, socket]
    module.main()


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

    from inrush.triton import interpreter

    @functools.cache
    def kernel(text):
        k = json.loads(text)
        return interpreter.kernel(k["text"], k["function"], [tuple(p) for p in k["signature"]], list(k["constants"].items()))

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_size_t)
    def interpret(text, grid, arguments, bytes_):
        try:
            interpreter.launch(kernel(text), [grid[k] for k in range(3)], ctypes.string_at(arguments, bytes_))
        except BaseException:
            traceback.print_exc()
            os._exit(3)

    native.fake_interpret(interpret)

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
    elif rest[0] == "-c":
        print("interpreted")
    else:
        worker(*rest)
