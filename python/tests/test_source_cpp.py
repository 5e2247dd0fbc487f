"""Programs as C++: files that `inrush compile --emit cpp` writes, built and run in processes of their own, and eager."""

import copy
import functools
import os
import re
import shlex
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(REPOSITORY, "target", "release", "inrush")
pytestmark = pytest.mark.by_commit


@functools.cache
def compiler():
    """The command that compiles C++, up to the file; None without one."""
    named = os.environ.get("CXX")
    for command in ["c++", "g++", "clang++"]:
        if not named and shutil.which(command):
            return (command,)
    return tuple(shlex.split(named)) if named else None


@pytest.fixture(scope="module", autouse=True)
def tools():
    if compiler() is None:
        pytest.skip("no C++ compiler: set CXX to one")
    if not os.path.exists(TOOL):
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "inrush"], cwd=REPOSITORY, check=True, timeout=1800)


@functools.cache
def library_flags():
    """What a file with functions of the library is built with."""
    folder = os.path.join(REPOSITORY, "target", "release")
    if not os.path.exists(os.path.join(folder, "libinrush.so")):
        subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "inrush-capi"], cwd=REPOSITORY, check=True, timeout=1800)
    return ["-I", os.path.join(REPOSITORY, "crates", "inrush-capi", "include"), "-L", folder, "-linrush", f"-Wl,-rpath,{folder}"]


