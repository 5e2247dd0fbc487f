"""Programs for GPUs as files of C++: over drivers of the tests whose kernels run in Triton's interpreter, against eager PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import gpu_driver
import pytest
import test_source_cpp

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
safetensors = pytest.importorskip("safetensors.torch")
import test_package_control  # noqa: E402
import test_parts  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import inrush  # noqa: E402

COMPILER = shutil.which("c++")
pytestmark = [pytest.mark.by_commit, pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")]
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]


class Program:
    """A module printed as C++ for a GPU, and built."""

    def __init__(self, folder, module, inputs, kind="cuda", dynamic=None, flags=(), env=None):
        self.folder, self.kind = folder, kind
        archive, self.source = folder / "m.pt2", folder / "m.cpp"
        with torch.no_grad():
            torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic), archive)
        done = gpu_driver.tool(folder, "compile", archive, "--emit", "cpp", "--target", gpu_driver.KINDS[kind][1], "-o", self.source, env=env)
        assert done.returncode == 0, done.stderr
        self.library = folder / "libm.so"
        linked = test_source_cpp.library_flags() if '#include "inrush.h"' in self.source.read_text() else []
        built = subprocess.run([COMPILER, *FLAGS, *flags, self.source, "-ldl", *linked, "-o", self.library], capture_output=True, text=True, timeout=600, check=False)
        assert built.returncode == 0, built.stderr
        # The driver of the tests, which a machine makes.
        with gpu_driver.Machine(folder, kind=kind):
            pass

    def run(self, *inputs, words=(), env=None):
        """Runs the program in a process of its own; gives the process and the outputs."""
        given, given_out = self.folder / "x.safetensors", self.folder / "y.safetensors"
        named = {str(k): x for k, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        named |= {str(k): torch.tensor(x) for k, x in enumerate(inputs) if isinstance(x, int)}
        safetensors.save_file({k: v.contiguous() for k, v in named.items()}, given)
        given_out.unlink(missing_ok=True)
        command = [sys.executable, gpu_driver.__file__, "program", self.kind, self.library, "--inputs", given, "--output", given_out, "--calls", "1", *words]
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(env or {})}
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600, env=env, check=False)
        out = safetensors.load_file(given_out) if given_out.exists() else {}
        return done, [out[k] for k in sorted(out, key=int)]

    def check(self, module, *inputs, **tolerance):
        with torch.no_grad():
            want = module(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
        want = want if isinstance(want, tuple) else (want,)
        done, got = self.run(*inputs)
        assert done.returncode == 0, done.stderr
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(a, b.contiguous(), **tolerance)
        return done


class Block(torch.nn.Module):
    """Products, a norm, reductions both ways, views as outputs and a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x):
        y = self.c(torch.relu(self.b(self.a(x))))
        self.calls.add_(1)
        return y.softmax(-1) + self.calls, y.sum(0), x.t()


@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu"])
def test_a_block_runs_on_each_kind_of_gpu_with_unknown_sizes(tmp_path, kind):
    torch.manual_seed(0)
    module = Block().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = Program(tmp_path, module, [torch.randn(4, 16)], kind, ({0: batch},))
    for rows in (4, 33) if kind == "cuda" else (7,):
        fresh = Block().eval()
        fresh.load_state_dict({**module.state_dict(), "calls": torch.zeros(8)})
        program.check(fresh, torch.randn(rows, 16))
    text = program.source.read_text()
    assert "@triton.jit" in text and "aten.relu.default" in text
    done, got = program.run(torch.randn(65, 16))
    assert done.returncode == 2 and not got and "outside the range 2..=64" in done.stderr
    done, _ = program.run(torch.randn(4, 15))
    assert done.returncode == 2 and "must have sizes [4, 16], got [4, 15]" in done.stderr
    # Errors name the function of this vendor's driver.
    load, text = {
        "cuda": ("cuModuleLoadData", "cuModuleLoadData: INVALID (999)"),
        "rocm": ("hipModuleLoadData", "hipModuleLoadData: INVALID (999)"),
        "xpu": ("zeModuleCreate", "zeModuleCreate: failed (0x7ffffffe)"),
    }[kind]
    done, _ = program.run(torch.randn(4, 16), env={"FAKE_FAIL": load})
    assert done.returncode == 3 and text in done.stderr, done.stderr


