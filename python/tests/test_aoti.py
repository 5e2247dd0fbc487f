"""Packages of format `aoti`: PyTorch's own loader runs them."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import threading
import zipfile

import pytest
import torch

import inrush
from runtime_packages import REPOSITORY

FOLDER = "data/aotinductor/model/"


class Function(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.forward = f


def make(folder, model, args, kwargs=None, *, name="m.pt2", **options):
    shapes = options.pop("dynamic_shapes", None)
    program = torch.export.export(model.eval(), args, kwargs, dynamic_shapes=shapes)
    return inrush.aot_compile(program, folder / name, format="aoti", **options)


def open_package(path, runners=1):
    """The callable of a package, without `aoti_load_package`, which looks for a C++ compiler for seconds."""
    loader = torch._C._aoti.AOTIModelPackageLoader(os.fspath(path), "model", False, runners, -1)
    return torch.export.pt2_archive._package.AOTICompiledModel(loader)


def extract(path, folder):
    """The container's library."""
    with zipfile.ZipFile(path) as package:
        package.extractall(folder)
    (top,) = os.listdir(folder)
    return os.fspath(folder / top / FOLDER / "inrush.wrapper.so")


def unpack(path, folder):
    """A runner, which has functions that the loader of packages has not."""
    return torch._C._aoti.AOTIModelContainerRunnerCpu(extract(path, folder), 1)


class Container:
    """A container by the C functions themselves: some are called by no runner in Python."""

    def __init__(self, folder, device=b"cpu"):
        (top,) = os.listdir(folder)
        self.library = ctypes.CDLL(os.fspath(folder / top / FOLDER / "inrush.wrapper.so"))
        self.handle = ctypes.c_void_p()
        if device is not None:
            self("CreateWithDevice", ctypes.c_size_t(2), device, None, handle=ctypes.byref(self.handle))

    def __call__(self, name, *args, handle=None, failure=False):
        function = getattr(self.library, name if name.startswith("AOTI") else f"AOTInductorModelContainer{name}")
        status = function(self.handle if handle is None else handle, *args)
        text = ctypes.c_char_p()
        assert self.library.AOTInductorGetLastError(ctypes.byref(text)) == 0
        assert status == (1 if failure else 0) and bool(text.value) == failure, (name, status, text.value)
        return text.value.decode()

    def get(self, name, kind, *args):
        value = kind()
        self(name, *args, ctypes.byref(value))
        return value.value

    def names(self, count, name):
        return [self.get(name, ctypes.c_char_p, ctypes.c_size_t(k)).decode() for k in range(self.get(count, ctypes.c_size_t))]

    def run(self, inputs, room=1, failure=False):
        given = handles(inputs)
        out = (ctypes.c_void_p * room)()
        text = self("Run", given, ctypes.c_size_t(len(inputs)), out, ctypes.c_size_t(room), None, None, failure=failure)
        assert list(given) == [None] * len(inputs), "inputs are taken over, also by a call that fails"
        if failure:
            assert list(out) == [None] * room
            return text
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs([capsule(h, None, None) for h in out])

    def update(self, name, values, *flags, failure=False):
        given = handles(values.values())
        pairs = (ctypes.c_void_p * (2 * len(values)))()
        names = [ctypes.c_char_p(n.encode()) for n in values]
        for k, n in enumerate(names):
            pairs[2 * k], pairs[2 * k + 1] = ctypes.cast(n, ctypes.c_void_p), given[k]
        text = self(name, pairs, ctypes.c_size_t(len(values)), *map(ctypes.c_bool, flags), failure=failure)
        delete = torch_function("aoti_torch_delete_tensor_object")
        assert not any(delete(ctypes.c_void_p(h)) for h in given)
        return text

    def close(self):
        self("Delete")


