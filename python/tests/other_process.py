"""A process in which PyTorch seems to be built for ROCm or for Intel GPUs: its functions are those of `torch_stand_in.c`, its device that
of the driver in C (`gpu_driver.py`), whose kernels Triton's interpreter runs. Graphs of fake tensors are compiled and called on real
memory. Streams of the build for Intel GPUs are queues of SYCL (`sycl_stand_in.c`).

usage: other_process.py rocm|xpu FOLDER

Prints a line of JSON for each case. Run by `test_other_builds.py`.
"""

import ctypes
import functools
import json
import os
import pathlib
import subprocess
import sys
import warnings

KIND, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
os.environ["TRITON_INTERPRET"] = "1"

import torch

import gpu_driver
import inrush
import other_builds
from inrush import _native
from inrush.triton import interpreter

# PyTorch's name and number of the device type, and the name of its library.
NAME, TYPE, LIBRARY = {"rocm": ("cuda", 1, "hip"), "xpu": ("xpu", 12, "xpu")}[KIND]


class Queue(ctypes.Structure):
    """A queue of SYCL."""

    _fields_ = [("is_in_order", ctypes.c_int32), ("is_recorded", ctypes.c_int32), ("description", ctypes.c_int32), ("list", ctypes.c_void_p)]


def built(source, library, *options):
    source = pathlib.Path(__file__).with_name(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, *options], check=True, timeout=120)


def build():
    """The libraries of such a build, in a folder of their own."""
    lib = pathlib.Path(torch.__file__).with_name("lib")
    mine = FOLDER / "torch" / "lib"
    mine.mkdir(parents=True)
    linked = ["-L", lib, "-Wl,--no-as-needed", "-l:libtorch_cpu.so", "-ldl", f"-DNAME={NAME}", f"-DTYPE={TYPE}"]
    if KIND == "xpu":
        built("sycl_stand_in.c", mine / "libsycl.so.8")
        linked += ["-L", mine, "-l:libsycl.so.8", f"-Wl,-rpath,{mine}"]
    built("torch_stand_in.c", mine / "libtorch_cpu.so", *linked)
    (mine / f"libtorch_{LIBRARY}.so").symlink_to(mine / "libtorch_cpu.so")
    (mine / "libtorch_python.so").symlink_to(lib / "libtorch_python.so")
    loaded = ctypes.CDLL(str(mine / "libtorch_cpu.so"))
    torch.__file__ = str(FOLDER / "torch" / "__init__.py")
    return loaded


class Driver:
    """The driver, which has been found by the loader's path; kernels come back here."""

    def __init__(self):
        self.native = ctypes.CDLL(gpu_driver.KINDS[KIND][0])
        self.interpret = self._interpret()
        self.native.fake_interpret(self.interpret)
        self.stream = ctypes.c_void_p()
        if KIND == "rocm":
            self.native.hipInit(0)
            assert self.native.hipStreamCreateWithFlags(ctypes.byref(self.stream), 1) == 0
            self.wait = self.native.hipStreamSynchronize
            return
        # The second device of the driver is the first one of the process.
        n, driver, devices = ctypes.c_uint32(), ctypes.c_void_p(), (ctypes.c_void_p * 2)()
        description = (ctypes.c_uint64 * 5)(0xE, 0, 0, 2 | 2 << 32, 0)
        assert self.native.zeDriverGet(ctypes.byref(n), ctypes.byref(driver)) == 0
        assert self.native.zeDeviceGet(driver, ctypes.byref(n), devices) == 0
        made = self.native.zeCommandListCreateImmediate(None, ctypes.c_void_p(devices[1]), description, ctypes.byref(self.stream))
        assert made == 0, hex(made)

        def wait(stream):
            return self.native.zeCommandListHostSynchronize(ctypes.c_void_p(stream), ctypes.c_uint64(2**64 - 1))

        self.wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(wait)
        self.queue = Queue(is_in_order=1, description=1, list=self.stream)
        self.adapter = ctypes.c_uint32.in_dll(ctypes.CDLL(str(FOLDER / "torch" / "lib" / "libsycl.so.8")), "stand_in_adapter")

    def _interpret(self):
        @functools.cache
        def kernel(text):
            k = json.loads(text)
            return interpreter.kernel(k["text"], k["function"], [tuple(p) for p in k["signature"]], list(k["constants"].items()))

        @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_size_t)
        def interpret(text, grid, arguments, bytes_):
            interpreter.launch(kernel(text), [grid[k] for k in range(3)], ctypes.string_at(arguments, bytes_))

        return interpret

    def finish(self, torch_):
        assert self.wait(self.stream) == 0
        torch_.stand_in_collect()


