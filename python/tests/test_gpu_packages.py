"""Packages for GPUs end to end, without a GPU: compiled by the command line, run by `inrush_runtime` over a driver in C, kernels by
Triton's interpreter. See `gpu_driver.py`."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import zipfile

import pytest
import test_package_control
import test_parts
import torch
from gpu_driver import KINDS, RELEASE, REPOSITORY, Machine, compiled, tool
from torch.export import Dim
from torch.utils import _pytree as pytree

import inrush

pytestmark = pytest.mark.by_commit


@pytest.fixture(scope="module", autouse=True)
def binaries():
    """The command line, and the module that runs packages. The tests in Rust have built the first."""
    for name, what in (("inrush", ["--bin", "inrush"]), ("libinrush_runtime_native.so", ["-p", "inrush-runtime-python", "--lib"])):
        if not (RELEASE / name).exists():
            subprocess.run(["cargo", "build", "--release", "--quiet", *what], cwd=REPOSITORY, check=True, timeout=1800)


class Of(torch.nn.Module):
    """A function as a module: it gets the module, then the inputs."""

    def __init__(self, function, count, **buffers):
        super().__init__()
        self.function = function
        # Exported programs have a parameter for each input.
        self.forward = {1: self.one, 2: self.two, 3: self.three}[count]
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def one(self, a):
        return self.function(self, a)

    def two(self, a, b):
        return self.function(self, a, b)

    def three(self, a, b, c):
        return self.function(self, a, b, c)


def check(folder, cases, kind="cuda"):
    """Packages each case (a module or function, lists of inputs, and keywords of `compiled` or buffers) and compares all calls with
    eager: outputs, and what became of inputs. `kind` is that of the GPU. Gives what the driver saw."""
    packages, modules = [], []
    for k, (function, calls, keywords) in enumerate(cases):
        keywords = dict(keywords)
        options = {key: keywords.pop(key) for key in ("dynamic", "options") if key in keywords}
        module = function if isinstance(function, torch.nn.Module) else Of(function, len(calls[0]), **keywords)
        modules.append(module.eval())
        packages.append(compiled(folder, copy.deepcopy(module), copy.deepcopy(calls[0]), name=f"m{k}", targets=KINDS[kind][1], **options))
    with Machine(folder, packages, kind=kind) as machine:
        for k, ((_, calls, _), module, model) in enumerate(zip(cases, modules, machine.models, strict=True)):
            for inputs in calls:
                theirs, ours = copy.deepcopy(inputs), copy.deepcopy(inputs)
                with torch.no_grad():
                    wanted, got = pytree.tree_leaves(module(*theirs)), model(*ours)
                for want, have in zip((*wanted, *theirs), (*got, *ours), strict=True):
                    message = lambda m, k=k: f"case {k}: {m}"  # noqa: E731
                    torch.testing.assert_close(have, want, rtol=2e-4, atol=2e-5, equal_nan=True, msg=message)
        return machine.seen()


def c(*sizes, dtype=torch.complex64):
    return torch.randn(sizes, dtype=dtype)


def arithmetic(_, z, w):
    quotients = z / w, z * 2, z.reciprocal(), w.exp().log(), z.abs(), z.angle()
    return (z + w.conj(), z - 1j, z * w, *quotients, z.sum(0), z[:, 1:], torch.view_as_real(z @ w.mT))


def rotated(module, x):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * module.freqs[: x.shape[1]].view(1, -1, 1, 4)).flatten(3), pairs * 2


def written(module, z):
    z.mul_(2j)
    module.seen += z.sum(0)
    return module.seen + 1


def test_complex_numbers(tmp_path):
    torch.manual_seed(0)
    double = torch.complex128
    cases = [
        (arithmetic, [(c(4, 3), c(4, 3)), (c(3, 4).T, c(4, 3))], {}),
        (arithmetic, [(c(4, 3, dtype=double), c(4, 3, dtype=double))], {}),
        (rotated, [(torch.randn(2, n, 3, 8),) for n in (5, 2, 9)], {"freqs": c(9, 4), "dynamic": ({1: Dim("n", min=2, max=9)},)}),
        (written, [(c(4, 3),), (c(4, 3),)], {"seen": c(3)}),
    ]
    check(tmp_path, cases)


def viewed_around(_, x):
    """A view of an input that an earlier step makes and a later one follows."""
    view = x.t()[1:]
    rows = torch.nonzero(x[:, 0] > 0).squeeze(1)
    return view, x[rows] * 2, view + x.sum()


def written_around(_, x):
    """Sizes from data between a write to an input and its next use."""
    x.mul_(2)
    rows = torch.nonzero(x[:, 0] > 0).squeeze(1)
    return x[rows] + x.sum()


def copied(_, x):
    """Copies with other strides than what they copy, and views of them: all are outputs."""
    copy = x.t().contiguous()
    return x[::2].contiguous(), copy, copy.view(-1)[2:], copy.view(6, 5)[1:].t(), x.t().reshape(-1)[3:]


def test_copies_have_strides_of_their_own(tmp_path):
    torch.manual_seed(0)
    check(tmp_path, [(copied, [(torch.randn(6, 5),), (torch.randn(5, 6).t(),)], {})])


def test_inputs_are_the_same_before_and_after_sizes_from_data(tmp_path):
    torch.manual_seed(0)
    calls = [(torch.randn(6, 5),), (torch.randn(6, 5).abs(),), (-torch.randn(5, 6).abs().T,)]
    check(tmp_path, [(viewed_around, calls, {}), (written_around, calls, {})])


def test_complex_inputs_are_complex(tmp_path):
    package = compiled(tmp_path, Of(lambda _, z: z * 2, 1), (c(4),))
    with Machine(tmp_path) as machine:
        model = machine.load(package)
        with pytest.raises(inrush.InputError, match="input `a`: it is float32, the model was compiled for complex64"):
            model(torch.randn(4))
        with pytest.raises(inrush.InputError, match="sizes"):
            model(c(5))
        assert model(c(4))[0].dtype == torch.complex64
        assert "a: complex64[4]" in model.signature.text
    shown = tool(tmp_path, "inspect", package, "--stage", "summary").stdout
    assert "target cuda:h100" in shown, shown


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A process that loads packages one after the other."""
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
def on_gpu(machine, monkeypatch):
    """Has the tests of programs in parts on CPUs compile for a GPU."""

    def packed(folder, module, *inputs, dynamic=None):
        return machine.load(compiled(folder, module, inputs, dynamic=dynamic, options=["--no-libraries"]))

    monkeypatch.setattr(test_parts, "packed", packed)
    monkeypatch.setattr(test_package_control, "packed", packed)