def torch_function(name):
    return getattr(ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")), name)


def handles(tensors):
    """New handles, which whoever gets them deletes."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    made = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return (ctypes.c_void_p * len(made))(*(pointer(c, None) for c in made))


def same(loaded, model, *args, rtol=1e-4, atol=1e-5, **kwargs):
    with torch.no_grad():
        wanted = model(*args, **kwargs)
    got = loaded(*args, **kwargs)
    torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)
    return got


def says(capfd, match, call):
    """An exception, whose text 2.15 gives in it and earlier releases leave on stderr."""
    capfd.readouterr()
    with pytest.raises(RuntimeError) as error:
        call()
    text = str(error.value) + capfd.readouterr().err
    assert match in text, text


def linear():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


BATCH = {0: torch.export.Dim("batch", min=1, max=64)}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    torch.manual_seed(0)
    model = linear()
    return model, make(tmp_path_factory.mktemp("linear"), model, (torch.randn(3, 8),), dynamic_shapes=(BATCH,))


def test_the_loader_of_pytorch_takes_it_and_says_nothing(package, capfd):
    model, path = package
    loaded = torch._inductor.aoti_load_package(path)
    for n in (1, 7, 64):
        same(loaded, model, torch.randn(n, 8))
    same(loaded, model, torch.randn(8, 5).t())
    same(loaded, model, torch.randn(9, 16)[2:, ::2])
    same(loaded, model, torch.randn(1, 8).expand(6, 8))
    assert loaded.get_metadata()["AOTI_DEVICE_KEY"] == "cpu"
    assert sorted(loaded.get_constant_fqns()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert capfd.readouterr().err == ""


def test_an_archive_is_stored_whole_and_the_same_each_time(package, tmp_path):
    model, path = package
    again = make(tmp_path, model, (torch.randn(3, 8),), dynamic_shapes=(BATCH,))
    with zipfile.ZipFile(path) as one, zipfile.ZipFile(again) as two:
        assert {i.compress_type for i in one.infolist()} == {zipfile.ZIP_STORED}
        assert one.namelist() == two.namelist()
        for name in one.namelist():
            assert name.endswith(".inrush") or one.read(name) == two.read(name), name


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(-2))


def test_models(tmp_path):
    images = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5))
    for k, (model, args) in enumerate(((images, (torch.randn(2, 3, 6, 6),)), (Block(), (torch.randn(2, 7, 32),)))):
        model = model.eval()
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.2)
        same(open_package(make(tmp_path, model, args, name=f"{k}.pt2")), model, *args)


def test_nested_inputs_and_outputs_of_many_dtypes(tmp_path):
    def f(pair, *, last):
        (a, b), last = pair, last["x"]
        return {"ints": (a + b, a // 2), "flags": [last, last & (a > 0)], "sum": a.sum()}

    model = Function(f)
    args, kwargs = ((torch.arange(6).reshape(2, 3), torch.ones(3, dtype=torch.int32)),), {"last": {"x": torch.tensor([True, False, True])}}
    got = same(open_package(make(tmp_path, model, args, kwargs)), model, *args, **kwargs)
    assert got["flags"][0].dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(dtype, tmp_path):
    model = torch.nn.Linear(8, 4).to(dtype).eval()
    x = torch.randn(3, 8, dtype=dtype)
    loaded = open_package(make(tmp_path, model, (x,)))
    rtol = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-4
    same(loaded, model, x, rtol=rtol, atol=rtol)
    new = {n: torch.randn_like(p) for n, p in model.state_dict().items()}
    loaded.load_constants(new, check_full_update=True)
    model.load_state_dict(new)
    same(loaded, model, x, rtol=rtol, atol=rtol)


def test_constants_of_the_export_and_numbers(tmp_path):
    model = Function(lambda x, n, none: (x * n, None, x.shape[0], 2.5))
    x = torch.randn(3, 4)
    loaded = open_package(make(tmp_path, model, (x, 3, None), dynamic_shapes=(BATCH, None, None)))
    scaled, none, rows, half = loaded(torch.ones(5, 4), 3, None)
    assert torch.equal(scaled, torch.full((5, 4), 3.0)) and none is None and rows == 5 and half == 2.5


def test_outputs_that_are_views(tmp_path):
    def f(x, y):
        z = x + y
        return x.t(), z, z[1:], z.unsqueeze(0), y

    model, x, y = Function(f), torch.randn(3, 4), torch.randn(3, 4)
    loaded = open_package(make(tmp_path, model, (x, y)))
    for args in ((x, y), (torch.randn(4, 3).t(), y), (torch.randn(6, 8)[3:, ::2], y)):
        same(loaded, model, *args)
    kept = x.clone()
    for out in loaded(x, y):
        out.zero_()
    assert torch.equal(x, kept), "outputs are views in eager, and have memory of their own here"


def test_no_elements_and_written_inputs(tmp_path):
    model = Function(lambda x: (x + 1, x.sum(0), x.t()))
    loaded = open_package(make(tmp_path, model, (torch.randn(3, 4),), dynamic_shapes=({0: torch.export.Dim("n", min=0, max=9)},)))
    for n in (0, 5):
        same(loaded, model, torch.randn(n, 4))
    writes = Function(lambda x, y: x.add_(y))
    loaded = open_package(make(tmp_path, writes, (torch.zeros(3, 4), torch.ones(4)), name="w.pt2"))
    for x in (torch.zeros(3, 4), torch.zeros(4, 3).t()):
        out = loaded(x, torch.arange(4.0))
        assert torch.equal(x, torch.arange(4.0).expand(3, 4)) and torch.equal(out, x)


def test_sizes_that_depend_on_data(tmp_path):
    model = Function(lambda x: x[x > 0] * 2)
    loaded = open_package(make(tmp_path, model, (torch.randn(4, 5),)))
    for _ in range(3):
        same(loaded, model, torch.randn(4, 5))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.count += 1
        return x * self.weight + self.count


def test_a_buffer_that_calls_write(tmp_path):
    model = Counter()
    loaded = open_package(make(tmp_path, model, (torch.zeros(4),)))
    assert [loaded(torch.zeros(4))[0].item() for _ in range(3)] == [1, 2, 3]
    loaded.load_constants({"weight": torch.full((4,), 2.0)}, check_full_update=False)
    assert loaded(torch.ones(4))[0].item() == 6
    loaded.load_constants({"count": torch.full((1,), 10.0)}, check_full_update=False)
    assert loaded(torch.zeros(4))[0].item() == 11


def state(model):
    return {n: torch.randn_like(p) for n, p in model.state_dict().items()}


def eager(values):
    model = linear().eval()
    model.load_state_dict(values)
    return model


def test_constants_are_replaced(package, capfd):
    model, path = package
    loaded, x = open_package(path), torch.randn(5, 8)
    one, two = state(model), state(model)
    loaded.load_constants(one, check_full_update=True)
    same(loaded, eager(one), x)
    # A part of them, one with other strides, one that requires gradients.
    part = {"2.weight": two["2.weight"].t().contiguous().t(), "0.bias": torch.nn.Parameter(two["0.bias"])}
    loaded.load_constants(part, check_full_update=False)
    same(loaded, eager({**one, **part}), x)
    before = loaded(x)
    for wrong, full, why in (
        ({"0.bias": torch.ones(3)}, False, "of sizes [16], got float32 of sizes [3]"),
        ({"0.bias": torch.ones(16).double()}, False, "got float64"),
        ({**two, "2.bias": torch.ones(5)}, True, "`2.bias`"),
        ({"0.bias": two["0.bias"]}, True, "weights are missing"),
        ({"0.bias": two["0.bias"].to_sparse()}, False, "dense tensor"),
        ({"0.bias": torch.empty(16, device="meta")}, False, "another device"),
    ):
        says(capfd, why, lambda: loaded.load_constants(wrong, check_full_update=full))
        assert torch.equal(loaded(x), before)
    with pytest.raises(RuntimeError, match="not found|Constant"):
        loaded.load_constants({"nothing": x}, check_full_update=False)


def test_two_sets_of_constants(package, tmp_path, capfd):
    model, path = package
    runner, x, one = unpack(path, tmp_path), torch.randn(5, 8), state(model)
    assert set(runner.get_constant_names_to_dtypes().values()) == {6}
    assert set(runner.get_constant_names_to_original_fqns().values()) == set(one)
    first = runner.run([x])[0]
    says(capfd, "no new weights", runner.swap_constant_buffer)
    runner.update_constant_buffer(one, True, True)
    assert torch.equal(runner.run([x])[0], first)
    runner.swap_constant_buffer()
    torch.testing.assert_close(runner.run([x])[0], eager(one)(x))
    # An update of the active set leaves the inactive one as it is.
    two, three = state(model), state(model)
    runner.update_constant_buffer(two, True, True)
    runner.update_constant_buffer(three, False, True)
    torch.testing.assert_close(runner.run([x])[0], eager(three)(x))
    runner.swap_constant_buffer()
    torch.testing.assert_close(runner.run([x])[0], eager(two)(x))
    runner.update_constant_buffer(one, True, True)
    runner.free_inactive_constant_buffer()
    says(capfd, "no new weights", runner.swap_constant_buffer)
    says(capfd, "not done in packages of inrush", lambda: runner.extract_constants_map(False))


def test_constants_in_memory_of_the_caller(package, tmp_path):
    """They are read where they are; what was computed of them is computed again when the caller says so."""
    model, path = package
    unpack(path, tmp_path)
    container, x, values = Container(tmp_path), torch.randn(5, 8), state(model)
    update = "UpdateUserManagedConstantBufferPairs"
    container.update(update, values, False, True)
    torch.testing.assert_close(container.run([x])[0], eager(values)(x))
    for v in values.values():
        v.mul_(0.5)
    container("RunConstantFolding", ctypes.c_bool(False), None, None)
    torch.testing.assert_close(container.run([x])[0], eager(values)(x))
    assert "no inactive set" in container("RunConstantFolding", ctypes.c_bool(True), None, None, failure=True)
    # The container keeps the tensors, though no one else does.
    wanted = eager({n: v.clone() for n, v in values.items()})
    values = v = None
    torch.testing.assert_close(container.run([x])[0], wanted(x))
    inactive = state(model)
    container.update("UpdateInactiveConstantBufferPairs", inactive)
    container("RunConstantFolding", ctypes.c_bool(True), None, None)
    torch.testing.assert_close(container.run([x])[0], wanted(x))
    container("SwapConstantBuffer")
    torch.testing.assert_close(container.run([x])[0], eager(inactive)(x))
    part = {"0.bias": torch.randn(16)}
    assert "weights are missing" in container.update("UpdateConstantBufferPairs", part, False, True, failure=True)
    container.update("UpdateConstantBufferFromCpuPairs", part, False, False)
    torch.testing.assert_close(container.run([x])[0], eager({**inactive, **part})(x))
    container.close()


def test_the_c_interface(package, tmp_path):
    model, path = package
    unpack(path, tmp_path)
    container, x = Container(tmp_path), torch.randn(5, 8)
    torch.testing.assert_close(container.run([x])[0], model(x))
    assert container.names("GetNumConstants", "GetConstantName") == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert container.names("GetNumInputs", "GetInputName") == ["input"]
    assert container.names("GetNumOutputs", "GetOutputName") == ["output0"]
    sizes = [container.get("GetConstantDataSize", ctypes.c_size_t, ctypes.c_size_t(k)) for k in range(4)]
    assert sizes == [512, 64, 256, 16]
    assert container.get("GetConstantsBlobSize", ctypes.c_uint64) == 512 + 64 + 256 + 64
    assert container.get("DidCallLoadConstants", ctypes.c_bool) is True
    assert container.get("GetConstantFromFolded", ctypes.c_bool, ctypes.c_size_t(0)) is False
    assert "no constant 4, the model has 4" in container("GetConstantName", ctypes.c_size_t(4), ctypes.byref(ctypes.c_char_p()), failure=True)
    assert "`ret_num_outputs` is NULL" in container("GetNumOutputs", None, failure=True)
    assert "`container` is NULL" in container("SwapConstantBuffer", handle=ctypes.c_void_p(), failure=True)
    assert "room is given for 2" in container.run([x], room=2, failure=True)
    assert "takes 1 tensors" in container.run([], failure=True)
    assert "must be float32, got float64" in container.run([x.double()], failure=True)
    other = ctypes.c_void_p()
    for device, models, why in ((b"cuda:0", 1, "cuda:0"), (b"cpu", 0, "at least one model"), (None, 1, "`device_str` is NULL")):
        assert why in container("CreateWithDevice", ctypes.c_size_t(models), device, None, handle=ctypes.byref(other), failure=True)
        assert other.value is None
    torch.testing.assert_close(container.run([x])[0], model(x))
    container.close()


def test_a_blob_of_constants(package, tmp_path):
    model, path = package
    runner, x = unpack(path, tmp_path / "p"), torch.randn(5, 8)
    values = state(model)
    blob = b""
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        raw = values[name].numpy().tobytes()
        blob += raw + bytes(-len(raw) % 64)
    (tmp_path / "blob").write_bytes(blob)
    runner.update_constant_buffer_from_blob(os.fspath(tmp_path / "blob"))
    torch.testing.assert_close(runner.run([x])[0], eager(values)(x))


def test_calls_from_threads_while_constants_change(package):
    model, path = package
    loaded = open_package(path, runners=4)
    sets = [state(model) for _ in range(2)]
    x = torch.randn(16, 8)
    loaded.load_constants(sets[0], check_full_update=True)
    wanted = [eager(s)(x).detach() for s in sets]
    over, wrong, calls = threading.Event(), [], []

    def call():
        n = 0
        while not over.is_set():
            (y,) = loaded.loader.run([x])
            n += 1
            if not any(torch.allclose(y, w, rtol=1e-3, atol=1e-4) for w in wanted):
                wrong.append(y)
        calls.append(n)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for k in range(20):
        loaded.load_constants(sets[(k + 1) % 2], check_full_update=True)
    over.set()
    for t in threads:
        t.join(60)
    assert not wrong and len(calls) == 4 and min(calls) > 0


def test_wrong_inputs_are_errors_and_the_process_lives(package, tmp_path, capfd):
    model, path = package
    loaded = open_package(path)
    for args, why in (
        ((torch.randn(3, 8).double(),), "`input` must be float32, got float64"),
        ((torch.randn(3),), "2 dimensions"),
        ((torch.randn(3, 7),), "dimension 1 must be 8, got 7"),
        ((torch.randn(65, 8),), "outside the range 1..=64"),
        ((), "takes 1 tensors (input), got 0"),
        ((torch.randn(3, 8), torch.randn(3, 8)), "takes 1 tensors (input), got 2"),
        ((torch.randn(3, 8).to_sparse(),), "dense tensor"),
        ((torch.empty(3, 8, device="meta"),), "another device"),
        ((torch.randn(3, 8, dtype=torch.complex64).conj().imag,), "resolve_neg"),
    ):
        says(capfd, why, lambda: loaded.loader.run(list(args)))
    same(loaded, model, torch.randn(3, 8))
    model = Function(lambda x, i: x[i])
    loaded = open_package(make(tmp_path, model, (torch.randn(4), torch.tensor([1, 2]))))
    says(capfd, "index", lambda: loaded(torch.randn(4), torch.tensor([1, 9])))
    same(loaded, model, torch.randn(4), torch.tensor([3, 0]))


def test_damaged_packages_are_refused(package, tmp_path, capfd):
    _, path = package
    unpack(path, tmp_path / "p")
    (top,) = os.listdir(tmp_path / "p")
    folder = tmp_path / "p" / top / FOLDER
    good = (folder / "inrush.wrapper.inrush").read_bytes()

    def attempt(name, why, change):
        there = tmp_path / name
        shutil.copytree(folder, there)
        change(there / "inrush.wrapper.inrush")
        library = os.fspath(there / "inrush.wrapper.so")
        says(capfd, why, lambda: torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1))

    attempt("none", "no package", lambda p: p.unlink())
    attempt("half", "not a compiled package", lambda p: p.write_bytes(good[: len(good) // 2]))
    for at in (len(good) // 3, 200):
        flipped = bytearray(good)
        flipped[at] ^= 4
        attempt(f"flip{at}", "damaged", lambda p: p.write_bytes(flipped))


def test_packages_come_and_go(package, tmp_path):
    model, path = package
    other = torch.nn.Linear(3, 2)
    second = make(tmp_path, other, (torch.randn(1, 3),))
    x, y = torch.randn(3, 8), torch.randn(1, 3)
    for _ in range(4):
        a, b = open_package(path), open_package(second)
        same(a, model, x)
        got = same(b, other, y)
        results = []
        thread = threading.Thread(target=lambda: results.append(a(x)))
        thread.start()
        thread.join()
        del a, b
        torch.testing.assert_close(got, other(y))
        torch.testing.assert_close(results[0], model(x))


def test_a_target_that_is_a_gpu_as_well(tmp_path):
    pytest.importorskip("triton")
    model, x = linear(), torch.randn(3, 8)
    path = make(tmp_path, model, (x,), targets=["cpu", "h100"], libraries=False)
    same(open_package(path), model, x)


def test_a_package_for_a_gpu_asks_for_its_runner(tmp_path, capfd):
    pytest.importorskip("triton")
    path = make(tmp_path, linear(), (torch.randn(3, 8),), targets=["h100"], libraries=False)
    load = torch._C._aoti.AOTIModelPackageLoader
    assert load.load_metadata_from_package(path, "model")["AOTI_DEVICE_KEY"] == "cuda"
    if not torch.cuda.is_available():
        says(capfd, "driver", lambda: load(path, "model", False, 1, 0))
    extract(path, tmp_path / "p")
    container = Container(tmp_path / "p", device=None)
    other = ctypes.c_void_p()
    for device, why in ((b"cpu", "was compiled for cuda:h100"), (b"cuda:x", "unknown device `cuda:x`"), (b"xpu:0", "has no target for `xpu:0`, only cuda:h100")):
        assert why in container("CreateWithDevice", ctypes.c_size_t(1), device, None, handle=ctypes.byref(other), failure=True)
        assert other.value is None


def test_what_cannot_be_made_says_so(tmp_path, monkeypatch):
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(inrush.InputError, match="no format 'onnx'"):
        inrush.aot_compile(program, tmp_path / "m", format="onnx")
    with pytest.raises(inrush.InputError, match="on GPUs of kind `cuda`, this one is for mi300x"):
        inrush.aot_compile(program, tmp_path / "m", format="aoti", targets=["mi300x"])
    with pytest.raises(inrush.MachineError, match="no such folder"):
        inrush.aot_compile(program, tmp_path / "none" / "m.pt2", format="aoti")
    monkeypatch.setattr("inrush.package._library_folders", lambda: [str(tmp_path)])
    with pytest.raises(inrush.MachineError, match="cargo build --release -p inrush-container"):
        inrush.aot_compile(program, tmp_path / "m.pt2", format="aoti")
    assert os.listdir(tmp_path) == []


def test_the_command_line_makes_the_same(tmp_path):
    tool = REPOSITORY / "target" / "release" / "inrush"
    if not tool.exists():
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bins", "--lib", "-p", "inrush-cli", "-p", "inrush-container"], cwd=REPOSITORY, check=True, timeout=1800)
    model, x = Function(lambda pair, y: {"a": pair[0] + y, "b": pair[1]}), (torch.randn(3, 8), torch.randn(2))
    torch.export.save(torch.export.export(model, (x, torch.randn(8))), tmp_path / "e.pt2")
    command = [tool, "compile", "--format", "aoti", tmp_path / "e.pt2", "-o", tmp_path / "m.pt2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    same(open_package(tmp_path / "m.pt2"), model, x, torch.randn(8))
    done = subprocess.run([*command, "--target", "mi300x"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and "on GPUs of kind `cuda`" in done.stderr, done.stderr
    assert sorted(p.name for p in pathlib.Path(tmp_path).iterdir()) == ["e.pt2", "m.pt2"]
