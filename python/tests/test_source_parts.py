"""Programs in parts, and functions of the library, as source: the cases of `test_parts.py`, `test_package_control.py` and
`test_library.py`, as files that `inrush compile --emit`
writes. Files of Python run in processes that have no inrush, on this CPU and for a GPU by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest
import test_library
import test_package_control
import test_parts
import test_source_cpp
import torch
from test_source import REPOSITORY, SHIMS
from torch import nn
from torch.utils import _pytree as pytree

import inrush

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.path.join(REPOSITORY, "target", "release", "inrush")
pytestmark = pytest.mark.by_commit

# Of packages and their loader: signatures, several threads, errors of the compiler. Packages refuse what eager refuses in other words.
OF_PACKAGES = {
    "test_conditions_on_data_hold_or_are_errors",
    "test_copies_are_memory_of_their_own",
    "test_loops_in_many_turns_of_several_threads",
    "test_many_calls_from_several_threads",
    "test_operators_without_a_function_are_listed_at_once",
    "test_random_numbers_within_control_flow_are_refused",
    "test_repeats_of_a_known_number",
    "test_state_is_written",
    "test_the_signature_names_sizes_that_depend_on_data",
}
# Run for a GPU too.
INTERPRETED = {
    "test_cond_runs_one_of_two_branches",
    "test_cond_with_outputs_of_other_sizes",
    "test_data_decide_sizes_within_a_branch",
    "test_cond_gives_new_memory",
    "test_while_loop_of_no_turn_one_and_many",
    "test_cond_within_a_loop",
    "test_scan_of_several_values",
    "test_a_decoder_with_a_cache",
    "test_a_mixture_of_experts",
    "test_kernels_before_and_after_nonzero",
    "test_integers_are_read_from_data",
    "test_inputs_are_written",
    "test_unique_slices",
    "test_views_of_copies",
    # Functions of the library.
    "test_what_surrounds_a_function_is_fused_and_sizes_may_vary",
    "test_grouped_products",
    "test_a_sequence_without_a_batch_and_states_that_are_given",
    "test_the_first_of_long_rows",
    "test_mixing_by_transforms",
}


# Printed as C++ too, of which each call is a process.
OF_CPP = {
    "test_cond_on_a_size",
    "test_cond_with_outputs_of_other_sizes",
    "test_nested_cond",
    "test_data_decide_sizes_within_a_branch",
    "test_while_loop_of_no_turn_one_and_many",
    "test_while_loop_that_data_end",
    "test_nested_loops",
    "test_scan_over_time",
    "test_map",
    "test_a_decoder_with_a_cache",
    "test_a_mixture_of_experts",
    "test_non_maximum_suppression",
    "test_nonzero_of_any_rank",
    "test_integers_are_read_from_data",
    "test_views_of_copies",
    # Functions of the library, with which the program is linked.
    "test_square_matrices",
    "test_cholesky",
    "test_solutions",
    "test_factors_multiply_to_their_matrix",
    "test_eigenvectors_rebuild_their_matrix",
    "test_a_singular_matrix_is_an_error",
    "test_what_surrounds_a_function_is_fused_and_sizes_may_vary",
    "test_recurrent_layers",
    "test_long_rows_are_sorted",
    "test_the_first_of_long_rows",
    "test_grouped_products",
    "test_mixing_by_transforms",
    "test_unique",
    "test_unique_slices",
    "test_bincount",
    "test_unique_consecutive",
    "test_bincount_of_weights",
    "test_repeats_by_a_tensor",
    "test_nonzero_static",
}


class Server:
    """A process that calls printed files."""

    def __init__(self, kind, preludes=()):
        self.kind = kind
        interpreted = kind == "interpreted"
        command = [sys.executable, os.path.join(HERE, "printed_server.py"), SHIMS if interpreted else "-", *map(str, preludes)]
        env = {**os.environ, "TRITON_INTERPRET": "1"} if interpreted else None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that calls files has ended"
        error = json.loads(line)["error"]
        if error is not None:
            raise inrush.InputError(error)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


class Printed:
    """A printed file as a package of the tests."""

    def __init__(self, server, folder, archive, *options):
        self.server, self.folder = server, folder
        self.file = os.path.join(folder, f"source{len(os.listdir(folder))}.py")
        target = ["--target", "h100"] if server.kind == "interpreted" else []
        command = [TOOL, "compile", archive, "--emit", "python", "-o", self.file, *target, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise inrush.UnsupportedError(done.stderr)

    def __call__(self, *inputs):
        inputs = pytree.tree_leaves(inputs)
        path = os.path.join(self.folder, "call.pt")
        torch.save(inputs, path)
        self.server.ask(file=self.file, call=path)
        outputs, after = torch.load(path, weights_only=False)
        for given, now in zip(inputs, after, strict=True):
            if isinstance(given, torch.Tensor) and not torch.equal(given, now):
                given.copy_(now)
        return outputs

    def update_weights(self, tensors):
        path = os.path.join(self.folder, "weights.pt")
        torch.save({name: t.detach() for name, t in tensors.items()}, path)
        self.server.ask(file=self.file, weights=path)

    def swap_weights(self):
        """They were swapped when they were given."""


class Program:
    """A printed file of C++ as a package of the tests: each call is a process."""

    def __init__(self, folder, archive):
        self.folder = pathlib.Path(folder)
        self.program = test_source_cpp.build(self.folder, archive)

    def __call__(self, *inputs):
        try:
            outputs = test_source_cpp.call(self.folder, self.program, pytree.tree_leaves(inputs), "--calls", "1")
        except AssertionError as error:
            raise inrush.InputError(str(error)) from error
        numbers = [re.match("the integer (.*)", o) if isinstance(o, str) else None for o in outputs]
        return [int(n[1]) if n else o for o, n in zip(outputs, numbers)]


# Of tests with many values of parameters a third runs, of C++ that has to be built a ninth. Which one the seed says.
SEED, MANY = int(os.environ.get("INRUSH_SEED", 0)), 4


def cases():
    """The tests of the files by kind of server, each with the values of its parameters."""
    for kind in ("cpu", "interpreted", "cpp"):
        for module in (test_parts, test_package_control, test_library):
            for name, function in vars(module).items():
                wanted = {"cpu": name not in OF_PACKAGES, "interpreted": name in INTERPRETED, "cpp": name in OF_CPP}[kind]
                if not name.startswith("test_") or not wanted:
                    continue
                marks = [m.args for m in getattr(function, "pytestmark", []) if m.name == "parametrize"]
                combinations = list(itertools.product(*(all for _, all in marks)))
                step = 9 if kind == "cpp" else 3
                for values in combinations[SEED % step :: step] if len(combinations) > MANY else combinations:
                    arguments = {names: v for (names, _), v in zip(marks, values)}
                    yield pytest.param(kind, function, arguments, id="-".join([kind, name[5:], *map(str, values)]))


@pytest.fixture(scope="module", autouse=True)
def tool():
    if not os.path.exists(TOOL):
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "inrush"], cwd=REPOSITORY, check=True, timeout=1800)


@pytest.fixture(scope="module")
def servers():
    made = {}

    def server(kind):
        if kind == "interpreted" and importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed")
        if kind not in made:
            made[kind] = Server(kind)
        return made[kind]

    yield server
    for s in made.values():
        s.close()


def exported(folder, module, inputs, dynamic=None):
    archive = os.path.join(folder, "model.pt2")
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dynamic), archive)
    return archive


@pytest.mark.parametrize("kind, function, arguments", list(cases()))
def test_files_give_what_eager_gives(kind, function, arguments, servers, tmp_path, monkeypatch):
    if kind == "cpp" and test_source_cpp.compiler() is None:
        pytest.skip("no C++ compiler: set CXX to one")
    server = servers(kind) if kind != "cpp" else None

    def packed(tmp_path, module, *inputs, dynamic=None):
        if kind == "cpp":
            return Program(tmp_path, exported(str(tmp_path), module, inputs, dynamic))
        return Printed(server, str(tmp_path), exported(str(tmp_path), module, inputs, dynamic))

    monkeypatch.setattr(test_parts, "packed", packed)
    monkeypatch.setattr(test_package_control, "packed", packed)
    # Files are written from archives, and are packages when they are loaded.
    loaded = lambda path: Program(tmp_path, path) if kind == "cpp" else Printed(server, str(tmp_path), path)  # noqa: E731
    file = types.SimpleNamespace(aot_compile=torch.export.save, load=loaded)
    monkeypatch.setattr(test_library, "inrush", file)
    function(tmp_path, **arguments)


def test_functions_that_no_operator_calls_yet():
    """Eigenvalues and least squares: the helpers of files themselves."""
    with open(os.path.join(REPOSITORY, "crates", "inrush-source", "src", "python", "library.py")) as file:
        scope = {"torch": torch}
        exec(compile(file.read(), file.name, "exec"), scope)
    functions = scope["FUNCTIONS"]
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 5, dtype=torch.float64), torch.randn(2, 7, 3, dtype=torch.float64)
    re, im, vectors, imaginary = functions["linalg.eig"]((2, 5), a)
    values, vectors = torch.complex(re, im), torch.complex(vectors, imaginary)
    torch.testing.assert_close(((vectors * values[:, None]) @ torch.linalg.inv(vectors)).real, a)
    torch.testing.assert_close(functions["linalg.eigvals"]((2, 5), a)[0].sum(-1), a.diagonal(dim1=-2, dim2=-1).sum(-1))
    # Of rank 2: the solution of least norm.
    low = torch.randn(2, 7, 2, dtype=torch.float64) @ torch.randn(2, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(functions["linalg.lstsq"]((2, 4, 3), low, b)[0], torch.linalg.pinv(low) @ b)


def test_operators_of_the_user_are_called(tmp_path):
    prelude = tmp_path / "operators.py"
    prelude.write_text(
        "import torch\n\n"
        "lib = torch.library.Library('printedlib', 'DEF')\n"
        "lib.define('scale(Tensor x, float by=2.0, *, bool twice=False) -> Tensor')\n"
        "lib.define('parts(Tensor x, int n) -> Tensor[]')\n"
        "lib.define('add_to(Tensor(a!) x, Tensor y) -> ()')\n"
        "lib.impl('scale', lambda x, by=2.0, *, twice=False: x * by * (2 if twice else 1), 'CompositeExplicitAutograd')\n"
        "lib.impl('parts', lambda x, n: [t.clone() for t in x.chunk(n)], 'CompositeExplicitAutograd')\n"
        "lib.impl('add_to', lambda x, y: [x.add_(y)].clear(), 'CompositeExplicitAutograd')\n"
    )
    namespace = {}
    exec(compile(prelude.read_text(), prelude, "exec"), namespace)
    torch.library.register_fake("printedlib::parts", lambda x, n: [torch.empty_like(t) for t in x.chunk(n)], lib=namespace["lib"])
    ops = torch.ops.printedlib

    class Calls(nn.Module):
        def forward(self, x):
            y = x + 1
            ops.add_to(y, x)
            a, b = ops.parts(ops.scale(y, 3.0, twice=True), 2)
            return a * 2, b + y.sum()

    declared = [
        "printedlib::scale(Tensor x, float by=2.0, *, bool twice=False) -> Tensor",
        "printedlib::parts(Tensor x, int n) -> Tensor[]",
        "printedlib::add_to(Tensor(a!) x, Tensor y) -> ()",
    ]
    server = Server("cpu", [prelude])
    folder = tmp_path / "printed"
    folder.mkdir()
    options = [word for d in declared for word in ("--operator", d)]
    archive = exported(str(folder), Calls(), (torch.randn(4, 3),))
    printed = Printed(server, str(folder), archive, *options)
    for _ in range(2):
        x = torch.randn(4, 3)
        test_parts.agree(Calls(), printed, x)
    server.close()


def test_control_flow_reads_as_python(tmp_path):
    module = test_package_control.Loops().eval()
    archive = exported(str(tmp_path), module, (torch.randn(3, 4), torch.tensor(3)))
    printed = Printed(Server("cpu"), str(tmp_path), archive)
    printed.server.close()
    with open(printed.file) as file:
        text = file.read()
    for part in ("\n    while condition_", "in forward: while_loop = ", "def body_1("):
        assert part in text, text[-6000:]