def packaged(driver, torch_):
    """A package for such a GPU, loaded as `inrush.load(.., device="cuda:0")` does it."""
    package = str(FOLDER / "m.inrush")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)).eval()
    with torch.no_grad():
        inrush.aot_compile(torch.export.export(model, (torch.randn(3, 8),)), package, targets=[gpu_driver.KINDS[KIND][1]])
    getattr(torch, NAME).is_available = lambda: True
    failed, told = [], torch_.stand_in_told()
    if KIND == "xpu":
        driver.queue.description = -1
        try:
            _native.load_device_package(package, "xpu:0", 0, False, 4, False, None)
            failed.append("a package was loaded for a queue without an order")
        except inrush.Error as e:
            if "before oneAPI 2025.3" not in str(e):
                failed.append(str(e))
        driver.queue.description = 1
    loaded, _ = _native.load_device_package(package, f"{NAME}:0", 0, False, 4, False, None)

    def check(what):
        x = torch.randn(3, 8)
        (got,), wanted = loaded(x), model(x)
        driver.finish(torch_)
        try:
            torch.testing.assert_close(got, wanted.detach(), rtol=2e-4, atol=2e-5)
        except AssertionError as e:
            failed.append(f"{what}: {e}")

    for call in range(5):
        check(f"call {call}")
    with torch.no_grad():
        model[0].weight.mul_(2)
    loaded.update_weights([("0.weight", model[0].weight)], False)
    loaded.swap_weights()
    check("call with other weights")
    other_builds.tell("package", failed=failed, told=torch_.stand_in_told() - told)


