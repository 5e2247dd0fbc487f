"""Triton kernels of users in packages for GPUs, without a GPU: built by `inrush.aot_compile`, run by `inrush_runtime` over a driver in
C, by Triton's interpreter. See `gpu_driver.py`."""

from __future__ import annotations

import importlib.util
import random
import sys

import pytest
import torch
from gpu_driver import Machine, tool
from torch.utils import _pytree as pytree

import inrush

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def interpreted(tmp_path, monkeypatch):
    """Has kernels be built as `gpu_driver.py` runs them."""
    tool(tmp_path, "doctor")
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with Machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


def packaged(folder, name, **options):
    from exported_kernels import CASES, exported

    program, plain, calls = exported(*CASES[name])
    path = str(folder / "m.inrush")
    inrush.aot_compile(program, path, targets=["h100"], libraries=False, **options)
    return path, plain, calls


def cases():
    if importlib.util.find_spec("triton") is None:
        return []
    from exported_kernels import CASES

    return list(CASES)


@pytest.mark.parametrize("name", cases())
def test_packages_compute_what_the_kernels_say(name, tmp_path, machine, interpreted):
    torch.manual_seed(0)
    path, plain, calls = packaged(tmp_path, name)
    model = machine.load(path)
    for given in calls:
        theirs, ours = pytree.tree_map(torch.clone, (given, given))
        with torch.no_grad():
            wanted = pytree.tree_leaves(plain(*theirs))
        got = model(*ours)
        for want, have in zip((*wanted, *theirs), (*got, *ours), strict=True):
            torch.testing.assert_close(have, want, rtol=2e-4, atol=2e-5)