def launches(folder):
    return [line for line in (folder / "log").read_text().splitlines() if line.startswith("launch ")]


def test_level_zero_runs_work_in_order_with_the_threads_that_kernels_were_built_for(tmp_path):
    torch.manual_seed(3)
    module, x = Block().eval(), torch.randn(5, 16)
    program = Program(tmp_path, module, [x], "xpu")
    log = tmp_path / "log"
    seen = {}
    # Work is late: it runs when something waits for the list.
    for lanes in ("0", "16"):
        log.write_text("")
        fresh = Block().eval()
        fresh.load_state_dict({**module.state_dict(), "calls": torch.zeros(8)})
        done, got = program.run(x, env={"FAKE_LATE": "1", "FAKE_LOG": str(log), "FAKE_LANES": lanes})
        assert done.returncode == 0, done.stderr
        for want, have in zip(fresh(x), got, strict=True):
            torch.testing.assert_close(have, want.contiguous())
        seen[lanes] = [int(line.split("threads=")[1].split()[0]) for line in launches(tmp_path)]
    assert seen["0"] and seen["0"] == [2 * n for n in seen["16"]], seen
    for fails, text in (
        ("zeMemAllocDevice", "zeMemAllocDevice: failed"),
        ("zeKernelSetArgumentValue:3", "zeKernelSetArgumentValue: "),
        ("zeCommandListHostSynchronize:1", "zeCommandListHostSynchronize: "),
        ("zeInit", "zeInit: "),
    ):
        done, got = program.run(x, env={"FAKE_FAIL": fails})
        assert done.returncode == 3 and not got and text in done.stderr, (fails, done.stderr)
    done, _ = program.run(x, words=["--device", "7"])
    assert done.returncode == 3 and "Level Zero has 2 devices, which are counted from 0" in done.stderr
    # Too little memory: the driver's error, in words.
    done, _ = program.run(x, env={"FAKE_MEMORY": "100"})
    assert done.returncode == 3 and "zeMemAllocDevice: too little memory on the device (0x70000003)" in done.stderr


