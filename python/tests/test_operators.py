"""Operators of the user's in packages: functions of torch.library, of Python, of a library in C; on CPUs, and on a GPU that is not there."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from gpu_driver import REPOSITORY, Machine, compiled, tool
from runtime_packages import run
from torch.export import Dim

import inrush

EXAMPLE = REPOSITORY / "examples" / "operators"
SCHEMAS = (
    'example::scale(Tensor x, float by=2.0, str rounding="none", int[]? dims=None) -> Tensor',
    "example::count(Tensor(a!) seen, Tensor x, int by=1) -> ()",
    "example::above(Tensor x, float limit) -> Tensor",
    "example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[])",
)


@pytest.fixture(scope="module")
def example():
    """The example's module, whose operators torch.library gets once."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import model

        return model
    finally:
        sys.path.remove(str(EXAMPLE))


@torch.library.custom_op("inrush_tests::shift", mutates_args=())
def shift(x: torch.Tensor, by: torch.Tensor | None, sizes: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    assert x.shape == tuple(sizes)
    return (x.to(dtype) + (0 if by is None else by)).contiguous()


@shift.register_fake
def _(x, by, sizes, dtype=torch.float32):
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("inrush_tests::fill", mutates_args=("to",))
def fill(to: torch.Tensor, at: int, value: torch.Tensor) -> None:
    to[at] = value


@torch.library.custom_op("inrush_tests::pick", mutates_args=())
def pick(x: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    at = keep.nonzero()[:, 0]
    return x[at].t().contiguous().t(), at


@pick.register_fake
def _(x, keep):
    n = torch.library.get_ctx().new_dynamic_size()
    return torch.empty_strided((n, x.shape[1]), (1, n), dtype=x.dtype), x.new_empty(n, dtype=torch.int64)


def packaged(folder, module, inputs, dynamic=None):
    path = folder / "m.inrush"
    with torch.no_grad():
        inrush.aot_compile(torch.export.export(module, inputs, dynamic_shapes=dynamic), path)
    return inrush.load(path)


def same(ours, theirs, inputs):
    with torch.no_grad():
        wanted = theirs(*copy.deepcopy(inputs))
    got = ours(*copy.deepcopy(inputs))
    torch.testing.assert_close(got, wanted)
    for a, b in zip(got, wanted, strict=True):
        if a.numel() > 1:
            assert a.stride() == b.stride()
    return got


def test_operators_of_torch_are_called(example, tmp_path):
    eager = example.Model().eval()
    ours = packaged(tmp_path, copy.deepcopy(eager), (torch.randn(4, 6),), ({0: Dim("batch", min=2, max=64)},))
    for batch in (4, 2, 31):
        same(ours, eager, (torch.randn(batch, 6),))


class Arguments(torch.nn.Module):
    """Views, tensors that are left out, symbolic lists, dtypes, writes to parts of buffers, sizes from data in two results."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, x, flag):
        a = shift(x.t()[1:], None, [x.shape[1] - 1, x.shape[0]])
        b = shift(x, x[0], [x.shape[0], x.shape[1]], torch.float64)
        fill(self.cache[1:], 1, x[0])
        c = x * 2
        fill(c, 0, x[1])
        picked, at = pick(c, flag)
        return a + 1, b * 2, c, self.cache * 1, picked + 1, picked, at


def test_arguments_of_every_kind(tmp_path):
    eager = Arguments().eval()
    x, flag = torch.randn(5, 4), torch.tensor([True, False, True, True, False])
    ours = packaged(tmp_path, copy.deepcopy(eager), (x, flag), ({0: Dim("n", min=2, max=9)}, {0: Dim("n", min=2, max=9)}))
    for n in (5, 3, 9):
        given = torch.randn(n, 4), torch.rand(n) < 0.5
        with torch.no_grad():
            wanted = eager(*given)
        torch.testing.assert_close(ours(*given), wanted)
    given = torch.randn(4, 4), torch.zeros(4, dtype=torch.bool)
    assert ours(*given)[6].shape == (0,)


class Within(torch.nn.Module):
    def forward(self, x):
        return (torch.cond(x.sum() > 0, lambda x: shift(x, None, [3, 4]) * 2, lambda x: x - 1, (x,)),)


def test_operators_within_control_flow(tmp_path):
    ours = packaged(tmp_path, Within(), (torch.ones(3, 4),))
    for sign in (1, -1):
        same(ours, Within(), (sign * torch.ones(3, 4),))


def test_functions_of_python(tmp_path):
    with pytest.raises(inrush.InputError, match="schema"):
        inrush.register_operator("inrush_tests::shift(Thing x) -> Tensor", abs)
    with pytest.raises(inrush.InputError, match="`cpu` or `cuda`, .*, not `tpu`"):
        inrush.register_operator("a::b(Tensor x) -> Tensor", abs, device="tpu")
    path = tmp_path / "m.inrush"
    inrush.aot_compile(torch.export.export(Within(), (torch.ones(3, 4),)), path)
    script = f"""
import inrush, pytest, sys, torch
with pytest.raises(inrush.InputError, match="did not register for `cpu`:\\n  inrush_tests::shift.*\\n.* in forward"):
    inrush.load({str(path)!r})
seen = []
def shift(x, by, sizes, dtype):
    seen.append((by, sizes, dtype))
    return x + 10
schema = "inrush_tests::shift(Tensor x, Tensor? by, SymInt[] sizes, ScalarType dtype=None) -> Tensor"
inrush.register_operator(schema, shift)
model = inrush.load({str(path)!r})
x = torch.ones(3, 4)
assert torch.equal(model(x)[0], (x + 10) * 2) and seen == [(None, [3, 4], torch.float32)], seen
for wrong in (lambda *_: None, lambda x, *_: x.double(), lambda x, *_: x[:2], lambda *_: 1 / 0):
    inrush.register_operator(schema, wrong)
    with pytest.raises(Exception, match="gives 0 tensors|is torch.float64|of sizes .2, 4.|ZeroDivisionError") as e:
        inrush.load({str(path)!r})(x)
    assert "in forward" in str(e.value), e.value
"""
    run(script, env={"PYTHONPATH": ":".join(sys.path)})


def test_functions_on_numpy_arrays(example, tmp_path):
    path = tmp_path / "m.inrush"
    inrush.aot_compile(example.exported(), path)
    x = torch.randn(3, 6)
    wanted = example.exported().module()(x)
    script = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("inrush_runtime._native", sys.argv[1])
runtime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime)
import numpy as np

def scale(x, by, rounding, dims):
    assert rounding == "none" and dims == [0, 1]
    out = x.copy()
    out[dims] *= by
    return out

def count(seen, x, by):
    seen += by * (x.sum(1) > 0).sum()

def blend(items, weights, flip):
    parts = [i * np.float32(w) for i, w in zip(items, weights)]
    return sum(parts), parts[::-1] if flip else parts

for schema, f in zip(json.loads(sys.argv[3]), (scale, count, lambda x, limit: x[x > limit], blend)):
    runtime.register_operator(schema, f)
model = runtime.load(sys.argv[2], flat=True)
x = np.array(json.loads(sys.argv[4]), dtype=np.float32)
print(json.dumps([np.asarray(y).tolist() for y in model(x)[:4]]))
"""
    import json

    library = REPOSITORY / "target" / "release" / "libinrush_runtime_native.so"
    if not library.exists():
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "inrush-runtime-python", "--lib"], cwd=REPOSITORY, check=True, timeout=1800)
    got = json.loads(run(script, library, path, json.dumps(SCHEMAS), json.dumps(x.tolist())))
    for have, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(have, dtype=want.dtype), want, rtol=1e-4, atol=1e-5)