PARTS = [
    *((getattr(test_package_control, name), ()) for name in (
        "test_cond_runs_one_of_two_branches",
        "test_cond_on_a_size",
        "test_cond_with_outputs_of_other_sizes",
        "test_nested_cond",
        "test_data_decide_sizes_within_a_branch",
        "test_cond_gives_new_memory",
        "test_while_loop_of_no_turn_one_and_many",
        "test_while_loop_that_data_end",
        "test_cond_within_a_loop",
        "test_a_mixture_of_experts",
        "test_non_maximum_suppression",
    )),
    (test_package_control.test_scan_over_time, ()),
    *((test_package_control.test_scan_of_several_values, (reverse,)) for reverse in (False, True)),
    (test_package_control.test_map, (torch.float32,)),
    *((test_package_control.test_cond_of_dtypes_and_dynamic_sizes, (d,)) for d in (torch.bfloat16, torch.int64)),
    *((getattr(test_parts, name), ()) for name in (
        "test_kernels_before_and_after_nonzero",
        "test_state_is_written",
        "test_views_of_copies",
        "test_inputs_are_written",
        "test_the_signature_names_sizes_that_depend_on_data",
        "test_integers_are_read_from_data",
        "test_masks_of_several_dimensions",
        "test_bools_are_read_from_data",
        "test_repeats_of_a_known_number",
        "test_writes_by_masks",
    )),
    *((test_parts.test_nonzero_of_any_rank, (n,)) for n in ((), (0, 4), (2, 3, 4))),
    (test_parts.test_unique_consecutive, (-1,)),
    (test_parts.test_bincount, (torch.int32,)),
]  # fmt: skip


