"""Builds of PyTorch for AMD and Intel GPUs, and devices without kernels: see `other_builds.py` and `other_process.py`. What only devices
show, such as PyTorch's caching allocator and captures, is not seen here."""

import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest
from gpu_driver import KINDS, REPOSITORY

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def rows(folder, *args, script="other_builds.py", **variables):
    script = os.path.join(os.path.dirname(__file__), script)
    env = {**os.environ, "INRUSH_CACHE_DIR": str(folder / "cache"), **variables}
    env.pop("INRUSH_GPU", None)
    done = subprocess.run([sys.executable, script, *args], capture_output=True, text=True, timeout=900, env=env)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and found, done.stderr[-3000:]
    return {r["name"]: r for r in found}


def test_a_build_for_rocm_compiles_for_amd(tmp_path):
    found = rows(tmp_path, "hip", str(tmp_path))
    told = found["told"]
    assert (told["kind"], told["target"]) == ("rocm", ["hip", "gfx942"])
    assert told["identity"][2] == [["a device of hip", "gfx942:sramecc+:xnack-"]] * 2
    for name in ("graph", "again"):
        row = found[name]
        assert row["failed"] is None and row["kernels"] and not row["called"] and not row["warned"], row
    assert found["binaries"]["kinds"] == [".hsaco"]
    # A package for AMD's is for this build's devices, of which there is none here.
    assert "`cuda:0`: PyTorch sees no such device" in found["load on cuda:0"]["failed"], found
    assert "inrush_runtime.load" in found["load on xpu:0"]["failed"], found


def over_the_driver(folder, kind):
    """PyTorch's functions and the driver are libraries of the tests; work waits in its stream until something waits for that."""
    source = REPOSITORY / "crates/inrush-host/tests/driver/fake.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", folder / KINDS[kind][0], source], check=True, timeout=120)
    variables = {"LD_LIBRARY_PATH": str(folder), "FAKE_LOG": str(folder / "log"), "FAKE_LATE": "1"}
    found = rows(folder, kind, str(folder), script="other_process.py", **variables)
    failed = [f"{r['name']}: {text}" for r in found.values() for text in r.get("failed", [])]
    names = ("rows", "layers", "chain", "written", "scaled")
    assert not failed and {*names, "package"} <= set(found), "\n".join(failed)
    # A number of the host's is copied for its first call and where it changed.
    assert found["scaled"]["fills"] == 2 and not found["scaled"]["called"], found["scaled"]
    return found, [found[name] for name in names]


def test_graphs_run_over_hip_in_a_build_for_rocm(tmp_path):
    found, graphs = over_the_driver(tmp_path, "rocm")
    assert all(g["launches"] and all(n % 64 == 0 for n in g["threads"]) for g in graphs), graphs
    assert found["layers"]["libraries"] == ["aten.mm.default"] * 3, "products are PyTorch's"
    assert found["chain"]["batched"] and not found["rows"]["batched"], "launches in a row become one"
    # Each call asks for PyTorch's stream once, and gives its guard back.
    assert found["torch"]["streams"] >= 24 and found["torch"]["guards"] == 0, found["torch"]
    assert all(g["told"] == 0 for g in graphs), "PyTorch's own streams need no word"


def test_graphs_run_on_queues_of_sycl_in_a_build_for_intel(tmp_path):
    found, graphs = over_the_driver(tmp_path, "xpu")
    assert all(g["launches"] and not g["batched"] for g in graphs), graphs
    assert found["layers"]["libraries"] == ["aten.mm.default"] * 3, "products are PyTorch's"
    # PyTorch issues work of its own after each call, so that its events stand for the call's.
    assert all(g["told"] == 6 for g in graphs) and found["package"]["told"] == 6, found
    # Likewise before an operator that is called, after which nothing is launched here.
    assert found["called"]["called"] == ["aten.linalg_matrix_exp.default"] and found["called"]["told"] == 6, found["called"]
    assert found["torch"]["guards"] == 0, found["torch"]

    # A queue that work cannot be put in order with is refused, in the words of one warning for each reason.
    reasons = {
        "first adapter": "SYCL_UR_USE_LEVEL_ZERO_V2=1",
        "lists": "UR_L0_USE_IMMEDIATE_COMMANDLISTS",
        "batched": "before oneAPI 2025.3",
        "order": "in any order",
        "graph": "is captured",
    }
    for what, reason in reasons.items():
        row = found["refused"][what]
        # Each reason is told once.
        assert not row["kernels"] and len(row["warned"]) == 1 and reason in row["warned"][0], row
        assert "inrush_runtime.load" in row["warned"][0], row
    assert "is captured" in found["refused"]["call"], found["refused"]
    told = sorted(found["refused"]["options"])
    assert len(told) == 2 and "`cudagraphs` has no effect on `xpu:0`" in told[0] and "`tune` has no effect" in told[1], told


