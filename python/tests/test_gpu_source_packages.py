"""Packages that hold the source of their kernels, without a GPU: built while they are loaded, kept as records, found by later processes.

The driver and the builds are those of `gpu_driver.py`: machine code is the kernel's source, which Triton's interpreter runs.
"""

from __future__ import annotations

import copy
import json
import pathlib
import shutil
import sys
import time

import pytest
import torch
from gpu_driver import Machine, Model, compiled, tool
from test_gpu_packages import binaries  # noqa: F401 (a fixture: what is run is there)
from torch.utils import _pytree as pytree

import inrush

NOWHERE = "/nonexistent/python"
pytestmark = pytest.mark.by_commit


class Chosen(torch.nn.Module):
    """A choice between branches whose kernels are others, a loop, and a weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x):
        y = torch.relu(x) * self.weight
        return torch.cond(y.sum() > 0, lambda y: torch.exp(-y * y), lambda y: torch.softmax(y, -1) - 1, (y,))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a cache of its own, where nothing may be built unless a test says so."""
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("INRUSH_PYTHON", NOWHERE)
    monkeypatch.delenv("INRUSH_BUILD_KERNELS", raising=False)
    return tmp_path


def packaged(folder, module=None, inputs=None, targets="h100", options=(), **keywords):
    """A package of source, made without Triton."""
    inputs, options = inputs or (torch.randn(4, 8),), ("--kernels", "source", *options)
    return compiled(folder, module or Chosen(), inputs, targets=targets, options=options, python=NOWHERE, **keywords)


def builder(folder):
    """The path of an interpreter that builds."""
    tool(folder, "doctor")
    return str(folder / "python")


def loaded(machine, package, **options):
    return Model(machine, machine.ask("load", str(package), options))


def workers(pid):
    """The processes that a process has started and not waited for."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def records(folder):
    return sorted((folder / "cache/triton/records").glob("*/*.kernel"))


def agree(model, module, *inputs):
    with torch.no_grad():
        for got, want in zip(model(*inputs), pytree.tree_leaves(module(*inputs)), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("kind", "target"), [("cuda", "h100"), ("rocm", "mi300x")])
def test_kernels_are_built_once_and_records_need_no_python(place, monkeypatch, kind, target):
    torch.manual_seed(0)
    module = Chosen()
    package = packaged(place, module, targets=target)
    shown = tool(place, "inspect", package).stdout
    assert "bytes of source, which Triton builds where the package is opened" in shown, shown
    positive, negative = torch.rand(4, 8) + 0.1, -torch.rand(4, 8)
    module.weight.data.abs_()
    package = packaged(place, module, targets=target)
    with Machine(place, kind=kind) as machine:
        # Nothing of the package runs unless that is allowed.
        monkeypatch.setenv("INRUSH_PYTHON", builder(place))
        with pytest.raises(inrush.UnsupportedError, match=r"has no record here.*which is not allowed.*INRUSH_BUILD_KERNELS=1"):
            loaded(machine, package)
    assert not (place / "cache/triton/sources").exists()
    with Machine(place, kind=kind) as machine:
        model = loaded(machine, package, build_kernels=True)
        for x in (positive, negative, positive):
            agree(model, module, x)
        # Workers end when all is built.
        for _ in range(200):
            if not (left := workers(machine.process.pid)):
                break
            time.sleep(0.1)
        assert not left, left
    made = records(place)
    assert len(made) >= 3, made
    # Another process finds them, without an interpreter and without being allowed to build. Weights are swapped.
    monkeypatch.setenv("INRUSH_PYTHON", NOWHERE)
    shutil.rmtree(place / "cache/triton/binaries")
    with Machine(place, kind=kind) as machine:
        model = loaded(machine, package)
        agree(model, module, positive)
        module.weight.data.mul_(2)
        model.update_weights({"weight": module.weight})
        model.swap_weights()
        for x in (positive, negative):
            agree(model, module, x)
    assert records(place) == made


@pytest.mark.parametrize(("kind", "target"), [("cuda", "h100"), ("rocm", "mi300x")])
def test_launches_are_those_of_a_package_built_ahead(place, monkeypatch, kind, target):
    """Triton itself builds; the driver knows none of these kernels and writes their launches down."""
    pytest.importorskip("triton")
    module, x = torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Softmax(-1)), torch.randn(32, 64)
    ahead = compiled(place, module, (x,), targets=target, name="ahead", python=sys.executable)
    source = packaged(place, module, (x,), targets=target)
    launched = []
    for package, python, options in (
        (ahead, NOWHERE, {}),
        (source, sys.executable, {"build_kernels": True}),
        (source, NOWHERE, {}),
    ):
        monkeypatch.setenv("INRUSH_PYTHON", python)
        with Machine(place, kind=kind) as machine:
            loaded(machine, package, **options)(x)
            launched.append([line for line in machine.seen() if line.startswith("launch")])
    assert launched[0]
    assert launched[0] == launched[1] == launched[2]
    assert records(place)


class Counting(torch.nn.Module):
    """Writes a buffer that it reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1024))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.seen += x.sum(0)
        self.calls += 1
        return torch.softmax(torch.nn.functional.gelu(x) * self.seen, -1), self.calls + 0