@pytest.mark.parametrize(("test", "parameters"), PARTS, ids=lambda v: getattr(v, "__name__", None))
def test_in_parts(test, parameters, tmp_path, on_gpu):
    test(tmp_path, *parameters)


L = torch.linalg


def spectrum(_, x):
    y = torch.fft.irfft(torch.fft.rfft2(x) * 2)
    return y + 1, torch.stft(x.reshape(3, 16), 8, 4, window=torch.hann_window(8), return_complex=True)


def factors(_, x):
    a = x @ x.mT + 4 * torch.eye(4)
    return L.cholesky(a), L.inv(a) * 2, L.solve(a, x), L.det(a), L.eigvalsh(a), L.svdvals(a)


def ordered(_, x, ids):
    values, at = x.sort(-1)
    return values * 2, at + 1, x.topk(50).values, ids.argsort(dim=0, stable=True)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = torch.nn.LSTM(4, 6, 2, batch_first=True), torch.nn.Linear(6, 3)

    def forward(self, x):
        y, (h, _) = self.layers(x)
        return self.head(y).relu(), h


def test_functions_of_the_library_run_on_the_host(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 4)
    cases = [
        (spectrum, [(x,)], {}),
        (factors, [(x,), (torch.randn(3, 4, 4),)], {}),
        (ordered, [(torch.randn(3, 5000), torch.randint(0, 50, (700, 3)))], {}),
        (Recurrent(), [(torch.randn(2, 5, 4),) for _ in range(2)], {}),
    ]
    log = check(tmp_path, cases)
    # The layers' outputs are multiplied on the device.
    assert any("gemm" in line for line in log), log
    shown = tool(tmp_path, "inspect", tmp_path / "m3.inrush", "--stage", "summary").stdout
    for words in ("runs on the host: rnn.lstm", "= rnn.lstm(", "on the host, node `"):
        assert words in shown, shown
    page = tmp_path / "page.html"
    assert tool(tmp_path, "explain", tmp_path / "m1.inrush", "-o", page).returncode == 0
    assert "linalg.cholesky, on the host" in page.read_text()


class Classifier(torch.nn.Module):
    """Convolutions, attention and linear layers, with a normalisation of each kind."""

    def __init__(self):
        super().__init__()
        self.filters = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm, self.rows = torch.nn.BatchNorm2d(8), torch.nn.LayerNorm(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 5))

    def forward(self, x):
        y = self.rows(self.norm(self.filters(x)).relu().flatten(2).mT)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.head(y.mean(1)).softmax(-1)


def halves(_, x):
    return (x.bfloat16() @ x.mT.bfloat16()).float().sum(0), x.half().cumsum(0), (x > 0).sum()


def branches(_, x):
    return torch.cond(x.sum() > 0, lambda x: (x @ x, x.amax(1)), lambda x: (x * 2, x.sum(1)), (x,))


def reordered(_, x):
    return x.sort(-1).values[:, :3], torch.nonzero(x[0] > 0), x.t().contiguous().index_select(0, torch.tensor([2, 0]))


def test_amd_gpus_run_models(tmp_path):
    torch.manual_seed(0)
    batch = {0: Dim("batch", max=64)}
    square = torch.randn(4, 4)
    cases = [
        (Classifier(), [(torch.randn(n, 3, 6, 6),) for n in (2, 2, 2, 2, 5)], {"dynamic": (batch,)}),
        (halves, [(torch.randn(16, 16),)], {}),
        (branches, [(square.abs(),), (-square.abs(),)], {}),
        (reordered, [(torch.randn(5, 7),)], {}),
        (arithmetic, [(c(4, 8), c(4, 8))], {}),
    ]
    log = check(tmp_path, cases, kind="rocm")
    assert not any("gemm" in line for line in log), "there is no library for products"
    launches = [line for line in log if "launch " in line]
    threads = {int(line.split("threads=")[1].split()[0]) for line in launches}
    assert launches and threads and all(n % 64 == 0 and n <= 1024 for n in threads), threads
    assert any(line.startswith("graph launch") for line in log), "launches in a row become one"
    # What the package names is what the command runs.
    shown = tool(tmp_path, "inspect", tmp_path / "m0.inrush", "--stage", "summary").stdout
    assert shown.startswith("target rocm:mi300x (gfx942): ") and " 0 products by a library" in shown and "no PTX" in shown, shown[:300]
    done = tool(tmp_path, "run", tmp_path / "m0.inrush", "--device", "cuda:0")
    assert done.returncode == 2 and "only rocm:mi300x" in done.stderr, done.stderr
    found = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = tool(tmp_path, "run", tmp_path / "m1.pt2", "--device", "rocm:0", "--seconds", "0", env=found)
    assert done.returncode == 0 and "on rocm:0, gfx942" in done.stdout and "cuBLAS" not in done.stdout + done.stderr, done
    doctor = tool(tmp_path, "doctor", env=found).stdout
    assert "HIP 6.3, devices of architecture gfx942, gfx942" in doctor and "interpreted in " in doctor, doctor


