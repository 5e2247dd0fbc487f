"""Triton kernels of users in compiled graphs: see `interpreted_kernels.py`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import inrush

pytestmark = [pytest.mark.by_commit, pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")]
HERE = os.path.dirname(__file__)
SHIMS = os.path.join(os.path.dirname(os.path.abspath(inrush.__file__)), "triton", "interpreter_shims.py")


def lines(script, *args, env=None):
    command = [sys.executable, os.path.join(HERE, script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env={**os.environ, **(env or {})})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and rows, done.stderr[-3000:]
    return {r["name"]: r for r in rows}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A folder for the sources of the graphs."""
    return tmp_path_factory.mktemp("printed")


@pytest.fixture(scope="module")
def rows(tmp_path_factory, printed):
    return lines("interpreted_kernels.py", env={"INRUSH_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PRINTED": str(printed)})


def test_printed_graphs_give_what_the_kernels_say(rows, printed, tmp_path):
    """In the interpreter, without inrush; some are built for a GPU that is not there, too."""
    assert len(os.listdir(printed)) > 25
    ran = lines("run_printed.py", str(printed), SHIMS, env={"TRITON_INTERPRET": "1"})
    ran |= lines("run_printed.py", str(printed), "build", "host_descriptor 0", "tuned_warps 0", env={"TRITON_CACHE_DIR": str(tmp_path)})
    failed = [f"{r['name']}: {r['failed']}" for r in ran.values() if r["failed"]]
    assert not failed, "\n".join(failed)


def test_results_are_what_the_kernels_say(rows):
    failed = [f"{r['name']}: {r['failed']}" for r in rows.values() if r["failed"]]
    assert not failed, "\n".join(failed)


def test_kernels_with_one_configuration_are_launched_natively(rows):
    for name, row in rows.items():
        if name not in ("tuned, dynamic", "broken", "broken later"):
            assert not row["called"], row
            assert any(k.startswith("triton.") for k in row["kernels"]), row
    assert [k for k in rows["in_order"]["kernels"] if k.startswith("triton.")] == ["triton.add_kernel", "triton.scale_kernel"] * 2


def test_tuned_kernels_are_launched_by_triton_once(rows):
    """The first call measures; the second, and a compile after it, take what won. Where sizes decide, Triton goes on."""
    assert rows["tuned"]["first"] == ["triton.tuned_kernel: Triton launches this kernel: it is tuned by measurement: 2 configurations"]
    for name in ("tuned", "tuned, then known", "tuned, then from the cache"):
        assert not rows[name]["called"] and rows[name]["kernels"][0] == "triton.tuned_kernel", rows[name]
    assert rows["tuned, then from the cache"]["cache"] == ["hit, not traced"]
    (called,) = rows["tuned, dynamic"]["called"]
    assert "2 configurations, for each size" in called


def test_graphs_with_kernels_are_cached(rows):
    for name in ("by_lambda", "descriptors"):
        assert rows[f"{name}, then from the cache"]["cache"] == ["hit, not traced"], rows[f"{name}, then from the cache"]


def test_descriptors_that_break_a_rule_are_launched_by_triton(rows):
    """Which raises what it raises in eager mode. Where sizes are symbols, other graphs stay native."""
    rule = "triton.host_descriptor_kernel: Triton launches this kernel: the descriptor of `source`: a stride is no multiple of 16 bytes"
    for name in ("broken", "broken later"):
        assert rows[name]["called"] == [rule] and rows[name]["raised"] == "AssertionError: strides must be 16-byte aligned", rows[name]
    assert rows["broken later"]["first"] == [], rows["broken later"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return lines("built_kernels.py", env={"INRUSH_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))})


def test_kernels_are_built_for_a_gpu(built):
    assert built["good"]["failed"] is None


def test_joined_parts_with_pointers_of_other_types_are_built(built):
    assert built["few"]["failed"] is None and any("_more" in k for k in built["few"]["kernels"]), built["few"]


def test_kernels_with_numbers_of_eight_bits_and_with_tensor_maps_are_built(built):
    for name in ("eight bits", "map", "descriptors", "descriptors on a100"):
        assert built[name]["failed"] is None and built[name]["kernels"], built[name]


def test_a_kernel_that_does_not_compile_says_where(built):
    told = built["bad"]["failed"]
    assert "bad_kernel" in told and "built_kernels.py" in told and "no_such_function" in told, told


def test_kernels_are_built_while_the_caller_goes_on(built):
    assert built["later"]["failed"] is None and built["later"]["kernels"], built["later"]
    # What fails on the way is told to who waits for it, not to who began it.
    bad = built["bad later"]
    assert bad.get("waits") and "no_such_function" in bad["failed"], bad
    assert "waits" not in built["bad"]


def test_without_triton_the_error_names_it(tmp_path):
    told = lines("built_kernels.py", "without triton", env={"INRUSH_CACHE_DIR": str(tmp_path)})["without triton"]["failed"]
    assert told.startswith("MachineError") and "`triton`, which is not installed" in told


def test_stores_into_empty_tensors_are_masked(tmp_path, monkeypatch):
    """A tensor without elements has no memory: a store that no mask holds back ends the process on a GPU."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    monkeypatch.delenv("INRUSH_VERIFY", raising=False)

    def put(x, i):
        y = torch.ops.aten.index_put.default(x, [i], x)
        return y, torch.ops.aten.cumsum.default(y, 1)

    graph = make_fx(put, tracing_mode="fake")(torch.empty(1, 0, 16), torch.tensor([0, -1]))
    inrush._native.compile_fx(graph, {"gpu": "cuda:h100", "interpret": True, "trace": str(tmp_path)})
    (emitted,) = tmp_path.glob("*emit*")
    stores = [line.strip() for line in emitted.read_text().splitlines() if "tl.store(" in line]
    assert stores and all(line.endswith("rmask)") for line in stores), stores


def test_rows_of_varying_length_have_a_program_for_near_sizes(tmp_path):
    """Its kernels store whole tiles without masks and hold rows; calls of all kinds of sizes are run by `interpreted.py`."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def compiled(name, f, *sizes):
        graph = make_fx(f, tracing_mode="symbolic")(torch.randn(sizes))
        inrush._native.compile_fx(graph, {"gpu": "cuda:h100", "interpret": True, "trace": str(tmp_path / name)})
        return tmp_path / name / "near_sizes"

    def lines(folder, stage, word):
        (text,) = folder.glob(f"*{stage}*")
        return [line.strip() for line in text.read_text().splitlines() if word in line]

    transposed = compiled("transposed", lambda x: x.t().contiguous() * 2, 96, 64)
    assert lines(transposed, "emit", "tl.store(out_ptr1") == ["tl.store(out_ptr1 + (x + 16 * (ks1 * y)), t1)"]
    softmax = lambda x: torch.softmax(x, -1)  # noqa: E731
    for length, rows in ((2000, "16*s96_by_16 by 2048 persistent"), (1001, "s96_by_1 by 1024 persistent")):
        (line,) = lines(compiled(str(length), softmax, 96, length), "tile", "r = t1 <")
        # The number of a symbol is a matter of its name.
        assert line.split("_by_")[1] == rows.split("_by_")[1], line
    # Lengths of rows that no program holds are multiples, or there is no such program.
    assert lines(compiled("long", softmax, 9, 40000), "tile", "r = t1 <")[0].endswith("looped")
    assert not compiled("long and odd", softmax, 9, 40001).exists()
