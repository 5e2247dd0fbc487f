"""Packages: compiled ahead of time, loaded as callables."""

import json
import subprocess
import sys
import textwrap
import threading
import zipfile

import pytest
import torch

import inrush


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, pair, *, bias=None):
        a, b = pair
        out = torch.relu(self.linear(a * self.scale + b))
        return {"out": out if bias is None else out + bias, "sum": (out.sum(), a.shape[0])}


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    model = Model().eval()
    n = torch.export.Dim("n", min=2, max=64)
    args, kwargs = ((torch.randn(5, 4), torch.randn(5, 4)),), {"bias": torch.randn(3)}
    shapes = {"pair": ({0: n}, {0: n}), "bias": None}
    return model, torch.export.export(model, args, kwargs, dynamic_shapes=shapes)


def test_a_package_is_called_like_the_module(exported, tmp_path):
    model, program = exported
    path = inrush.aot_compile(program, tmp_path / "model.inrush")
    loaded = inrush.load(path)
    for n in (2, 5, 17):
        pair, bias = (torch.randn(n, 4), torch.randn(n, 4)), torch.randn(3)
        with torch.no_grad():
            wanted = model(pair, bias=bias)
        got = loaded(pair, bias=bias)
        assert got["sum"][1] == n
        torch.testing.assert_close(got, wanted)


def test_bad_inputs_are_refused(exported, tmp_path):
    _, program = exported
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"))
    a, bias = torch.randn(5, 4), torch.randn(3)
    with pytest.raises(inrush.InputError, match="nested as"):
        loaded(a, bias=bias)
    with pytest.raises(inrush.InputError, match="2 dimensions of torch.float32"):
        loaded((a, a.double()), bias=bias)
    with pytest.raises(inrush.InputError, match="takes 3 inputs"):
        loaded.flat(a)
    with pytest.raises((inrush.Error, RuntimeError, IndexError)):
        loaded((torch.randn(65, 4), torch.randn(65, 4)), bias=bias)
    with pytest.raises((inrush.Error, RuntimeError, IndexError)):
        loaded((a, torch.randn(6, 4)), bias=bias)
    assert loaded((a, a), bias=bias)["out"].shape == (5, 3)


def test_packages_for_several_targets_run_on_this_one(tmp_path):
    """Kernels for GPUs are built without one. Their weights are those of the CPU's program."""
    pytest.importorskip("triton")
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).eval()
    x = torch.randn(4, 8)
    program = torch.export.export(model, (x,))
    path = inrush.aot_compile(program, tmp_path / "m.inrush", targets=["cpu", "h100", "a100"], libraries=False)
    torch.testing.assert_close(inrush.load(path)(x), model(x))
    with zipfile.ZipFile(path) as package:
        manifest, names = json.loads(package.read("inrush.json")), package.namelist()
    gpus = [t["Gpu"] for t in manifest["targets"] if "Gpu" in t]
    assert [g["gpu"]["model"] for g in gpus] == ["h100", "a100"]
    assert all(g["kernels"] and all(k["ptx"] for k in g["kernels"]) for g in gpus)
    assert len([n for n in names if n.startswith("weights/")]) == 4
    with pytest.raises(inrush.MachineError, match="compiled for cuda:h100"):
        inrush.load(inrush.aot_compile(program, tmp_path / "gpu.inrush", targets=["h100"]), device="cpu")
    with pytest.raises(inrush.InputError, match="needs a target"):
        inrush.aot_compile(program, tmp_path / "none.inrush", targets=[])


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(inrush.InputError, match="ExportedProgram"):
        inrush.aot_compile(Model(), tmp_path / "x.inrush")
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(inrush.InputError, match="unknown target `z80`"):
        inrush.aot_compile(program, tmp_path / "x.inrush", target="z80")
    (tmp_path / "bad.inrush").write_bytes(b"nothing")
    with pytest.raises(inrush.Error):
        inrush.load(tmp_path / "bad.inrush")