class Kept(torch.nn.Module):
    """A counter that calls write, a number of the host's, and a choice of the data's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.linear = torch.nn.Linear(5, 3)

    def forward(self, x, n):
        y = self.linear(x)
        self.count += y.sum(0)
        chosen = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y * 2, (y,))
        return chosen * n + self.count, x.argsort(1)


def test_intel_gpus_run_models(tmp_path):
    torch.manual_seed(0)
    batch = {0: Dim("batch", max=64)}
    square = torch.randn(4, 4)
    cases = [
        (Classifier(), [(torch.randn(n, 3, 6, 6),) for n in (2, 2, 2, 2, 5)], {"dynamic": (batch,)}),
        (halves, [(torch.randn(16, 16),)], {}),
        (branches, [(square.abs(),), (-square.abs(),)], {}),
        (reordered, [(torch.randn(5, 7),)], {}),
        (arithmetic, [(c(4, 8), c(4, 8))], {}),
        (viewed_around, [(torch.randn(6, 5),), (-torch.randn(5, 6).abs().T,)], {}),
        (Kept(), [(torch.randn(4, 5), torch.tensor(float(k))) for k in range(4)], {}),
    ]
    log = check(tmp_path, cases, kind="xpu")
    launches = [line for line in log if "launch " in line]
    threads = {int(line.split("threads=")[1].split()[0]) for line in launches}
    assert launches and threads and all(n % 32 == 0 and n <= 1024 for n in threads), threads
    assert not any(line.startswith(("graph", "gemm")) for line in log), "launches are issued one by one, and no library multiplies"
    shown = tool(tmp_path, "inspect", tmp_path / "m0.inrush", "--stage", "summary").stdout
    assert shown.startswith("target xpu:max1550 (pvc): ") and " 0 products by a library" in shown and "no PTX" in shown, shown[:300]
    found = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = tool(tmp_path, "run", tmp_path / "m1.pt2", "--device", "xpu:0", "--seconds", "0", env=found)
    assert done.returncode == 0 and "on xpu:0, pvc" in done.stdout, done
    done = tool(tmp_path, "run", tmp_path / "m1.inrush", "--device", "xpu:0", "--cuda-graphs", env=found)
    assert done.returncode == 2 and "Level Zero 1.9 captures no calls" in done.stderr, done
    doctor = tool(tmp_path, "doctor", env=found).stdout
    assert "Level Zero 1.9, devices of architecture pvc, pvc" in doctor, doctor
    line = next(line for line in doctor.splitlines() if " xpu " in line)
    assert "Triton's back end `intel` is missing; install `triton-xpu`" in line and "SYCL_UR_USE_LEVEL_ZERO_V2=1" in line, line


def test_intel_weights_are_replaced_while_calls_run(tmp_path):
    torch.manual_seed(0)
    module, x = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 2)).eval(), torch.randn(3, 5)
    package = compiled(tmp_path, module, (x,), targets="max1550")
    other = copy.deepcopy(module)
    for p in other.parameters():
        p.data.mul_(2)
    with Machine(tmp_path, [package], kind="xpu") as machine, torch.no_grad():
        model = machine.models[0]
        for current, new in ((module, other), (other, module)):
            torch.testing.assert_close(model(x)[0], current(x))
            model.update_weights(dict(new.state_dict()))
            torch.testing.assert_close(model(x)[0], current(x))
            model.swap_weights()
            torch.testing.assert_close(model(x)[0], new(x))
            model.update_weights(dict(current.state_dict()))
        kept = model.weights()
    assert kept and all(torch.equal(v, module.state_dict()[k]) for k, v in kept.items())


def test_a_triton_without_the_back_end_says_what_has_it(tmp_path):
    pytest.importorskip("triton")
    with pytest.raises(RuntimeError, match="no back end `intel` for target `xpu`.*the package `triton-xpu`"):
        compiled(tmp_path, Of(lambda _, x: x.sin() + 1, 1), (torch.randn(4),), targets="b580", python=sys.executable)


def number_after(code, key):
    """The number that follows a key in the notes of machine code, which are in MessagePack."""
    at = code.index(key) + len(key)
    length = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(code[at], 0)
    return int.from_bytes(code[at + 1 : at + 1 + length], "big") if length else code[at]


def test_amd_code_of_triton_gets_the_arguments_that_it_reads(tmp_path):
    """Each launch passes as many bytes as the kernel's code says that it reads, and starts the threads that it was built for."""
    pytest.importorskip("triton")
    batch = {0: Dim("batch", max=64)}
    x = torch.randn(2, 3, 6, 6)
    package = compiled(tmp_path, Classifier().eval(), (x,), dynamic=(batch,), targets="mi300x", python=sys.executable)
    with zipfile.ZipFile(package) as archive:
        codes = [archive.read(name) for name in archive.namelist() if name.startswith("targets/0/kernel/")]
    known = {}
    for code in codes:
        symbol = re.search(rb"\.symbol(?:[\xa0-\xbf]|\xd9.)(\w+)\.kd", code, re.DOTALL)[1].decode()
        assert number_after(code, b".wavefront_size") == 64
        known[symbol] = number_after(code, b".kernarg_segment_size"), number_after(code, b".max_flat_workgroup_size")
    with Machine(tmp_path, [package], kind="rocm") as machine:
        for _ in range(4):
            machine.models[0](x)
        launches = [re.search(r"launch (\S+) .* threads=(\d+) .* args=(\d+)", line) for line in machine.seen() if "launch " in line]
    assert {m[1] for m in launches} == set(known), (launches, known)
    for m in launches:
        assert (int(m[3]), int(m[2])) == known[m[1]], m[0]