def built(folder, *flags):
    """The example's library in C."""
    path = folder / "liboperators.so"
    include = REPOSITORY / "crates" / "inrush-capi" / "include"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-I", include, "-o", path, EXAMPLE / "operators.c", "-lm", *flags]
    subprocess.run(command, check=True, timeout=120)
    return path


def test_the_command_line_takes_a_library(tmp_path):
    library, package = built(tmp_path), tmp_path / "m.inrush"
    given = "--inputs", EXAMPLE / "model.inputs.safetensors", "--expect", EXAMPLE / "model.expect.safetensors"
    done = tool(tmp_path, "compile", EXAMPLE / "model.pt2", "-o", package)
    assert done.returncode == 2, done
    for words in ("example.scale.default (1 call)", "model.py:", "--operator 'example::above(Tensor x, float limit) -> Tensor'"):
        assert words in done.stderr, done.stderr
    done = tool(tmp_path, "compile", EXAMPLE / "model.pt2", "-o", package, *(w for s in SCHEMAS for w in ("--operator", s)))
    assert done.returncode == 0 and f"the host registers {SCHEMAS[0]}" in done.stdout, done
    done = tool(tmp_path, "run", package, *given)
    assert done.returncode == 2 and "did not register for `cpu`" in done.stderr, done
    for model in (package, EXAMPLE / "model.pt2"):
        done = tool(tmp_path, "run", model, "--operators", library, *given)
        assert done.returncode == 0 and "4 calls of custom operators" in done.stdout and ": ok" in done.stdout, done
    shown = tool(tmp_path, "inspect", package)
    assert f"the host registers {SCHEMAS[1]}" in shown.stdout and "example::count, node" in shown.stdout, shown
    done = tool(tmp_path, "run", package, "--operators", tmp_path / "nothing.so")
    assert done.returncode == 2 and "nothing.so" in done.stderr, done
    done = tool(tmp_path, "compile", EXAMPLE / "model.pt2", "-o", package, "--operator", "scale(Tensor x) -> Tensor")
    assert done.returncode == 2 and "no namespace" in done.stderr, done


def test_not_in_packages_of_pytorch(example, tmp_path):
    with pytest.raises(inrush.UnsupportedError, match="custom operators in a package that PyTorch loads by itself: example::above"):
        inrush.aot_compile(example.exported(), tmp_path / "m.pt2", format="aoti")