class Positions(torch.nn.Module):
    """Counts positions in the storage of an input and of a buffer that begins later, and from the first element of an input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(12.0)[2:])

    def forward(self, x, y):
        return x.as_strided((2,), (1,), 3) + self.kept.as_strided((2,), (1,), 3), y.as_strided((2,), (1,)) * 2


def test_memory_in_which_positions_are_counted_is_the_callers(tmp_path):
    model, x, y = Positions(), torch.arange(10.0), torch.arange(12.0).reshape(3, 4)
    loaded = inrush.load(inrush.aot_compile(torch.export.export(model, (x, y)), tmp_path / "m.inrush"))
    for args in ((x, y), (x, torch.arange(24.0).reshape(6, 4)[3:])):
        for got, wanted in zip(loaded(*args), model(*args)):
            assert torch.equal(got, wanted)
    later = torch.arange(12.0)[2:]
    with pytest.raises(inrush.InputError, match="`x` must begin its storage, its offset is 2"):
        loaded(later, y)
    assert torch.equal(loaded(later.clone(), y)[0], model(later.clone(), y)[0])
    with pytest.raises(inrush.InputError, match=r"`y` must have strides \[4, 1\], got \[1, 3\]"):
        loaded(x, torch.arange(12.0).reshape(4, 3).t())


def test_a_weight_before_whose_first_element_positions_are_counted_is_refused(tmp_path):
    model = Positions()
    model.forward = lambda x: model.kept.as_strided((2,), (1,), 1) + x
    program = torch.export.export(model, (torch.zeros(2),))
    with pytest.raises(inrush.Error, match="before a weight's first element"):
        inrush.aot_compile(program, tmp_path / "m.inrush")


def test_weights_are_replaced(exported, tmp_path):
    model, program = exported
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"), threads=2)
    pair, bias = (torch.randn(6, 4), torch.randn(6, 4)), torch.randn(3)
    first = loaded(pair, bias=bias)
    assert {name: tuple(w.shape) for name, w in loaded.weights().items()} == {"linear.weight": (3, 4), "linear.bias": (3,), "scale": ()}
    other = Model().eval()
    with torch.no_grad():
        other.linear.weight.copy_(torch.randn(4, 3).t())
    # Parameters require gradients, and one is not row-major.
    new = {"linear.weight": torch.nn.Parameter(other.linear.weight.t().contiguous().t()), "linear.bias": other.linear.bias}
    loaded.update_weights(new)
    torch.testing.assert_close(loaded(pair, bias=bias), first, rtol=0, atol=0)
    loaded.swap_weights()
    with torch.no_grad():
        torch.testing.assert_close(loaded(pair, bias=bias), other(pair, bias=bias))
    assert torch.equal(loaded.weights()["linear.weight"], other.linear.weight)
    loaded.update_weights(dict(model.state_dict()), all=True)
    loaded.swap_weights()
    torch.testing.assert_close(loaded(pair, bias=bias), first, rtol=0, atol=0)
    with pytest.raises(inrush.InputError, match="no new weights"):
        loaded.swap_weights()
    for wrong, why in (
        ({"nothing": bias}, "no weight `nothing`"),
        ({"linear.bias": bias.double()}, "is float32 of sizes .3., got float64"),
        ({"linear.bias": 1.0}, "takes a dense tensor, not float"),
    ):
        with pytest.raises(inrush.InputError, match=why):
            loaded.update_weights(wrong)
    with pytest.raises(inrush.InputError, match="weights are missing|is missing"):
        loaded.update_weights({"linear.bias": bias}, all=True)
    loaded.update_weights({"linear.bias": bias})
    loaded.discard_update()
    with pytest.raises(inrush.InputError, match="no new weights"):
        loaded.swap_weights()


def test_the_signature_of_a_package(exported, tmp_path):
    _, program = exported
    signature = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush")).signature
    a, b, bias = signature.inputs
    assert (a.kind, a.dtype, a.shape[1], bias.name, bias.shape) == ("tensor", torch.float32, 4, "bias", (3,))
    assert a.shape[0] == b.shape[0] and a.ranges == {a.shape[0]: (2, 64)}
    assert [o.kind for o in signature.outputs] == ["tensor", "tensor", "int"]
    assert [w.name for w in signature.weights] == ["linear.weight", "linear.bias", "scale"]


class Counter(torch.nn.Module):
    """Writes a buffer of its own at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.ones(4096))

    def forward(self, x):
        self.count += 1
        return x * self.weight + 0 * self.count