def test_control_flow_is_shown_and_not_captured(tmp_path):
    choose = Of(lambda _, x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x[torch.nonzero(x[:, 0]).squeeze(1)].sum(0, keepdim=True) + x, (x,)), 1)
    package = compiled(tmp_path, choose, (torch.ones(4, 4),))
    shown = tool(tmp_path, "inspect", package, "--stage", "summary").stdout
    for words in ("runs on the host: nonzero", "  then:", "  otherwise:", "mm(", "on the host, node `nonzero`", "1 products by a library"):
        assert words in shown, shown
    with Machine(tmp_path, [package]) as machine:
        for x in (torch.ones(4, 4), -torch.ones(4, 4)):
            torch.testing.assert_close(machine.models[0](x)[0], choose(x))
        assert any("gemm" in line for line in machine.seen())
        with pytest.raises(inrush.UnsupportedError, match="control flow, which the host decides"):
            machine.ask("load", str(package), {"cuda_graphs": True})


def test_what_nothing_runs_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="tensor_split"):
        compiled(tmp_path, Of(lambda _, x, n: torch.tensor_split(x, n), 2), (torch.ones(4), torch.tensor([1, 2])))


def test_copies_are_memory_of_their_own(tmp_path):
    module = Of(lambda m, x: (x.clone(), x[1:].clone(), m.kept[1:].clone(), x[2:]), 1, kept=torch.arange(12.0).view(3, 4))
    package = compiled(tmp_path, module, (torch.randn(5, 4),))
    shown = tool(tmp_path, "inspect", package).stdout
    # The slice that is returned as it is shows the input's memory, as in eager.
    assert shown.count("= view(") == 1, shown