class Drawn:
    """A program of random steps: kernels and ordinary operators, views between them, in a random dtype."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.dtype = draw.choice([torch.float32, torch.float32, torch.float64, torch.float16])
        steps = ["add", "tuned", "warps", "scale", "relu", "transposed", "part", "strided", "sum", "keep"]
        self.steps = [(draw.choice(steps), draw.randrange(1 << 16)) for _ in range(draw.randint(3, 7))]
        self.columns = draw.choice([1, 5, 16, 33])
        self.calls = [draw.randint(3, 64) for _ in range(3)]
        self.inputs = draw.choice(["plain", "columns first", "parts"])

    def __call__(self, k, m, x, y):
        kept = []
        for step, number in self.steps:
            if step == "add":
                x = k.add(x.contiguous(), y.contiguous())
            elif step == "scale":
                x = x * 0.5 if number % 2 else x.clone(memory_format=torch.contiguous_format)
                x = x.contiguous()
                if number % 3 == 0:
                    kept.append(x + 1)
                k.scale_(x, 0.25)
                y = y if number % 5 else x.sin()
            elif step in ("tuned", "warps"):
                # In memory's order: what `transposed` leaves is taken as it is.
                dense = x if x.is_contiguous() or number % 2 == 0 and x.t().is_contiguous() else x.contiguous()
                x = getattr(k, step)(dense) * 0.125
            elif step == "part":
                # Not aligned, of another size.
                kept.append(k.add(x.reshape(-1)[number % 3 :], y.reshape(-1)[number % 3 :]))
            elif step == "strided":
                kept.append(k.tuned(x[::2].contiguous()).t())
                # The copy begins elsewhere than what it copies.
                kept.append(k.warps(x[1:].clone(memory_format=torch.contiguous_format)))
            elif step == "transposed":
                x, y = x.t().contiguous().t(), y * 1.0
            elif step == "sum":
                y = y + x.sum(1, keepdim=True) * 0.125
            elif step == "keep":
                kept.append(x)
            else:
                x = x.relu() + 0.5
        return x, y, *kept

    def drawn(self, rows):
        def one():
            if self.inputs == "columns first":
                return torch.randn(self.columns, rows).t()
            if self.inputs == "parts":
                return torch.randn(rows + 1, self.columns + 2)[1:, 1:-1]
            return torch.randn(rows, self.columns)

        return one().to(self.dtype), one().to(self.dtype)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs_at_drawn_sizes(seed, tmp_path, machine, interpreted):
    from exported_kernels import ROWS, Kernels, Module, Plain

    torch.manual_seed(seed)
    steps = Drawn(seed)
    module, plain = (Module(lambda m, x, y, k=k: steps(k, m, x, y)) for k in (Kernels, Plain))
    with torch.no_grad():
        program = torch.export.export(module, steps.drawn(7), dynamic_shapes=({0: ROWS}, {0: ROWS}))
    path = str(tmp_path / "m.inrush")
    inrush.aot_compile(program, path, targets=["h100"], libraries=False)
    model = machine.load(path)
    for rows in steps.calls:
        given = steps.drawn(rows)
        with torch.no_grad():
            wanted = plain(*[t.clone() for t in given])
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if steps.dtype == torch.float16 else {"rtol": 2e-4, "atol": 2e-5}
        for want, have in zip(wanted, model(*given), strict=True):
            torch.testing.assert_close(have, want, msg=lambda m: f"{steps.steps} of {rows} x {steps.columns}: {m}", **tolerance)


def text(folder, path):
    done = tool(folder, "inspect", path, "--stage", "summary")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tuned_kernel_has_one_configuration(tmp_path, interpreted):
    path, _, _ = packaged(tmp_path, "of inputs, dynamic")
    shown = text(tmp_path, path)
    assert "triton(" in shown and ", add_kernel, node `" in shown, shown
    assert "tuned_kernel, configuration 1 of 2 (BLOCK: 16, num_warps: 4, num_stages: 3), the first that builds, not measured" in shown, shown
    assert "exported_kernels.py" in shown, shown
    page = tmp_path / "page.html"
    assert tool(tmp_path, "explain", path, "-o", page).returncode == 0
    assert "tuned_kernel, configuration 1 of 2" in page.read_text()


def test_what_was_measured_is_taken_by_targets_of_that_architecture(tmp_path, interpreted, monkeypatch):
    from inrush.triton import exported

    monkeypatch.setattr(exported, "_measure", lambda *_: ("cuda", "90", 1))
    path, _, _ = packaged(tmp_path, "of inputs, dynamic")
    assert "configuration 2 of 2 (BLOCK: 64, num_warps: 2, num_stages: 3), the fastest here" in text(tmp_path, path)
    monkeypatch.setattr(exported, "_measure", lambda *_: ("cuda", "80", 1))
    path, _, _ = packaged(tmp_path, "of inputs, dynamic")
    assert "configuration 1 of 2" in text(tmp_path, path)


def test_equal_kernels_are_built_once(tmp_path, interpreted):
    path, _, _ = packaged(tmp_path, "in order")
    line = next(line for line in text(tmp_path, path).splitlines() if line.startswith("target cuda:h100"))
    # One that adds, one that scales by each of two factors, one that adds one.
    assert "4 kernels" in line or "3 kernels" in line, line


def test_cpus_refuse_kernels_by_name_and_line(tmp_path):
    from exported_kernels import CASES, exported

    program, _, _ = exported(*CASES["between others"])
    for targets in (["cpu"], ["cpu", "h100"]):
        with pytest.raises(inrush.UnsupportedError, match=r"run on GPUs only:\n  `add_kernel` at .*exported_kernels.py:\d+"):
            inrush.aot_compile(program, str(tmp_path / "m.inrush"), targets=targets)


def test_archives_alone_are_refused_with_what_to_do(tmp_path):
    from exported_kernels import CASES, exported

    program, _, _ = exported(*CASES["of rows, dynamic"])
    torch.export.save(program, tmp_path / "m.pt2")
    done = tool(tmp_path, "compile", tmp_path / "m.pt2", "-o", tmp_path / "m.inrush", "--target", "h100")
    assert done.returncode == 2 and "inrush_exported.squares.default" in done.stderr and "`inrush.aot_compile(" in done.stderr, done.stderr
    # A launch whose kernel nobody gives.
    from inrush.triton import exported as prepared

    program, _ = prepared.prepare(program)
    torch.export.save(program, tmp_path / "n.pt2")
    done = tool(tmp_path, "compile", tmp_path / "n.pt2", "-o", tmp_path / "m.inrush", "--target", "h100")
    assert done.returncode == 2 and "`rows_kernel` is not in the archive: `inrush.aot_compile`" in done.stderr, done.stderr


def test_what_cannot_be_packaged_is_named(tmp_path):
    import triton
    import triton.language as tl
    from exported_kernels import Module
    from torch.library import triton_op, wrap_triton

    @triton.autotune(configs=[triton.Config({}), triton.Config({}, num_ctas=2)], key=["n"])
    @triton.jit
    def clustered(x, n):
        tl.store(x, n)

    @triton_op("inrush_exported::clustered", mutates_args={"x"})
    def operator(x: torch.Tensor) -> None:
        wrap_triton(clustered)[(1,)](x, x.numel())

    def called(_, x, y):
        operator(x)
        return x + y

    program = torch.export.export(Module(called), (torch.ones(4), torch.ones(4)))
    with pytest.raises(inrush.UnsupportedError, match=r"`clustered` \(File .* cannot be packaged: its configuration asks for more than warps"):
        inrush.aot_compile(program, str(tmp_path / "m.inrush"), targets=["h100"])


def test_a_number_beyond_what_the_kernel_was_built_for_is_refused(tmp_path, machine, interpreted):
    from exported_kernels import ROWS, Module
    from torch.library import triton_op, wrap_triton
    from user_kernels import add_kernel

    @triton_op("inrush_exported::many", mutates_args={})
    def many(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wrap_triton(add_kernel)[(1,)](x, x, out, x.numel() << 28, BLOCK=4)
        return out

    x = torch.ones(4)
    program = torch.export.export(Module(lambda _, x, y: many(x) + y), (x, x), dynamic_shapes=({0: ROWS}, {0: ROWS}))
    path = str(tmp_path / "m.inrush")
    inrush.aot_compile(program, path, targets=["h100"])
    model = machine.load(path)
    torch.testing.assert_close(model(x, x)[0], x * 3)
    with pytest.raises(inrush.UnsupportedError, match="`n` of the Triton kernel `add_kernel` is 2147483648: it was built for i32"):
        model(torch.ones(8), torch.ones(8))


def test_damaged_packages_are_errors(tmp_path, machine, interpreted):
    import json
    import zipfile

    path, _, calls = packaged(tmp_path, "in order")

    def changed(edit):
        to = str(tmp_path / "changed.inrush")
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
            for entry in old.infolist():
                content = old.read(entry)
                if entry.filename == "inrush.json":
                    manifest = json.loads(content)
                    steps = manifest["targets"][0]["Gpu"]["lowered"]["program"]["steps"]
                    edit(manifest, [s["kind"]["Kernel"] for s in steps if "Kernel" in s["kind"]])
                    content = json.dumps(manifest)
                new.writestr(entry.filename, content)
        return to

    def put(key, value):
        return lambda _, launches: launches[0].__setitem__(key, value)

    for edit in (
        put("kernel", 1000), put("tensors", []), put("tensors", [0, 0, 1 << 40]), put("written", [0, 0]), put("outs", [0]),
        put("arguments", []), put("arguments", [{"Int": 1}] * 4), put("grid", [{"Float": 1.0}] * 3), put("grid", [{"Size": 1 << 20}] * 3),
        put("written", [77]), put("tensors", [None, None, None]),
    ):  # fmt: skip
        with pytest.raises((inrush.InputError, RuntimeError), match="damaged|expected"):
            machine.load(changed(edit))


@pytest.fixture
def captures(monkeypatch):
    """Has Dynamo capture launches on a machine without a GPU."""
    import torch.utils._triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class StandIn:
        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: True)
    monkeypatch.setattr(torch.utils._triton, "has_triton_tensor_descriptor_host_tma", lambda: True)
    monkeypatch.setattr(driver, "_active", StandIn())
    torch._dynamo.reset()


def launches():
    if importlib.util.find_spec("triton") is None:
        return []
    from user_kernels import CASES, between_others, by_lambda, deep_descriptors, in_order, mixed_descriptors, rows, tuned

    dynamic = (by_lambda, in_order, rows, between_others, tuned, deep_descriptors, mixed_descriptors)
    return [(f, want, f in dynamic) for f, want in CASES.items()]


@pytest.mark.parametrize(("function", "wanted", "dynamic"), launches(), ids=lambda v: getattr(v, "__name__", None))
def test_launches_that_dynamo_captured(function, wanted, dynamic, tmp_path, machine, interpreted, captures):
    from exported_kernels import ROWS, Module

    def drawn(rows):
        return torch.randn(rows, 18), torch.randn(rows, 18)

    module = Module(lambda _, x, y: function(x, y))
    shapes = ({0: ROWS}, {0: ROWS}) if dynamic else None
    program = torch.export.export(module, drawn(7), dynamic_shapes=shapes, strict=True)
    path = str(tmp_path / "m.inrush")
    inrush.aot_compile(program, path, targets=["h100"])
    model = machine.load(path)
    for count in (7, 11) if dynamic else (7, 7):
        theirs = drawn(count)
        ours = tuple(t.clone() for t in theirs)
        got = model(*ours)
        for want, have in zip((*pytree.tree_leaves(wanted(*theirs)), *theirs), (*got, *ours), strict=True):
            torch.testing.assert_close(have, want)


def described(folder, target, rows=7):
    """A package whose kernels take descriptors, and what it must give."""
    from exported_kernels import ROWS, Module
    from user_kernels import CASES, mixed_descriptors

    def drawn(rows):
        return torch.randn(rows, 18), torch.randn(rows, 18)

    module = Module(lambda _, x, y: mixed_descriptors(x, y))
    program = torch.export.export(module, drawn(rows), dynamic_shapes=({0: ROWS}, {0: ROWS}), strict=True)
    path = str(folder / "m.inrush")
    inrush.aot_compile(program, path, targets=[target], libraries=False)
    return path, CASES[mixed_descriptors], drawn


@pytest.mark.parametrize(("target", "kind", "capability"), [("a100", "cuda", "80"), ("mi300x", "rocm", "90"), ("max1550", "xpu", "90")])
def test_descriptors_are_expanded_where_no_engine_takes_maps(target, kind, capability, tmp_path, interpreted, captures, monkeypatch):
    path, wanted, drawn = described(tmp_path, target)
    monkeypatch.setenv("FAKE_CAPABILITY", capability)
    folder = tmp_path / "machine"
    folder.mkdir()
    with Machine(folder, kind=kind) as machine:
        model = machine.load(path)
        for count in (7, 11):
            given = drawn(count)
            for want, have in zip(wanted(*given), model(*given), strict=True):
                torch.testing.assert_close(have, want)
        seen = machine.seen()
    assert sum("mixed_descriptor_kernel" in line for line in seen) == 4 and not any("tensor map" in line for line in seen), seen


def test_equal_descriptors_are_made_once(tmp_path, machine, interpreted, captures):
    path, wanted, drawn = described(tmp_path, "h100")
    model = machine.load(path)
    given = drawn(7)
    for calls in range(3):
        machine.seen()
        for want, have in zip(wanted(*given), model(*given), strict=True):
            torch.testing.assert_close(have, want)
        maps = [line for line in machine.seen() if "tensor map" in line]
        # Four parameters: the source of both launches, and a target of each. Memory of later calls is where it was.
        assert len(maps) == (3 if calls == 0 else 0), maps
        assert all(line == "tensor map rank=2 sizes=20,7 tile=16,16" for line in maps), maps


def test_descriptors_that_no_device_takes_are_refused(tmp_path, interpreted, captures):
    from exported_kernels import Module
    from user_kernels import broken_descriptor

    given = torch.randn(7, 18), torch.randn(7, 18)
    program = torch.export.export(Module(lambda _, x, y: broken_descriptor(x, y)), given, strict=True)
    with pytest.raises(inrush.UnsupportedError, match=r"`host_descriptor_kernel` \(File .* cannot be packaged: the descriptor of `source`: a stride"):
        inrush.aot_compile(program, str(tmp_path / "m.inrush"), targets=["h100"])


def test_triton_builds_them_for_several_gpus(tmp_path, monkeypatch):
    """The first configuration does not compile."""
    import triton
    import triton.language as tl
    from exported_kernels import Module
    from torch.library import triton_op, wrap_triton

    @triton.autotune(configs=[triton.Config({"BLOCK": 17}), triton.Config({"BLOCK": 32}, num_warps=1)], key=["n"])
    @triton.jit
    def picky(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * 16 + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    @triton_op("inrush_exported::picky", mutates_args={})
    def operator(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wrap_triton(picky)[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    program = torch.export.export(Module(lambda _, x, y: operator(x) + y), (torch.ones(64), torch.ones(64)))
    path = str(tmp_path / "m.inrush")
    inrush.aot_compile(program, path, targets=["h100", "a100", "mi300x"])
    shown = text(tmp_path, path)
    assert shown.count("picky, configuration 2 of 2 (BLOCK: 32, num_warps: 1, num_stages: 3), the first that builds, not measured") == 3, shown
    h100, a100, mi300x = (line for line in shown.splitlines() if line.startswith("target "))
    assert "compute capability 9.0 alone" in h100 and "compute capability 8.0 and later" in a100 and "no PTX" in mi300x, shown


def test_a_kernel_that_no_configuration_builds_is_told_with_its_source(tmp_path, monkeypatch):
    import triton
    import triton.language as tl
    from exported_kernels import Module
    from torch.library import triton_op, wrap_triton

    @triton.jit
    def wrong(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), tl.no_such_function(1))

    @triton_op("inrush_exported::wrong", mutates_args={"x"})
    def operator(x: torch.Tensor) -> None:
        wrap_triton(wrong)[(1,)](x, BLOCK=16)

    def called(_, x, y):
        x = x + 1
        operator(x)
        return x + y

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    program = torch.export.export(Module(called), (torch.ones(64), torch.ones(64)))
    with pytest.raises(inrush.InputError, match="(?s)target `cuda:h100`.*wrong.*no_such_function"):
        inrush.aot_compile(program, str(tmp_path / "m.inrush"), targets=["h100"])


@pytest.mark.parametrize("name", ["in a branch", "in branches", "in a loop", "in a scan", "writes buffer", "between others, dynamic"])
def test_packages_of_source_are_printed(name, tmp_path):
    """As Python that Triton's interpreter runs, without inrush. Branches and loops launch kernels, too."""
    from test_source_parts import Server

    path, plain, calls = packaged(tmp_path, name, kernels="source")
    printed = tmp_path / "m.py"
    done = tool(tmp_path, "compile", path, "--emit", "python", "--target", "h100", "-o", printed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m.weights.safetensors").exists() == ("WEIGHT_LAYOUTS" in printed.read_text())
    server = Server("interpreted")
    for given in calls:
        theirs = pytree.tree_map(torch.clone, given)
        with torch.no_grad():
            wanted = pytree.tree_leaves(plain(*theirs))
        torch.save(list(given), tmp_path / "call.pt")
        server.ask(file=str(printed), call=str(tmp_path / "call.pt"))
        got, after = torch.load(tmp_path / "call.pt", weights_only=False)
        for want, have in zip((*wanted, *theirs), (*got, *after), strict=True):
            torch.testing.assert_close(have, want, rtol=2e-4, atol=2e-5)
    server.close()


def test_kernels_of_branches_that_differ_have_objects_of_their_own(tmp_path):
    """Each branch counts its kernels by itself: the first of one is the second of the other."""
    path, _, _ = packaged(tmp_path, "in branches", kernels="source")
    printed = tmp_path / "m.py"
    assert tool(tmp_path, "compile", path, "--emit", "python", "--target", "h100", "-o", printed).returncode == 0
    text = printed.read_text()
    objects = [line.split(" = ")[0] for line in text.splitlines() if line.endswith(" = UserKernel(")]
    assert len(objects) == 2 and all(text.count(f"    {name}(") == 2 for name in objects), text[-6000:]


def test_packages_of_machine_code_are_not_printed(tmp_path, interpreted):
    path, _, _ = packaged(tmp_path, "in order")
    for options, message in (
        (["python", "--target", "h100"], "holds machine code"),
        (["python", "--target", "a100"], "was compiled for cuda:h100"),
        (["python"], "for the GPU that `--target` names"),
        (["cpp", "--target", "h100"], "packages are printed as Python"),
    ):
        done = tool(tmp_path, "compile", path, "-o", tmp_path / "m.py", "--emit", *options)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "m.py").exists()