def refused(driver):
    """Graphs while PyTorch's queue is none that work can be put in order with."""
    gm = other_builds.traced(lambda x: torch.softmax(x, -1) * 2, NAME, (7, 9))
    rows = {}
    # The second adapter, once it has been seen, stays.
    cases = {"first adapter": {}, "lists": {"description": 0}, "batched": {"description": -1}, "order": {"is_in_order": 0}, "graph": {"is_recorded": 1}}
    for what, wrong in cases.items():
        driver.adapter.value = 1 if what == "first adapter" else 2
        for name, value in wrong.items():
            setattr(driver.queue, name, value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = [_native.compile_fx(gm, {"strict": True}).report() for _ in range(2)][-1]
        driver.queue.is_in_order, driver.queue.is_recorded, driver.queue.description = 1, 0, 1
        rows[what] = {"kernels": len(report["kernels"]), "warned": [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]}
    # Options that the driver has nothing for say so, once.
    torch.xpu.is_available, available = (lambda: True), torch.xpu.is_available
    long = other_builds.traced(lambda x: [x := torch.softmax(x + k, -1).flip(0) for k in range(6)][-1], NAME, (7, 9))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = torch.randn(7, 9)
        for _ in range(2):
            made = _native.compile_fx(long, {"strict": True, "cudagraphs": True, "tune": "now"})
            for _ in range(4):
                made(x)
                assert driver.wait(driver.stream) == 0
    rows["options"] = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    torch.xpu.is_available = available
    made = _native.compile_fx(gm, {"strict": True})
    driver.queue.is_recorded = 1
    try:
        made(torch.randn(7, 9))
        rows["call"] = "a call was issued while the queue is captured"
    except inrush.Error as e:
        rows["call"] = str(e)
    driver.queue.is_recorded = 0
    other_builds.tell("refused", **rows)


def main():
    other_builds.stand_in(LIBRARY)
    # The kernels' machine code is their source.
    python = FOLDER / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {gpu_driver.__file__} python "$@"\n')
    python.chmod(0o755)
    sys.executable, real = str(python), sys.executable
    torch_, driver = build(), Driver()
    torch_.stand_in_stream(ctypes.byref(driver.queue) if KIND == "xpu" else driver.stream)
    torch_.stand_in_wait(ctypes.cast(driver.wait, ctypes.c_void_p), driver.stream)
    if KIND == "xpu":
        refused(driver)

    def rows(x, y):
        return torch.softmax(x * 2, -1) + y, x.var(0), (x * y).sum(), x.t().clone(memory_format=torch.contiguous_format)

    def layers(x, y):
        h = x
        for _ in range(3):
            h = torch.softmax(h @ y, -1) + h.amax(1, keepdim=True)
        return h, h.argmax(1)

    def chain(x, y):
        h = x
        for _ in range(5):
            h = torch.softmax(h + y, -1).flip(0)
        return h

    def written(x, y):
        x.mul_(2)
        return x.sum(1) + y.select(1, 0)

    def called(x, y):
        h = torch.softmax(x, -1) + y
        return torch.linalg.matrix_exp(h), h

    def scaled(x, n):
        small = torch.ops.prims.convert_element_type(n * 2, torch.float32)
        return torch.softmax(x * small, -1) + n, n

    fills, fill = [], torch.Tensor.fill_
    torch.Tensor.fill_ = lambda t, value: (fills.append(value), fill(t, value))[1]
    log = pathlib.Path(os.environ["FAKE_LOG"])
    cases = [(rows, ((33, 70), (33, 70))), (layers, ((8, 16), (16, 16))), (chain, ((9, 40), (9, 40))), (written, ((4, 6), (4, 6)))]
    cases.append((scaled, ((5, 33), ())))
    if KIND == "xpu":
        cases.append((called, ((5, 5), (5, 5))))
    for f, sizes in cases:
        row, told = {"failed": []}, torch_.stand_in_told()
        functional = torch.func.functionalize(f) if f is written else f
        made = _native.compile_fx(other_builds.traced(functional, NAME, *sizes), {"strict": True})
        log.write_text("")
        fills.clear()
        x, y = (torch.randn(s) if s else torch.tensor(1.5, dtype=torch.float64) for s in sizes)
        for call in range(6):
            # The same memory again and again, then other memory, and another number of the host's.
            given = (x, y) if call < 5 else (x.clone(), y.clone() if y.dim() else y + 1)
            theirs = [t.clone() for t in given]
            wanted, got = f(*theirs), made(*given)
            driver.finish(torch_)
            wanted, got = (v if isinstance(v, (tuple, list)) else (v,) for v in (wanted, got))
            for want, have in zip((*wanted, *theirs), (*got, *given), strict=True):
                try:
                    torch.testing.assert_close(have, want, rtol=2e-4, atol=2e-5)
                except AssertionError as e:
                    row["failed"].append(f"call {call}: {e}")
        seen = log.read_text().splitlines()
        launches = [line for line in seen if "launch " in line]
        row |= {"launches": len(launches), "batched": sum(line.startswith("graph ") for line in launches)}
        row["threads"] = sorted({int(line.split("threads=")[1].split()[0]) for line in launches})
        row["called"] = [c["op"] for c in made.report()["calls"]]
        row["fills"] = len(fills)
        row["libraries"] = list(made.report()["libraries"])
        other_builds.tell(f.__name__, told=torch_.stand_in_told() - told, **row)
    packaged(driver, torch_)
    sys.executable = real
    other_builds.tell("torch", streams=torch_.stand_in_asked(), guards=torch_.stand_in_guards())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
