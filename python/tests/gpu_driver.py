"""Packages for GPUs on machines without one: a driver in C keeps device memory in this process, Triton's interpreter runs kernels.

`compiled` packages an archive with kernels whose machine code is their source, and `call` runs it in a process of its own. Run with
arguments, this file is that process, or the interpreter of Python that the command line takes for one with Triton.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

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


def compiled(folder, module, inputs, dynamic=None, name="m", targets="h100", options=()):
    """Packages a module; gives the path."""
    import torch

    archive, package = folder / f"{name}.pt2", folder / f"{name}.inrush"
    with torch.no_grad():
        torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic), archive)
    done = tool(folder, "compile", archive, "-o", package, "--target", targets, *options)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return package


@functools.cache
def driver(folder):
    """Builds the driver, which is cuBLAS too."""
    source, library = REPOSITORY / "crates/inrush-host/tests/driver/fake.c", folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, source], check=True, timeout=120)
    (folder / "libcublas.so.12").symlink_to(library)
    return library


def call(folder, *jobs, late=True):
    """Runs packages in one process: a job is a package and lists of inputs. Gives for each job and list the outputs and the inputs
    after the call, or the text of an error, and then what the driver saw."""
    import torch

    driver(folder)
    given, results, log = folder / "given.pt", folder / "results.pt", folder / "log"
    torch.save([list(calls) for _, calls in jobs], given)
    log.write_text("")
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_LOG": str(log)} | ({"FAKE_LATE": "1"} if late else {})
    command = [sys.executable, __file__, "call", folder, given, results, *(package for package, _ in jobs)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, env=env, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    return torch.load(results, weights_only=False), log.read_text().splitlines()


def worker(script, socket):
    """The process that builds kernels, without Triton: machine code is the text of the request."""
    import types

    spec = importlib.util.spec_from_file_location("worker", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def build(request):
        text = pathlib.Path(request["source"]).read_text()
        kernel = {k: request[k] for k in ("function", "signature", "constants")} | {"text": text}
        code = b"\x7fELF" + json.dumps(kernel).encode() + b"\0"
        os.makedirs(request["out"], exist_ok=True)
        module.place(request["out"], f"{request['id']}.cubin", code)
        module.place(request["out"], f"{request['id']}.ptx", b".version 8.7\n.target sm_90a\n")
        path = os.path.join(request["out"], request["id"])
        warps = request["options"]["num_warps"]
        metadata = {"name": request["function"], "num_warps": warps, "num_ctas": 1, "shared": 0, "bytes": len(code)}
        return {"binary": f"{path}.cubin", "metadata": metadata} | ({"ptx": f"{path}.ptx"} if request.get("ptx") else {})

    sys.modules["triton"] = types.SimpleNamespace(__version__="interpreted")
    module.build, module.begin, module.leave_out_digest = build, lambda folder: None, lambda release: None
    sys.argv = [script, socket]
    module.main()


def run(folder, given, results, *packages):
    """Calls packages over the driver."""
    native = ctypes.CDLL(os.path.join(folder, "libcuda.so.1"))
    spec = importlib.util.spec_from_file_location("inrush_runtime._native", RELEASE / "libinrush_runtime_native.so")
    runtime = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runtime)
    # Ahead of PyTorch, which may bring a cuBLAS for real GPUs.
    models = [runtime.load(package, device="cuda:0", flat=True) for package in packages]
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
            import traceback

            traceback.print_exc()
            os._exit(3)

    native.fake_interpret(interpret)

    def host(x):
        """A result in memory of the host."""
        if isinstance(x, (int, float, bool, type(None))):
            return x
        if x.dtype == "bfloat16":
            return torch.frombuffer(bytearray(x.tobytes()), dtype=torch.bfloat16).reshape(x.shape)
        return torch.from_numpy(x.numpy())

    def answer(model, inputs):
        try:
            outputs = model(*inputs)
        except runtime.Error as e:
            return f"{type(e).__name__}: {e}"
        return [host(o) for o in (outputs if isinstance(outputs, tuple) else (outputs,))], list(inputs)

    calls = torch.load(given, weights_only=False)
    told = [[answer(model, inputs) for inputs in each] for model, each in zip(models, calls)]
    torch.save(told, results)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "call":
        run(*rest)
    elif rest[0] == "-c":
        print("interpreted")
    else:
        worker(*rest)