def test_a_build_for_cuda_still_compiles_for_nvidia(tmp_path):
    found = rows(tmp_path, "cuda", str(tmp_path))
    assert (found["told"]["kind"], found["told"]["target"]) == ("cuda", ["cuda", "90"])
    assert found["graph"]["failed"] is None and found["graph"]["kernels"], found["graph"]
    assert found["binaries"]["kinds"] == [".cubin"]
    assert "only rocm:mi300x" in found["load on cuda:0"]["failed"], found


def test_a_build_for_intel_says_what_is_missing_once(tmp_path):
    found = rows(tmp_path, "xpu", str(tmp_path))
    first = found["graph"]
    assert first["failed"] is None and not first["kernels"] and first["called"], first
    assert len(first["warned"]) == 1 and "libtorch_xpu.so` is not loaded" in first["warned"][0] and "inrush_runtime.load" in first["warned"][0], first
    assert not found["again"]["warned"], found["again"]
    # Such graphs compile; kernels need Intel's back end of Triton, which the error names.
    preset = found["preset"]["failed"]
    if importlib.util.find_spec("triton.backends.intel") is None:
        assert preset.startswith("MachineError") and "no back end `intel`" in preset and "`triton-xpu`" in preset, preset
    else:
        assert preset is None
    assert "INRUSH_GPU names `cuda`" in found["another preset"]["failed"], found
    assert found["told"]["kind"] == "xpu", found["told"]
    # What is compiled in such a process depends on the reason.
    assert "libtorch_xpu.so` is not loaded" in found["told"]["identity"][3], found["told"]
    assert "`xpu:0`: PyTorch sees no such device" in found["load on xpu:0"]["failed"], found
    assert "in this build of PyTorch" in found["load on cuda:0"]["failed"], found


def test_a_device_without_kernels_is_told_once(tmp_path):
    found = rows(tmp_path, "mps", str(tmp_path))
    first = found["graph"]
    assert first["failed"] is None and not first["kernels"], first
    assert len(first["warned"]) == 1 and "no kernels for `mps`" in first["warned"][0] and "`cuda` (rocm), `xpu` (xpu)" in first["warned"][0], first
    assert not found["again"]["warned"], found["again"]


def test_intels_back_end_is_told_all_that_it_would_ask_a_device_for(monkeypatch):
    """Its `parse_target` takes these, and asks a device of this machine for extensions and for the clock where they are missing."""
    spec = importlib.util.spec_from_file_location("worker", REPOSITORY / "python/inrush/triton/worker.py")
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    intel = types.SimpleNamespace(device_arch=None)
    triton = types.SimpleNamespace(__version__="3.6", knobs=types.SimpleNamespace(intel=intel))
    compiler = types.SimpleNamespace(GPUTarget=lambda *parts: parts)
    for name, module in {"triton": triton, "triton.backends": types.SimpleNamespace(backends={"intel": None}), "triton.backends.compiler": compiler}.items():
        monkeypatch.setitem(sys.modules, name, module)
    for arch, blocks in (("pvc", True), ("bmg", True), ("dg2", False)):
        (backend, told, warp), extension = worker.target_of("xpu", arch, 32)
        assert (backend, warp, extension, intel.device_arch) == ("xpu", 32, "spv", arch)
        assert told["has_2d_block_io"] is told["has_subgroup_2d_block_io"] is blocks and 32 in told["sub_group_sizes"]
        assert told["__intel_already_queried_extensions__"] and told["core_clock_rate"] == 0 and told["max_num_sub_groups"] == 64


@pytest.mark.parametrize("target", ["rocm:mi300x", "rocm:mi250", "xpu:max1550", "xpu:b580"])
def test_models_for_other_vendors_have_eagers_results(tmp_path, target):
    found = rows(tmp_path, "interpret", target)
    failed = [f"{r['name']}: {r['failed']}" for r in found.values() if r["failed"]]
    assert not failed and len(found) == 3, "\n".join(failed)
    assert all(r["kernels"] and not r["called"] for r in found.values()), found
