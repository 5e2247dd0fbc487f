"""Packages for GPUs end to end, without a GPU: compiled by the command line, run by `inrush_runtime` over a driver in C, kernels by
Triton's interpreter. See `gpu_driver.py`."""

from __future__ import annotations

import copy
import subprocess

import pytest
import test_package_control
import test_parts
import torch
from gpu_driver import RELEASE, REPOSITORY, Machine, compiled, tool
from torch.export import Dim
from torch.utils import _pytree as pytree

import inrush


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


def check(folder, cases):
    """Packages each case (a module or function, lists of inputs, and keywords of `compiled` or buffers) and compares all calls with
    eager: outputs, and what became of inputs. Gives what the driver saw."""
    packages, modules = [], []
    for k, (function, calls, keywords) in enumerate(cases):
        keywords = dict(keywords)
        options = {key: keywords.pop(key) for key in ("dynamic", "options") if key in keywords}
        module = function if isinstance(function, torch.nn.Module) else Of(function, len(calls[0]), **keywords)
        modules.append(module.eval())
        packages.append(compiled(folder, copy.deepcopy(module), copy.deepcopy(calls[0]), name=f"m{k}", **options))
    with Machine(folder, packages) as machine:
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


def test_complex_inputs_are_complex(tmp_path):
    package = compiled(tmp_path, Of(lambda _, z: z * 2, 1), (c(4),))
    with Machine(tmp_path) as machine:
        model = machine.load(package)
        with pytest.raises(inrush.InputError, match="input `a`: it is float32, the model was compiled for complex64"):
            model(torch.randn(4))
        with pytest.raises(inrush.InputError, match="sizes"):
            model(c(5))
        assert model(c(4))[0].dtype == torch.complex64
        assert "a: complex64[4]" in model.signature
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
    (test_package_control.test_cond_runs_one_of_two_branches, ()),
]


@pytest.mark.parametrize(("test", "parameters"), PARTS, ids=lambda v: getattr(v, "__name__", None))
def test_in_parts(test, parameters, tmp_path, on_gpu):
    test(tmp_path, *parameters)