def test_a_swap_loses_no_write(tmp_path):
    """Eight threads call a model that counts its calls, while its weights are swapped."""
    program = torch.export.export(Counter(), (torch.zeros(4096),))
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"), threads=1)
    x, over, calls, wrong = torch.ones(4096), threading.Event(), [], []

    def call():
        n = 0
        while not over.is_set():
            y = loaded(x)
            n += 1
            if (y != y[0]).any():
                wrong.append(y)
        calls.append(n)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for t in threads:
        t.start()
    for k in range(50):
        loaded.update_weights({"weight": torch.full((4096,), float(k))})
        loaded.swap_weights()
    over.set()
    for t in threads:
        t.join(60)
    assert not wrong and len(calls) == 8 and min(calls) > 0
    assert loaded.weights()["count"].item() == sum(calls)
    assert torch.equal(loaded(x), torch.full((4096,), 49.0))


def test_a_fork_after_the_first_call_is_an_error(tmp_path):
    path = inrush.aot_compile(torch.export.export(torch.nn.Linear(256, 256), (torch.randn(512, 256),)), tmp_path / "model.inrush")
    script = textwrap.dedent(f"""
        import os, signal, torch, inrush
        loaded, x = inrush.load({path!r}, threads=2), torch.randn(512, 256)

        def child(expected):
            pid = os.fork()
            if pid == 0:
                code = 1
                signal.alarm(60)
                try:
                    loaded(x)
                    code = 0
                except RuntimeError as error:
                    code = 2 if "this process is a fork" in str(error) else 3
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == expected, code

        child(0)
        first = loaded(x)
        child(2)
        assert torch.equal(loaded(x), first)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def for_a_gpu(exported, tmp_path_factory):
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("gpu") / "gpu.inrush"
    return inrush.aot_compile(exported[1], path, targets=["h100"])


def test_a_device_that_cannot_be_used_is_refused(exported, for_a_gpu, tmp_path):
    of_cpu = inrush.aot_compile(exported[1], tmp_path / "cpu.inrush")
    assert inrush.load(of_cpu).device == torch.device("cpu")
    for path, options, error, why in (
        (of_cpu, {"device": "cuda:0"}, inrush.UnsupportedError, "no target for `cuda:0`, only cpu:"),
        (of_cpu, {"device": "tpu"}, inrush.InputError, "'tpu' is no device"),
        (of_cpu, {"device": "xpu:0"}, inrush.InputError, "not on xpu:0"),
        (of_cpu, {"cuda_graphs": True}, inrush.InputError, "not for the CPU"),
        (for_a_gpu, {"device": "cpu"}, inrush.MachineError, "was compiled for cuda:h100"),
        (for_a_gpu, {"threads": 2}, inrush.InputError, "loaded for cuda:0"),
        (for_a_gpu, {"concurrent": 0}, inrush.InputError, "at least one"),
    ):
        with pytest.raises(error, match=why):
            inrush.load(path, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_package_for_one_says_so(for_a_gpu):
    for device in (None, "cuda", "cuda:0", torch.device("cuda", 0)):
        with pytest.raises(inrush.MachineError, match="`cuda:0`: PyTorch sees no such device"):
            inrush.load(for_a_gpu, device=device)


def test_inputs_of_another_device_are_refused(exported, tmp_path):
    loaded = inrush.load(inrush.aot_compile(exported[1], tmp_path / "model.inrush"))
    a, bias = torch.randn(5, 4), torch.randn(3)
    with pytest.raises(inrush.InputError, match="is on meta, the package was loaded for cpu"):
        loaded((a, a.to("meta")), bias=bias)
    with pytest.raises(inrush.InputError, match="`linear.bias` is on meta, the package was loaded for cpu"):
        loaded.update_weights({"linear.bias": torch.empty(3, device="meta")})


def test_loading_and_calling_import_no_compiler(exported, tmp_path):
    """PyTorch's compiler and SymPy take seconds to import; a process that runs packages needs neither."""
    _, program = exported
    path = inrush.aot_compile(program, tmp_path / "model.inrush")
    code = f"""
        import sys, torch, inrush
        had = set(sys.modules)
        loaded = inrush.load({path!r})
        loaded((torch.ones(2, 4), torch.ones(2, 4)), bias=torch.ones(3))
        heavy = [n for n in ("torch._dynamo", "torch._inductor", "torch._functorch", "sympy") if n in sys.modules and n not in had]
        sys.exit(" ".join(heavy) or 0)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