def run(command, code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, f"{done.returncode}: {done.stdout[-1000:]} {done.stderr[-3000:]}"
    return done.stdout if code == 0 else done.stderr


def export(folder, model, args, dynamic_shapes=None):
    torch.manual_seed(0)
    if dynamic_shapes is not None and isinstance(model, Function):
        dynamic_shapes = (dynamic_shapes,)  # of `*args`
    with torch.no_grad():
        program = torch.export.export(model, args, dynamic_shapes=dynamic_shapes)
    archive = folder / "model.pt2"
    torch.export.save(program, archive)
    return archive


def build(folder, archive, *flags, target="cpu"):
    """Prints an archive and compiles the file; returns the program."""
    source = folder / "model.cpp"
    run([TOOL, "compile", archive, "--emit", "cpp", "-o", source, "--target", target])
    library = library_flags() if '#include "inrush.h"' in source.read_text() else []
    run([*compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", *(flags or ["-O1"]), source, "-o", folder / "model", *library])
    return folder / "model"


def write_inputs(path, inputs):
    tensors = {str(k): v if isinstance(v, torch.Tensor) else torch.tensor(v) for k, v in enumerate(inputs)}
    save_file({name: t.clone().contiguous() for name, t in tensors.items()}, path)


def call(folder, program, inputs, *options):
    """Outputs of a process by position: tensors, or texts of other values. Strides are those that the process tells."""
    write_inputs(folder / "x.safetensors", inputs)
    text = run([program, "--inputs", folder / "x.safetensors", "--output", folder / "y.safetensors", *options])
    return outputs(text, load_file(folder / "y.safetensors"))


def tensors(text):
    """Positions of the outputs that are tensors, of what a process tells."""
    return re.findall(r"^output (\d+): .* strides \[.*\]$", text, re.M)


def outputs(text, found):
    out = []
    for k, line in re.findall(r"^output (\d+): (.*)$", text, re.M):
        strides = re.search(r"strides \[(.*)\]$", line)
        if strides is None:
            out.append(line)
            continue
        t = found[k]
        to = torch.empty_strided(t.shape, [int(s) for s in strides[1].split(", ") if s], dtype=t.dtype)
        out.append(to.copy_(t))
    assert re.search(r"^[\d.]+ us a call$", text, re.M), text
    return out


def compare(got, wanted, rtol=2e-3, atol=2e-4):
    assert len(got) == len(wanted), (got, wanted)
    for k, (a, b) in enumerate(zip(got, wanted)):
        if not isinstance(b, torch.Tensor):
            shown = f"the integer {b}" if type(b) is int else str(b)
            assert a == shown, f"output {k}: {a}, wanted {b}"
            continue
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
        if b.numel():
            pairs = zip(b.shape, a.stride(), b.stride())
            assert all(n == 1 or s == t for n, s, t in pairs), f"output {k}: strides {a.stride()}, wanted {b.stride()}"


def check(folder, model, *cases, dynamic_shapes=None, flags=(), **tolerance):
    """Compiles a model with the first inputs, and compares all."""
    program = build(folder, export(folder, model, copy.deepcopy(cases[0]), dynamic_shapes), *flags)
    for k, args in enumerate(cases):
        got = call(folder, program, pytree.tree_leaves(args), "--threads", 1 + 2 * (k % 2))
        with torch.no_grad():
            wanted = pytree.tree_leaves(copy.deepcopy(model)(*copy.deepcopy(args)))
        compare(got, wanted, **tolerance)
    return program


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *args):
        return self.f(*args)


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self):
        super().__init__()
        self.norm, self.after = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Counter(nn.Module):
    """Writes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(x.sum(0))
        return x + self.count


def test_a_multi_layer_perceptron_of_any_batch(tmp_path):
    model = nn.Sequential(nn.Linear(70, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 4)).eval()
    shapes = ({0: torch.export.Dim("batch", max=512)},)
    cases = [(torch.randn(n, 70),) for n in (6, 1, 511)]
    program = check(tmp_path, model, *cases, dynamic_shapes=shapes, flags=("-O2",))
    (symbol,) = re.findall(r'size_of\(given, "(\w+)"', (tmp_path / "model.cpp").read_text())
    drawn = run([program, "--size", f"{symbol}=3"])
    assert "output 0: float32 [3, 4] strides [4, 1]" in drawn and "us a call" in drawn
    assert f"has no size `depth`; its sizes are: {symbol}" in run([program, "--size", "depth=3"], code=2)
    # Threads and levels of processors change nothing.
    outputs = [call(tmp_path, program, cases[2], "--threads", n)[0] for n in (1, 4)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    scalar = build(tmp_path, tmp_path / "model.pt2", target="cpu:scalar")
    compare(call(tmp_path, scalar, cases[0]), [model(*cases[0]).detach()])


def test_convolutions_with_batch_norm(tmp_path):
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, groups=4, bias=False)
    model = nn.Sequential(*layers, nn.BatchNorm2d(24), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    check(tmp_path, model, (torch.randn(2, 3, 17, 15),))


def test_a_transformer_block_of_any_length_under_sanitizers(tmp_path):
    shapes = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=128)},)
    cases = [(torch.randn(n, t, 32),) for n, t in ((2, 9), (3, 33))]
    flags = "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    check(tmp_path, Block().eval(), *cases, dynamic_shapes=shapes, flags=flags)


def test_views_strides_and_reductions(tmp_path):
    def f(x, y):
        products = torch.einsum("ij,kj->ik", x, y), x.t() @ y
        views = x[1:, ::2] * 2, (x * 2).t(), x.view(-1)[3:9] + 1, (x + 1)[1:], torch.cat([x, y], 1).flip(0)
        sums = x.sum(), x.mean(0), x.amax(1), x.argmax(1), x.var(1), x.cumsum(1), x.logsumexp(0), (x > 0).all(1), x.prod(0)
        return *products, *views, *sums, x.softmax(1), x.sort(1)[0]

    check(tmp_path, Function(f), (torch.randn(7, 18), torch.randn(7, 18)))


def test_integers_truth_values_and_halves(tmp_path):
    def f(i, b, h, d):
        table = torch.tensor([0.5, -1.5, float("inf"), 2.25])
        integers = i * 3 - 1, i // 2, i % 3, i.sum(), i & 1, i.to(torch.uint8) + 250, i.to(torch.float64) / 3, table[i % 4]
        return *integers, b & (i > 2), ~b, b.sum(), h @ h.t(), h.softmax(-1), h.half() * 2, h.half() @ h.half().t(), d @ d.t(), d.exp()

    inputs = torch.arange(-3, 4), torch.arange(7) % 2 == 0, torch.randn(5, 9).bfloat16(), torch.randn(4, 6, dtype=torch.float64)
    check(tmp_path, Function(f), inputs, rtol=2e-2, atol=2e-2)


def test_sizes_of_zero(tmp_path):
    shapes = ({0: torch.export.Dim("n", min=0, max=64)}, None)

    def f(x, w):
        return x @ w, x.sum(0), torch.cat([x, x]) + 1, x[:0] * 2

    cases = [(torch.randn(n, 5), torch.randn(5, 3)) for n in (4, 0)]
    check(tmp_path, Function(f), *cases, dynamic_shapes=shapes)


def test_written_inputs_and_buffers(tmp_path):
    def f(x, y):
        x.add_(1)
        y[1:].mul_(x[1:])
        return (x @ y.t()).sum(), x.t() * 2, x

    inputs = torch.randn(4, 5), torch.randn(4, 5)
    check(tmp_path, Function(f), inputs)
    check(tmp_path, Counter(), (torch.randn(4, 3),))
    # The buffer keeps its new contents from one call to the next: the median time is of calls after the first.
    source = (tmp_path / "model.cpp").read_text()
    once = "const Values outputs = model.call(given);"
    assert once in source
    source = source.replace(once, f"model.call(given);\n        {once}")
    (tmp_path / "model.cpp").write_text(source)
    run([*compiler(), "-std=c++17", tmp_path / "model.cpp", "-o", tmp_path / "model"])
    x, model = torch.randn(4, 3), Counter()
    got = call(tmp_path, tmp_path / "model", (x,))
    model(x)
    compare(got, [model(x)])


def test_integers_of_a_call(tmp_path):
    model = Function(lambda x, n: (x[: n // 2] * n, n + 1))
    shapes = (None, torch.export.Dim.DYNAMIC)
    check(tmp_path, model, (torch.randn(9, 2), 7), (torch.randn(9, 2), 4), dynamic_shapes=shapes)


def test_names_and_strides_that_clash(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weights", torch.randn(4))
            self.register_buffer("threads", torch.randn(4))

        def forward(self, inputs):
            return inputs * self.weights + self.threads

    check(tmp_path, Named(), (torch.randn(3, 4),), (torch.randn(3, 4),))
    program = build(tmp_path, export(tmp_path, Function(lambda x: x * 2), (torch.randn(1, 6).expand(5, 6),)))
    write_inputs(tmp_path / "x.safetensors", (torch.randn(5, 6),))
    assert "reads one element of dimension 0 for all" in run([program, "--inputs", tmp_path / "x.safetensors"], code=2)


def test_a_graph_without_inputs(tmp_path):
    class Constants(nn.Module):
        def forward(self):
            return torch.arange(5) * 2, torch.full((2, 3), 1.5)

    program = build(tmp_path, export(tmp_path, Constants(), ()))
    assert not (tmp_path / "model.weights.safetensors").exists()
    run([program, "--output", tmp_path / "y.safetensors"])
    got = load_file(tmp_path / "y.safetensors")
    compare([got["0"], got["1"]], Constants()())


def test_random_numbers_are_those_of_the_command(tmp_path):
    archive = export(tmp_path, Function(lambda x: (F.dropout(x, 0.5, True), torch.rand_like(x))), (torch.ones(50, 3),))
    program = build(tmp_path, archive)
    got = call(tmp_path, program, (torch.ones(50, 3),))
    run([TOOL, "run", archive, "--inputs", tmp_path / "x.safetensors", "--output", tmp_path / "z.safetensors"])
    wanted = load_file(tmp_path / "z.safetensors")
    compare(got, [wanted["0"], wanted["1"]], rtol=0, atol=0)
    assert 0.3 < got[0].count_nonzero() / 150 < 0.7


def test_errors_of_callers_name_what_is_wrong(tmp_path):
    def f(x, i):
        torch._check(x.shape[0] % 2 == 0, lambda: "an even number of rows")
        return x[i] * 2 + x.reshape(-1, 2, 3).sum()

    shapes = ({0: 2 * torch.export.Dim("half", min=2, max=16)}, None)
    inputs = torch.randn(6, 3), torch.tensor([1, 5])
    program = build(tmp_path, export(tmp_path, Function(f), inputs, shapes))

    def fails(*inputs, options=()):
        write_inputs(tmp_path / "x.safetensors", inputs)
        return run([program, "--inputs", tmp_path / "x.safetensors", *options], code=2)

    assert re.search("index.*out of", fails(inputs[0], torch.tensor([1, 6])))
    assert "must be float32, got float64" in fails(inputs[0].double(), inputs[1])
    assert "dimension 1 must be 3, got 4" in fails(torch.randn(6, 4), inputs[1])
    assert "must have 2 dimensions" in fails(torch.randn(6), inputs[1])
    assert "size 7 of dimension 0 must be 2*" in fails(torch.randn(7, 3), inputs[1])
    assert "outside the range" in fails(torch.randn(64, 3), inputs[1])
    assert "has no tensor `1`" in fails(inputs[0])
    assert "belongs to no input" in fails(*inputs, inputs[1])
    assert "usage:" in run([program, "--nonsense"], code=2)
    assert "is no integer" in run([program, "--threads", "many"], code=2)
    assert "cannot open" in run([program, "--inputs", tmp_path / "missing"], code=3)


def test_damaged_and_other_weights_are_errors(tmp_path):
    program = build(tmp_path, export(tmp_path, nn.Linear(3, 2), (torch.randn(4, 3),)), "-O1", "-fsanitize=address,undefined")
    file = tmp_path / "model.weights.safetensors"
    whole = file.read_bytes()
    assert set(load_file(file)) == {"weight", "bias"}
    for k in (0, 5, 9, 40, len(whole) - 1):
        file.write_bytes(whole[:k])
        assert "not a safetensors file" in run([program], code=2)
    for k in range(8, whole.index(b"}}") + 2, 3):
        file.write_bytes(whole[:k] + b"\x07" + whole[k + 1 :])
        assert "error: " in run([program], code=2)
    save_file({"weight": torch.randn(2, 4), "bias": torch.randn(2)}, file)
    assert "the weight `weight` is float32[2, 4], the program wants float32[2, 3]" in run([program], code=2)
    file.unlink()
    assert "cannot open" in run([program], code=3)
    file.write_bytes(whole)
    run([program, "--weights", file])


def test_what_is_not_printed_is_named_and_nothing_is_written(tmp_path):
    archive = export(tmp_path, Function(lambda x: torch.fft.fft(x)), (torch.eye(3),))

    def refused(*options):
        output = tmp_path / "refused.cpp"
        text = run([TOOL, "compile", archive, "--emit", "cpp", "-o", output, *options], code=2)
        assert not output.exists()
        return text

    assert "a tensor of complex64 is not printed as C++" in refused()


class Quantized(nn.Module):
    """Products of floats and integers of eight bits."""

    def forward(self, x, y, a, b):
        one = torch.ones(())
        products = []
        for left, right in ((torch.float8_e4m3fn, torch.float8_e4m3fn), (torch.float8_e5m2, torch.float8_e4m3fn)):
            products.append(torch._scaled_mm(x.to(left), y.to(right).t(), one, one * 0.5, out_dtype=torch.float32))
        return *products, torch._int_mm(a, b), a.long() @ b.long(), a.int() @ b.int()


def test_products_of_eight_bits(tmp_path):
    torch.manual_seed(0)
    x, y = torch.randn(19, 48) * 3, torch.randn(32, 48)
    # Subnormal numbers, zeros of both signs.
    x[0, :4] = torch.tensor([2.0**-9, -(2.0**-8), -0.0, 448.0])
    a, b = (torch.randint(-128, 128, sizes, dtype=torch.int8) for sizes in ((24, 40), (40, 16)))
    check(tmp_path, Quantized(), (x, y, a, b), rtol=1e-5, atol=1e-3)
    text = (tmp_path / "model.cpp").read_text()
    assert "contract<Eight<" in text, re.findall("contract<.*", text)


def test_floats_of_eight_bits_are_read_as_pytorch_reads_them(tmp_path):
    """All codes, of each kind."""
    parts = os.path.join(REPOSITORY, "crates", "inrush-source", "src", "cpp", "parts", "operands.cpp")
    kinds = {
        "Eight<3, 7, Special::ones>": torch.float8_e4m3fn,
        "Eight<2, 15, Special::exponent>": torch.float8_e5m2,
        "Eight<3, 8, Special::minus_zero>": torch.float8_e4m3fnuz,
        "Eight<2, 16, Special::minus_zero>": torch.float8_e5m2fnuz,
    }
    source = tmp_path / "codes.cpp"
    headers = "".join(f"#include <{h}>\n" for h in ("cmath", "cstdint", "cstdio", "cstring", "limits"))
    prints = "".join(f'    for (int k = 0; k < 256; k++) std::printf("%a\\n", {kind}::load<double>(static_cast<std::uint8_t>(k)));\n' for kind in kinds)
    with open(parts) as file:
        source.write_text(f"{headers}{file.read()}\nint main() {{\n{prints}}}\n")
    run([*compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", source, "-o", tmp_path / "codes"])
    got = torch.tensor([float.fromhex(line) for line in run([tmp_path / "codes"]).split()])
    codes = torch.arange(256).to(torch.uint8)
    torch.testing.assert_close(got, torch.cat([codes.view(dtype).float() for dtype in kinds.values()]), rtol=0, atol=0, equal_nan=True)


class Solver(nn.Module):
    """Functions of the library at load and in calls, on sizes that vary, and one whose data decide sizes."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 4) + 4 * torch.eye(4))

    def forward(self, x):
        y = torch.linalg.inv(self.a) @ x + torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[1])
        long = torch.sort((x.reshape(-1, 1) * torch.linspace(1, 2, 300)).reshape(-1), stable=True)
        return y, *(x * 3).int().unique(return_counts=True), *long