def test_a_list_of_the_caller_is_used(tmp_path):
    """`stream` is set before a model is made: Level Zero's list then says context and device."""
    program = Program(tmp_path, torch.nn.ReLU(), [torch.randn(4)], "xpu")
    text = program.source.read_text()
    main = "int main(int count, char **words) {\n    try {\n"
    assert main in text
    made = "        Handle found = nullptr;\n        unsigned n = 1;\n        driver().driver_get(&n, &found);\n        Handle all[2];\n        driver().device_get(found, &n, all);\n"
    made += "        const zero::ListDesc desc;\n        driver().list_create(found, all[1], &desc, &stream);\n"
    program.source.write_text(text.replace(main, main + made))
    built = subprocess.run([COMPILER, *FLAGS, program.source, "-ldl", "-o", program.library], capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    log = tmp_path / "log"
    log.write_text("")
    program.check(torch.nn.ReLU(), torch.randn(4))
    done, got = program.run(torch.tensor([-1.0, 2.0, 0.0, 3.0]), env={"FAKE_LOG": str(log)})
    assert done.returncode == 0 and got[0].tolist() == [0, 2, 0, 3], done.stderr
    assert log.read_text().splitlines().count("stream on 1") == 1, log.read_text()


def test_a_missing_driver_is_an_error_that_says_what_to_install(tmp_path):
    # Real machine code.
    program = Program(tmp_path, torch.nn.ReLU(), [torch.randn(4)], env={"INRUSH_PYTHON": sys.executable})
    main = tmp_path / "program"
    subprocess.run([COMPILER, "-std=c++17", "-O1", program.source, "-pthread", "-ldl", "-o", main], check=True, timeout=600)
    done = subprocess.run([main], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "no CUDA driver: install NVIDIA's driver" in done.stderr
    done = subprocess.run([main, "--device", "-1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--device must be" in done.stderr


class Pictures(torch.nn.Module):
    """Convolutions, a batch norm and pooling."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 8, 3, groups=8))

    def forward(self, x):
        return self.body(x).mean((2, 3))


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


class Kinds(torch.nn.Module):
    """Element types, indices, a size as an input and as an output."""

    def forward(self, x, index, mask, n: int):
        picked = x[index] * mask[:, None]
        return picked.to(torch.bfloat16), (picked > 0).sum(), index * 2, torch.where(mask, index, index + x.shape[0]), x.half().cumsum(0)[:n]


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_models_of_several_kinds_are_right(kind, tmp_path):
    torch.manual_seed(1)
    cases = {
        "pictures": (Pictures().eval(), [torch.randn(2, 3, 12, 10)]),
        "attention": (Attention(), [torch.randn(2, 2, 9, 16) for _ in range(3)]),
        "kinds": (Kinds(), [torch.randn(6, 5), torch.tensor([5, 0, -1]), torch.tensor([True, False, True]), 4]),
        "empty": (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), [torch.randn(0, 3)]),
    }
    for name in cases if kind == "cuda" else ("kinds", "empty"):
        module, inputs = cases[name]
        folder = tmp_path / name
        folder.mkdir()
        Program(folder, module, inputs, kind).check(module, *inputs, rtol=1e-4, atol=1e-4)


class Writes(torch.nn.Module):
    """Writes into an input, of which it gives a part."""

    def forward(self, x, y):
        x.mul_(2)
        x[1] = y
        return x[0] + 1, x.view(-1)[3:7], x, y


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_inputs_are_written(kind, tmp_path):
    module, x, y = Writes(), torch.randn(3, 4), torch.randn(4)
    Program(tmp_path, module, [x, y], kind).check(module, x, y)


class Copies(torch.nn.Module):
    """Gives an input of which every third column is left out new contents."""

    def forward(self, x, y):
        x.copy_(y.relu())
        return x.sum(), x


def test_inputs_have_the_strides_that_the_program_reads(tmp_path):
    for name, module, x, y in (
        ("part", Copies(), torch.randn(4, 8)[:, :6], torch.randn(4, 6)),
        ("turned", Copies(), torch.randn(6, 4).t(), torch.randn(4, 6)),
        ("last", torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last), None),
    ):
        folder = tmp_path / name
        folder.mkdir()
        inputs = [x] if y is None else [x, y]
        Program(folder, module, inputs).check(module, *inputs, rtol=1e-4, atol=1e-4)
    folder = tmp_path / "expanded"
    folder.mkdir()
    program = Program(folder, torch.nn.ReLU(), [torch.randn(1, 6).expand(5, 6)])
    done, got = program.run(torch.randn(5, 6))
    assert done.returncode == 2 and not got and "reads one element of dimension 0 for all" in done.stderr


class Named(torch.nn.Module):
    """Has parameters with names of the program's own."""

    def __init__(self):
        super().__init__()
        for name in ("weights", "threads", "stream", "device", "given"):
            self.register_buffer(name, torch.randn(4))

    def forward(self, inputs, outputs):
        return inputs * self.weights + self.threads - self.stream * self.device / outputs + self.given


def test_names_of_the_model_do_not_clash_with_those_of_the_program(tmp_path):
    module, x = Named(), torch.rand(3, 4) + 1
    Program(tmp_path, module, [x, x + 1]).check(module, x, x + 1)


class Draws(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5), torch.rand(3, 5)


def test_random_numbers_are_those_of_a_package(tmp_path):
    x = torch.ones(40)
    program = Program(tmp_path, Draws().train(), [x])
    done, got = program.run(x)
    assert done.returncode == 0, done.stderr
    package = tmp_path / "m.inrush"
    done = gpu_driver.tool(tmp_path, "compile", tmp_path / "m.pt2", "-o", package, "--target", "h100", "--no-libraries")
    assert done.returncode == 0, done.stderr
    with gpu_driver.Machine(tmp_path) as machine:
        want = machine.load(package)(x)
    assert all(a.equal(b) for a, b in zip(got, want, strict=True))
    assert 5 < (got[0] == 0).sum() < 35


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_memory_of_the_program_is_sound(kind, tmp_path):
    sanitizer = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    if not os.path.isabs(sanitizer):
        pytest.skip("the compiler has no address sanitizer")
    torch.manual_seed(2)
    module, x = Block().eval(), torch.randn(5, 16)
    program = Program(tmp_path, module, [x], kind, flags=["-fsanitize=address,undefined", "-fno-sanitize-recover"])
    env = {"LD_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
    done, got = program.run(x, env=env)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(got[1], module(x)[1])


class Packed:
    """A program as a package of the tests: each call is a process, whose work is late."""

    def __init__(self, folder, kind, module, *inputs, dynamic=None):
        self.program = Program(folder, module, inputs, kind, dynamic)

    def __call__(self, *inputs):
        done, found = self.program.run(*pytree.tree_leaves(inputs), env={"FAKE_LATE": "1"})
        if done.returncode:
            raise (inrush.InputError if done.returncode == 2 else RuntimeError)(done.stderr)
        # In the order of the outputs, with the strides that the process tells.
        return test_source_cpp.outputs(done.stdout, {str(k): t for k, t in zip(test_source_cpp.tensors(done.stdout), found, strict=True)})

    def update_weights(self, weights):
        safetensors.save_file({k: v.detach().contiguous() for k, v in weights.items()}, self.program.folder / "m.weights.safetensors")

    def swap_weights(self):
        """The next call reads the file."""


def of(module, name, *parameters):
    return pytest.param(getattr(module, name), parameters, id=name[5:])


PARTS = [
    of(test_package_control, "test_cond_with_outputs_of_other_sizes"),
    of(test_package_control, "test_nested_cond"),
    of(test_package_control, "test_map", torch.float32),
    of(test_package_control, "test_data_decide_sizes_within_a_branch"),
    of(test_package_control, "test_while_loop_of_no_turn_one_and_many"),
    of(test_package_control, "test_cond_within_a_loop"),
    of(test_package_control, "test_scan_over_time"),
    of(test_package_control, "test_scan_of_several_values", True),
    of(test_parts, "test_kernels_before_and_after_nonzero"),
    of(test_parts, "test_views_of_copies"),
    of(test_parts, "test_unique_consecutive", -1),
    of(test_parts, "test_bincount", torch.int32),
]


@pytest.mark.parametrize(("test", "parameters"), PARTS)
def test_programs_in_parts(test, parameters, tmp_path, monkeypatch):
    # Kinds take turns.
    kind = ("cuda", "xpu", "rocm")[[p.id for p in PARTS].index(test.__name__[5:]) % 3]

    def packed(folder, module, *inputs, dynamic=None):
        return Packed(folder, kind, module, *inputs, dynamic=dynamic)

    monkeypatch.setattr(test_parts, "packed", packed)
    monkeypatch.setattr(test_package_control, "packed", packed)
    test(tmp_path, *parameters)


class Factors(torch.nn.Module):
    def forward(self, x):
        a = x @ x.mT + 4 * torch.eye(4)
        y = torch.fft.irfft(torch.fft.rfft2(x) * 2)
        return torch.linalg.cholesky(a), torch.linalg.inv(a) * 2, torch.linalg.solve(a, x), x.reshape(1, -1).repeat(1, 60).sort(stable=True)[0], y + 1


def test_functions_of_the_library_run_on_the_host(tmp_path):
    torch.manual_seed(4)
    program = Program(tmp_path, Factors(), [torch.randn(3, 4, 4)])
    program.check(Factors(), torch.randn(3, 4, 4), rtol=1e-4, atol=1e-4)
    # An error of the function names the operator.
    text = program.source.read_text()
    assert "// Build:" in text and "-ldl -o program -I FOLDER-OF-inrush.h" in text and "They run on the host." in text


def test_what_is_not_printed_is_named(tmp_path):
    class Transforms(torch.nn.Module):
        def forward(self, x):
            return torch.fft.fft(x)

    archive = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Transforms(), (torch.eye(4),)), archive)
    for language in ("cpp", "python"):
        done = gpu_driver.tool(tmp_path, "compile", archive, "--emit", language, "--target", "h100", "-o", tmp_path / "m.out")
        assert done.returncode == 2 and "complex inputs and outputs are not printed for a GPU" in done.stderr, done.stderr
    assert not (tmp_path / "m.out").exists()