def choices(folder):
    """How the kernels of records were chosen."""
    lines = [path.read_bytes().split(b"\n", 3)[2] for path in records(folder)]
    return [json.loads(line)["choice"] for line in lines]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("kind", "target", "warp"), [("cuda", "h100", 32), ("rocm", "mi300x", 64)])
def test_the_first_launch_measures_candidates_and_keeps_the_fastest(place, monkeypatch, kind, target, warp, late):
    module = Counting()
    package = packaged(place, copy.deepcopy(module), (torch.randn(8, 1024),), targets=target, options=["--tune"])
    assert " 0 more candidates" not in tool(place, "inspect", package).stdout
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    # The rules choose 8 warps.
    monkeypatch.setenv("FAKE_FAST_THREADS", str(16 * warp))
    monkeypatch.setenv("FAKE_REFUSED_THREADS", str(4 * warp))

    def threads(machine):
        return [line.split(" threads=")[1].split()[0] for line in machine.seen() if line.startswith("launch")]

    calls = [torch.randn(8, 1024) for _ in range(3)]
    with Machine(place, kind=kind, late=late) as machine:
        model, seen = loaded(machine, package, build_kernels=True), []
        for x in calls:
            agree(model, module, x)
            seen.append(threads(machine))
        torch.testing.assert_close(model.weights()["seen"], module.seen, rtol=2e-4, atol=2e-5)
    # The first call measures, later ones do not.
    assert len(seen[0]) > 6 * len(seen[1])
    assert len(seen[1]) == len(seen[2]) == len(records(place))
    assert str(16 * warp) in seen[1], choices(place)
    told = choices(place)
    chosen = [c for c in told if "16 warps" in c.split(";")[0]]
    assert chosen, told
    assert "the rules' choice 1000.00 us" in chosen[0], told
    assert "16 warps, 1 stages" in chosen[0] and "500.00 us" in chosen[0], told
    assert "4 warps" in chosen[0] and "dropped: " in chosen[0], told
    # Other processes take what was chosen.
    monkeypatch.setenv("INRUSH_PYTHON", NOWHERE)
    with Machine(place, kind=kind) as machine:
        loaded(machine, package)(calls[0])
        assert threads(machine) == seen[1]


def test_candidates_that_fail_are_dropped(place, monkeypatch):
    module, x = Counting(), torch.randn(8, 1024)
    package = packaged(place, copy.deepcopy(module), (x,), options=["--tune"])
    refusing = place / "refusing"
    refusing.write_text(pathlib.Path(builder(place)).read_text().replace(" python ", " refuse16 "))
    refusing.chmod(0o755)
    monkeypatch.setenv("INRUSH_PYTHON", str(refusing))
    monkeypatch.setenv("FAKE_FAST_THREADS", str(16 * 32))
    with Machine(place) as machine:
        agree(loaded(machine, package, build_kernels=True), module, x)
    told = choices(place)
    assert not any("16 warps" in c.split(";")[0] for c in told), told
    assert any("16 warps" in c and "dropped: a kernel of" in c for c in told), told


def test_tuning_is_for_source(place):
    done = tool(place, "compile", place / "m.pt2", "-o", place / "m.inrush", "--target", "h100", "--tune")
    assert done.returncode == 2
    (place / "m.pt2").write_bytes(b"")
    done = tool(place, "compile", place / "m.pt2", "-o", place / "m.inrush", "--target", "h100", "--tune")
    assert done.returncode == 2 and "--kernels source" in done.stderr, done.stderr