def test_functions_of_the_library_are_sound(tmp_path):
    torch.manual_seed(0)
    half = torch.export.Dim("half", min=2, max=32)
    flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    model = Solver()
    program = check(tmp_path, model, (torch.randn(4, 6),), (torch.randn(4, 18),), dynamic_shapes=({1: 2 * half},), flags=flags)
    text = (tmp_path / "model.cpp").read_text()
    assert "// Build:  c++ -std=c++17 -O2 -pthread FILE.cpp -o program -I FOLDER-OF-inrush.h" in text and "-linrush" in text
    # Without the library the program does not start: nothing stands in for it.
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, timeout=60, check=False).stdout
    assert "libinrush.so" in needed or not shutil.which("readelf")


def test_graphs_of_torch_compile_are_printed_too(tmp_path):
    inrush = pytest.importorskip("inrush")

    def function(x, y):
        y.mul_(2)
        return (x @ y).softmax(-1), x.shape[0] * 2, None

    x, y = torch.randn(5, 6), torch.randn(6, 4)
    compiled = torch.compile(function, backend="inrush")
    with torch.no_grad():
        compiled(x, y.clone())
    (text,) = inrush.output_code(compiled, language="cpp")
    source, program = tmp_path / "graph.cpp", tmp_path / "graph"
    source.write_text(text)
    run([*compiler(), "-std=c++17", "-O1", "-pthread", source, "-o", program])
    # Inputs come in the order of the graph, which reads the written one first.
    save_file({"0": y, "1": x}, tmp_path / "x.safetensors")
    run([program, "--inputs", tmp_path / "x.safetensors", "--output", tmp_path / "y.safetensors", "--calls", "0"])
    with torch.no_grad():
        want = function(x, y)[0]
    torch.testing.assert_close(load_file(tmp_path / "y.safetensors")["0"], want)
    drawn = torch.compile(lambda x: torch.nn.functional.dropout(x), backend="inrush")
    drawn(x)
    with pytest.raises(inrush.UnsupportedError, match="a call of `torch.ops.aten.randint.low` is not printed"):
        inrush.output_code(drawn, language="cpp")
    with pytest.raises(inrush.InputError, match="not `rust`"):
        inrush.output_code(drawn, language="rust")


