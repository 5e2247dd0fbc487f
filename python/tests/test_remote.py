"""The second tier of the cache: another machine, whose folder is empty, captures, traces and builds nothing."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import time

import pytest

PROGRAM = """
import json, sys, time, warnings
import torch
import inrush

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))

def infer(x):
    return (x.sin() * 2 + 1).softmax(-1)

def step(model, x):
    out = model(x).square().mean()
    out.backward()
    return out

caught = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x = torch.linspace(-1, 1, 40).view(5, 8)
    compiled = torch.compile(infer, backend="inrush", options={"strict": True})
    torch.testing.assert_close(compiled(x), infer(x))
    caches = list(inrush.last_compile().cache)
    ours, theirs = net(), net()
    torch.testing.assert_close(step(torch.compile(ours, backend="inrush", options={"strict": True}), x), step(theirs, x))
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    caches += [c for one in inrush.compilations()[1:] for c in one.cache]
    from inrush import remote
    remote.finish()
told = sorted({str(w.message) for w in caught if "second tier" in str(w.message)})
print(json.dumps({"tier": inrush.remote_cache(), "captures": inrush.captures(), "caches": caches, "told": told}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Runs the program on a machine: with a folder of its own, and a compiler that counts its calls."""
    root = tmp_path_factory.mktemp("machines")
    (root / "shared").mkdir()
    script = root / "program.py"
    script.write_text(PROGRAM)
    compiler = root / "cc.sh"
    compiler.write_text(f"#!/bin/sh\necho >> '{root / 'calls'}'\nexec cc \"$@\"\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    # Files that change while a process runs are not trusted.
    time.sleep(0.1)

    def run(name, **env):
        env = {"INRUSH_CACHE_DIR": str(root / name), "INRUSH_WARM_START": "1", "INRUSH_REMOTE_CACHE": f"file://{root / 'shared'}", "CC": str(compiler), **env}
        done = subprocess.run([sys.executable, str(script)], env={**os.environ, **env}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        calls = root / "calls"
        count = len(calls.read_text()) if calls.exists() else 0
        return {**json.loads(done.stdout.splitlines()[-1]), "calls": count}

    run.shared = root / "shared"
    run.first = run("first")
    return run


def entries(folder: pathlib.Path, kind: str) -> list[pathlib.Path]:
    return [p for p in (folder / kind).rglob("*") if p.is_file()]


def test_the_first_machine_stores_all_that_it_compiles(machine):
    first = machine.first
    assert first["told"] == [] and first["calls"] > 0
    assert first["tier"]["off"] is None and first["tier"]["hits"] == 0 and first["tier"]["dropped"] == 0, first
    for kind in ("objects", "graphs", "captures"):
        assert entries(machine.shared, kind), kind


def test_another_machine_captures_and_builds_nothing(machine):
    before = machine("again")
    assert before["calls"] == machine.first["calls"], "the compiler ran"
    assert before["captures"].get("restored"), before
    assert not before["captures"].get("kept"), before
    assert all(c.startswith("hit") for c in before["caches"]), before
    assert before["tier"]["hits"] > 0 and before["tier"]["misses"] == before["tier"]["refused"] == 0, before


def test_entries_of_others_are_refused_where_a_secret_is_set_and_graphs_are_found_without_captures(machine):
    careful = {"INRUSH_REMOTE_CACHE_KEY": "secret", "INRUSH_WARM_START": "0"}
    found = machine("careful", **careful)
    assert found["tier"]["hits"] == 0 and found["tier"]["refused"] > 0, found
    assert len(found["told"]) == 1 and "INRUSH_REMOTE_CACHE_KEY" in found["told"][0], found
    assert found["calls"] > machine.first["calls"]
    # It has replaced them.
    again = machine("careful too", **careful)
    assert again["calls"] == found["calls"], "the compiler ran"
    assert again["tier"]["refused"] == again["tier"]["misses"] == 0 and again["told"] == [], again
    assert "hit, not traced" in again["caches"], again


def test_a_tier_that_is_not_there_is_one_warning(machine):
    found = machine("alone", INRUSH_REMOTE_CACHE="redis://me:password@127.0.0.1:1")
    assert found["tier"]["off"] is not None and found["tier"]["hits"] == 0
    assert len(found["told"]) == 1 and "`redis://127.0.0.1:1`" in found["told"][0], found