def test_what_is_missing_is_named(place, monkeypatch):
    package = packaged(place)
    with Machine(place) as machine:
        with pytest.raises(inrush.MachineError) as e:
            loaded(machine, package, build_kernels=True)
        for word in ("Python package `triton`", NOWHERE, "has no record here", "relu"):
            assert word in str(e.value), e.value
    monkeypatch.setenv("INRUSH_BUILD_KERNELS", "perhaps")
    with Machine(place) as machine, pytest.raises(RuntimeError, match="neither 0 nor 1"):
        loaded(machine, package)
    monkeypatch.setenv("INRUSH_BUILD_KERNELS", "1")
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    with Machine(place) as machine:
        assert machine.ask("call", loaded(machine, package).number, (torch.randn(4, 8),))


def test_records_that_do_not_fit_are_passed_over_with_a_reason(place, monkeypatch):
    module = Chosen()
    package, x = packaged(place, module), torch.randn(4, 8)
    beside = place / "kept"
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    with Machine(place) as machine:
        agree(loaded(machine, package, build_kernels=True, records=str(beside)), module, x)
        kept = sorted(beside.glob("*/*.kernel"))
    assert kept
    shutil.rmtree(place / "cache/triton")
    monkeypatch.setenv("INRUSH_PYTHON", NOWHERE)
    with Machine(place) as machine:
        agree(loaded(machine, package, records=str(beside)), module, x)
        with pytest.raises(inrush.UnsupportedError, match="not allowed"):
            loaded(machine, package)
    for damage, word in (
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "its digest does not match"),
        (lambda b: b[:40], "it is cut"),
        (lambda b: b"", "it does not begin as one"),
    ):
        whole = {path: path.read_bytes() for path in kept}
        for path, contents in whole.items():
            path.write_bytes(damage(contents))
        with Machine(place) as machine, pytest.raises(inrush.UnsupportedError, match=word):
            loaded(machine, package, records=str(beside))
        for path, contents in whole.items():
            path.write_bytes(contents)
    # Another device of the same architecture.
    monkeypatch.setenv("FAKE_MULTIPROCESSORS", "114")
    with Machine(place) as machine, pytest.raises(inrush.UnsupportedError, match=r"it is for the device cuda 90 with"):
        loaded(machine, package, records=str(beside))


def test_a_folder_that_cannot_be_written_costs_the_record_alone(place, monkeypatch):
    module = Chosen()
    package, x = packaged(place, module), torch.randn(4, 8)
    blocked = place / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    with Machine(place) as machine:
        agree(loaded(machine, package, build_kernels=True, records=str(blocked)), module, x)
    assert records(place)


def test_a_build_that_fails_names_kernel_and_operators(place, monkeypatch):
    package = packaged(place, torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(8)))
    refusing = place / "refusing"
    text = pathlib.Path(builder(place)).read_text().replace(" python ", " refuse ")
    refusing.write_text(text)
    refusing.chmod(0o755)
    monkeypatch.setenv("INRUSH_PYTHON", str(refusing))
    with Machine(place) as machine:
        model = loaded(machine, package, build_kernels=True)
        for _ in range(2):
            with pytest.raises(inrush.InternalError) as e:
                model(torch.randn(4, 8))
            for word in ("Triton refuses the kernel `", "no such device", "gelu", "@triton.jit"):
                assert word in str(e.value), e.value


def test_processes_that_load_at_once_agree(place, monkeypatch):
    module = Chosen()
    package, x = packaged(place, module), torch.randn(4, 8)
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    with Machine(place) as one, Machine(place) as two:
        # Loading returns while workers build.
        models = [loaded(m, package, build_kernels=True) for m in (one, two, one, two)]
        for model in models:
            agree(model, module, x)
    assert len({p.parent for p in records(place)}) == len(records(place))


def test_aot_compile_packages_source(place, monkeypatch):
    module, x = Chosen().eval(), torch.randn(4, 8)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
    package = place / "a.inrush"
    with pytest.raises(inrush.InputError, match="'code' or as 'source'"):
        inrush.aot_compile(program, package, targets=["h100"], kernels="text")
    with pytest.raises(inrush.InputError, match="for kernels='source'"):
        inrush.aot_compile(program, package, targets=["h100"], tune=True)
    inrush.aot_compile(program, package, targets=["cpu", "h100"], kernels="source", tune=True)
    assert " 0 more candidates" not in tool(place, "inspect", package).stdout
    monkeypatch.setenv("INRUSH_PYTHON", builder(place))
    monkeypatch.setenv("INRUSH_BUILD_KERNELS", "1")
    with Machine(place) as machine:
        agree(machine.load(package), module, x)
    agree(lambda x: (inrush.load(package)(x),), module, x)