def views(x):
    return x[1:, ::2], x.t(), (x * 2).t(), x.view(-1)[3:9] + 1, (x + 1)[1:]


def around(x):
    """A view of a kernel's result that later kernels follow."""
    y = torch.sin(x)
    rows = y[::2]
    return rows, y.t() @ y, rows[1:, ::2] * 2, y.view(torch.int32)[0]


def counted(x, n: int):
    return x.view(-1)[n:], x.reshape(n, -1).t(), x.sum() * n


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function, args", [(views, ()), (around, ()), (counted, (5,))])
def test_views_between_segments(tmp_path, function, args, dynamic):
    inrush = pytest.importorskip("inrush")
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(function, backend="inrush", dynamic=dynamic)
    x = torch.randn(5, 6)
    compiled(x, *args)
    (text,) = inrush.output_code(compiled, language="cpp")
    source, program = tmp_path / "graph.cpp", tmp_path / "graph"
    source.write_text(text)
    run([*compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", source, "-o", program])
    takes = re.findall(r'\{"(\w+)", Kind::(\w+)\}', text)
    # Sizes are inputs of dynamic graphs.
    sizes = iter(x.shape)
    given = [x if kind == "tensor" else next(sizes) if kind == "integer" else 0 for _, kind in takes]
    compare(call(tmp_path, program, given), pytree.tree_leaves(function(x, *args)))
