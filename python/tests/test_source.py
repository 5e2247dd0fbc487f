"""Graphs as source: `printed.py` writes files, `run_printed.py` runs them without inrush."""

import importlib.util
import json
import logging
import os
import subprocess
import sys

import pytest
import torch

import inrush
from inrush import source

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
SHIMS = os.path.join(os.path.dirname(os.path.abspath(inrush.__file__)), "triton", "interpreter_shims.py")


def lines(script, *args, env=None):
    command = [sys.executable, os.path.join(HERE, script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env={**os.environ, **(env or {})})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and rows, done.stderr[-3000:]
    return {r["name"]: r for r in rows}


@pytest.fixture(scope="module", params=["cpu", "interpreted"])
def rows(request, tmp_path_factory):
    """What became of the models, and what the files gave."""
    folder = str(tmp_path_factory.mktemp("printed"))
    tool = os.path.join(REPOSITORY, "target", "release", "inrush")
    if not os.path.exists(tool):
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "inrush"], cwd=REPOSITORY, check=True, timeout=1800)
    if request.param == "cpu":
        return lines("printed.py", folder), lines("run_printed.py", folder)
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    printed = lines("printed.py", folder, "interpreted")
    ran = lines("run_printed.py", folder, SHIMS, env={"TRITON_INTERPRET": "1"})
    # Built too, for a GPU that is not there.
    names = ["attention 0", "rotary archive", "maps 0", "indices 0"]
    cache = str(tmp_path_factory.mktemp("triton"))
    for name, row in lines("run_printed.py", folder, "build", *names, env={"TRITON_CACHE_DIR": cache}).items():
        assert row["kernels"] > 0 and not row["failed"], row
        ran[f"{name}, built"] = row
    return printed, ran


def test_files_give_what_eager_gives(rows):
    failed = [f"{r['name']}: {r['failed']}" for r in rows[1].values() if r["failed"]]
    assert not failed, "\n".join(failed)


def test_every_graph_is_printed_and_run(rows):
    printed, ran = rows
    refused = {name: r["refused"] for name, r in printed.items() if r["refused"]}
    # Ahead of time the operator has no row.
    assert set(refused) <= {"recurrent archive"}, refused
    built = [name for name in ran if name.endswith(", built")]
    assert len(built) in (0, 4)
    assert len(ran) - len(built) == sum(r["graphs"] for r in printed.values()) >= 25


def test_sources_of_a_function_are_found_after_graph_breaks():
    def f(x):
        y = torch.sin(x) * 2
        torch._dynamo.graph_break()
        return torch.cos(y) + 1

    compiled, other = torch.compile(f, backend="inrush"), torch.compile(lambda x: x * 3, backend="inrush")
    with pytest.raises(inrush.InputError, match="call it first"):
        inrush.output_code(compiled)
    compiled(torch.ones(3)), other(torch.ones(3))
    texts = inrush.output_code(compiled)
    assert len(texts) == 2 and "aten.sin.default" in texts[0] and "aten.cos.default" in texts[1]
    assert len(inrush.output_code(other)) == 1
    model = torch.nn.Linear(3, 3)
    compiled = torch.compile(model, backend="inrush")
    compiled(torch.ones(2, 3)).sum().backward()
    assert len(inrush.output_code(compiled)) == 2

    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 4

    compiled = torch.compile(Model(), backend="inrush")
    compiled(torch.ones(2, 3))
    assert len(inrush.output_code(compiled)) == 1


def test_printing_is_deterministic():
    def text():
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: (x @ x.t()).softmax(-1), backend="inrush", options={"cache": False}, dynamic=True)
        compiled(torch.ones(5, 7))
        (text,) = inrush.output_code(compiled)
        return text

    assert text() == text()


def test_source_is_logged_and_traced(caplog, tmp_path):
    with caplog.at_level(logging.INFO, logger="inrush.output_code"):
        torch.compile(lambda x: torch.sinh(x), backend="inrush", options={"trace": str(tmp_path)})(torch.ones(2))
    assert "def call(*inputs):" in caplog.text and "aten.sinh.default" in caplog.text
    (path,) = tmp_path.glob("*/output_code.py")
    assert "def call(*inputs):" in path.read_text()


def test_guards_checks_and_wrong_inputs_raise(tmp_path):
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="inrush")
    compiled(torch.ones(5, 2), torch.tensor([1, 2]))
    (text,) = inrush.output_code(compiled)
    path = tmp_path / "source.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(IndexError, match="index.*out of"):
        module.call(torch.ones(5, 2), torch.tensor([1, 7]))
    with pytest.raises(RuntimeError, match="must be torch.float32, got torch.float64"):
        module.call(torch.ones(5, 2).double(), torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"sizes \[4, 2\] where the graph was compiled for \[5, 2\]"):
        module.call(torch.ones(4, 2), torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="takes 2 inputs, got 1"):
        module.call(torch.ones(5, 2))


def test_a_file_that_is_run_draws_inputs_and_tells_the_time(tmp_path):
    compiled = torch.compile(lambda x: (x + 1, x.sum(0)), backend="inrush", dynamic=True)
    compiled(torch.ones(5, 3))
    path = tmp_path / "source.py"
    path.write_text(inrush.output_code(compiled)[0])
    done = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "output 1: torch.float32 [8] strides [1]" in done.stdout and "us a call" in done.stdout


def test_objects_without_an_expression_are_named():
    assert source.expression(torch.ops.aten.add.Tensor) == (True, "torch.ops.aten.add.Tensor")
    assert source.expression(float("-inf")) == (True, 'float("-inf")')
    assert source.expression(object()) == (False, "a constant of type object")
    assert source.expression(test_printing_is_deterministic)[0] is False

    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    compiled = torch.compile(branches, backend="inrush")
    compiled(torch.ones(3))
    with pytest.raises(inrush.UnsupportedError, match="has no source"):
        inrush.output_code(compiled)


def test_kernels_are_timed_and_values_looked_for(tmp_path):
    def f(x):
        return torch.log(x).softmax(-1) @ torch.ones(3, 2)

    compiled = torch.compile(f, backend="inrush", dynamic=True)
    compiled(torch.ones(5, 3))
    path = tmp_path / "source.py"
    path.write_text(inrush.output_code(compiled)[0])
    run = lambda *args: subprocess.run([sys.executable, "-I", str(path), *args], capture_output=True, text=True)  # noqa: E731
    timed = run("--kernels")
    assert timed.returncode == 0, timed.stderr
    assert "GB/s" in timed.stdout and "mm_kernel" in timed.stdout
    # Half of the drawn elements are negative.
    checked = run("--check", "nan")
    assert "FloatingPointError" in checked.stderr and "_kernel` gives nan in tensor" in checked.stderr