def test_on_a_gpu_that_is_not_there(example, tmp_path, monkeypatch):
    eager = example.Model().eval()
    options = tuple(w for s in SCHEMAS for w in ("--operator", s))
    package = compiled(tmp_path, copy.deepcopy(eager), (torch.randn(4, 6),), ({0: Dim("batch", min=2, max=64)},), options=options)
    with Machine(tmp_path) as machine, pytest.raises(RuntimeError, match="did not register for `cuda`:\n  example::scale"):
        machine.load(package)
    library = built(tmp_path, """-DDEVICE="cuda\"""", "-L", tmp_path, "-l:libcuda.so.1")
    monkeypatch.setenv("FAKE_OPERATORS", str(library))
    with Machine(tmp_path, [package]) as machine:
        model = machine.models[0]
        for batch in (4, 2, 31):
            x = torch.randn(batch, 6)
            with torch.no_grad():
                wanted = eager(x)
            torch.testing.assert_close(model(x)[:4], wanted, rtol=2e-4, atol=2e-5)
        with pytest.raises(inrush.UnsupportedError, match="CUDA graph|captur|which the host"):
            machine.ask("load", str(package), {"cuda_graphs": True})
    shown = tool(tmp_path, "inspect", package).stdout
    assert "the host registers example::scale" in shown and "= example::count(" in shown, shown


WORDS = torch.library.Library("inrush_words", "DEF")
WORDS.define("""words(Tensor x, str text="a, -> \\n'\\"", *, float by=2.0, bool[] flags=[True, False]) -> Tensor""")


def words(x, text="a, -> \n'\"", *, by=2.0, flags=(True, False)):
    assert text == "a, -> \n'\"" and list(flags) == [True, False], (text, flags)
    return x * by


WORDS.impl("words", words, "CPU")
WORDS.impl("words", lambda x, text="", *, by=2.0, flags=(): torch.empty_like(x), "Meta")
words = torch.ops.inrush_words.words


@torch.library.custom_op("inrush_tests::plus", mutates_args=("x",))
def plus(x: torch.Tensor, y: torch.Tensor, more: list[torch.Tensor]) -> None:
    x.add_(y)
    x.add_(sum(more))


@torch.library.custom_op("inrush_tests::wide", mutates_args=())
def wide(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0, keepdim=True).clone().expand(x.shape)


@wide.register_fake
def _(x):
    return torch.empty_strided(x.shape, (0, 1), dtype=x.dtype)




class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return (self.function(x),)


def test_defaults_and_keywords(tmp_path):
    for function in (lambda x: words(x + 1), lambda x: words(x, by=3.0) * 2):
        same(packaged(tmp_path, Of(function), (torch.randn(3, 4),)), Of(function), (torch.randn(3, 4),))


def twice(x):
    y = x * 2
    plus(y, y, [])
    return y


def viewed(x):
    y = x * 2
    plus(y, x, [y.view(-1).view(3, 4)])
    return y


@pytest.mark.parametrize("function", [twice, viewed])
def test_memory_that_is_written_and_read_is_refused(function, tmp_path):
    with pytest.raises(inrush.UnsupportedError, match="takes another one of the same memory.*\n.*in forward|takes another one of the same memory"):
        packaged(tmp_path, Of(function), (torch.randn(3, 4),))


def test_results_in_one_place_are_refused(tmp_path):
    with pytest.raises(inrush.UnsupportedError, match="several elements in one place"):
        packaged(tmp_path, Of(wide), (torch.randn(3, 4),))


def test_an_operator_that_changed_is_noticed(tmp_path):
    script = f"""
import sys, torch, inrush
from torch.library import Library
version, path = sys.argv[1:]
schema = "(Tensor x, float a) -> Tensor" if version == "1" else "(Tensor(a!) x, float a) -> Tensor"
library = Library("inrush_changed", "DEF")
library.define("bump" + schema)
library.impl("bump", lambda x, a: x + a, "CompositeExplicitAutograd")
class M(torch.nn.Module):
    def forward(self, x):
        return torch.ops.inrush_changed.bump(x, 1.0)
if version == "1":
    inrush.aot_compile(torch.export.export(M(), (torch.ones(3),)), path)
    assert torch.equal(inrush.load(path)(torch.ones(3)), torch.full((3,), 2.0))
else:
    try:
        inrush.load(path)
    except inrush.InputError as error:
        assert "was compiled for" in str(error), error
    else:
        raise AssertionError("it was loaded")
"""
    for version in ("1", "2"):
        run(script, version, tmp_path / "m.inrush", env={"PYTHONPATH": ":".join(sys.path)})


def test_functions_run_on_the_stream_of_the_call(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    from inrush import operators

    taken = {"stream": lambda s: s, "default_stream": lambda d: ("default", d.index), "ExternalStream": lambda s, device: (s, device.index)}
    for name, function in taken.items():
        monkeypatch.setattr(torch.cuda, name, function)
    with FakeTensorMode():
        x = torch.empty(1, device="cuda:0")
    # PyTorch takes a stream of its pool where the pointer is null.
    assert operators._stream([x], [], 0) == ("default", 0)
    assert operators._stream([[x]], [], 64) == (64, 0)
