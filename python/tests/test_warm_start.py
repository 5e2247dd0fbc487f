"""Captured frames that another process reads, and what must keep it from using them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

PROGRAM = pathlib.Path(__file__).with_name("warm_program.py")
# In these, nothing that a guard compares changes before the first call: what is compared beside guards must tell.
ONLY_BEFORE = {"function_inside_torch", "method_of_torch", "method_of_class", "method_that_was_inherited", "hook"}
SCALE = 2.5
FEW = ["function_of_module", "graph_break", "training_step", "closure", "marked_size"]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    script = folder / "program.py"
    shutil.copy(PROGRAM, script)
    os.utime(script)
    # Files that change while a process runs are not trusted; a process is as old as the clock's last tick.
    time.sleep(0.1)

    def run(*args, **env):
        env = {**os.environ, "INRUSH_CACHE_DIR": str(folder / "cache"), "INRUSH_WARM_START": "1", **env}
        done = subprocess.run([sys.executable, str(script), *args], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    run.script = script
    run.captures = lambda: [p for p in folder.glob("cache/graphs/*/captures/*/*") if p.is_file()]
    run("never")
    return run


def test_another_process_captures_nothing_and_notices_what_changes_then(start):
    # The program compares all results with eager's, after the change too. Which of the small functions are found again depends
    # a little on what ran before.
    found = start("after")
    assert "<lambda>, whose result is declared constant, at " in str(found["declared_constant"]["not kept"])
    captured = {name: f for name, f in found.items() if not f.get("restored") and name != "declared_constant"}
    assert len(captured) <= 3 and not captured.keys() & set(FEW), captured


def test_another_process_notices_what_has_changed(start):
    found = start("before")
    for name in ONLY_BEFORE:
        assert not found[name].get("restored"), (name, found[name])
    assert "methods of Linear have changed" in found["method_of_torch"]["not restored"], found["method_of_torch"]


def test_it_can_be_turned_off(start):
    assert not any(start("never", *FEW, INRUSH_WARM_START="0").values())


def restored(found):
    return {name: f.get("restored", {}).get("", 0) > 0 for name, f in found.items()}


def test_source_that_changed_and_damaged_files_are_captured_again(start):
    # Of the many variants that the tests before this one captured of a function only the last are kept.
    start("never", *FEW)
    found = start("never", *FEW)
    assert all(restored(found).values()), found
    for file in start.captures():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    found = start("never", *FEW)
    assert not any(restored(found).values()), found
    found = start("never", *FEW)
    assert all(restored(found).values()), found
    start.script.write_text(start.script.read_text().replace("return a * FACTOR", "return a + FACTOR"))
    time.sleep(0.1)
    found = start("never", *FEW)
    assert not any(f.get("restored") for f in found.values())
    assert any("has changed" in why for why in found["function_of_module"]["not restored"])


def test_what_is_used_is_kept(tmp_path, monkeypatch):
    import torch

    import inrush
    from inrush.capture import stored

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path))
    # The last variants are kept, and one that is asked for between them is, however many there are.
    by = 0.5
    f = lambda a: a * by  # noqa: E731

    def restored(value):
        nonlocal by
        by = value
        torch._dynamo.reset()
        before = inrush.captures().get("restored", {}).get("", 0)
        compiled = torch.compile(f, backend="inrush")
        assert compiled(torch.ones(2)).tolist() == [value, value]
        return inrush.captures().get("restored", {}).get("", 0) > before

    inrush.warm_start()
    try:
        assert not restored(0.5)
        for i in range(1, 2 * stored.MOST):
            assert not restored(i + 0.5)
            assert restored(0.5), (i, inrush.captures())
        assert restored(2 * stored.MOST - 0.5)
        assert not restored(1.5)
    finally:
        inrush.warm_start(False)


def test_numbers_that_were_symbols(tmp_path, monkeypatch):
    import torch

    import inrush

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path))
    # Dynamo makes a symbol of the global number, then finds that sizes follow from it and asks it to be what it was.
    f = lambda a: torch.nn.functional.interpolate(a, scale_factor=SCALE, mode="nearest") + 0  # noqa: E731
    inrush.warm_start()
    try:
        for scale in (2.5, 0.7, 2.5, 1.3):
            monkeypatch.setitem(globals(), "SCALE", scale)
            torch._dynamo.reset()
            compiled = torch.compile(f, backend="inrush", dynamic=True)
            a = torch.randn(2, 3, 10, 12)
            torch.testing.assert_close(compiled(a), f(a))
    finally:
        inrush.warm_start(False)


def test_files_that_changed_while_the_process_ran_are_not_trusted(tmp_path):
    from inrush.capture import fingerprint

    file = tmp_path / "new.py"
    file.write_text("")
    with pytest.raises(fingerprint.NotPortable, match="changed since the process began"):
        fingerprint.file_digest(str(file))
    assert fingerprint.file_digest(fingerprint.__file__) == fingerprint.file_digest(fingerprint.__file__)


def test_names_hold_in_any_process():
    import torch

    from inrush.capture import fingerprint, names

    for value in (torch, torch.cat, torch.nn.functional.gelu, torch.nn.Linear, torch.nn.Linear.forward, len, None, True):
        assert names.named(names.name_of(value)) is value
    assert names.name_of(lambda a: a + 1) == names.name_of(lambda a: a + 1) != names.name_of(lambda a: a + 2)
    assert names.name_of(lambda a=1: a) != names.name_of(lambda a=2: a)
    assert names.name_of(lambda a, b: a) != names.name_of(lambda a, *, b: a)
    for value in (object(), [1], torch.nn.Linear(1, 1), torch.ones(1)):
        with pytest.raises(fingerprint.NotPortable):
            names.name_of(value)


def test_operators_are_told_by_what_their_functions_do():
    import torch

    from inrush.capture import fingerprint

    def define(by):
        # All but the constant is the same.
        space = {"torch": torch}
        exec(f"def told(a: torch.Tensor) -> torch.Tensor:\n    return a * {by}\n", space)  # noqa: S102
        space["told"].__code__ = space["told"].__code__.replace(co_filename=__file__)
        return torch.library.custom_op("inrush_tests::told", space["told"], mutates_args=())

    define(2)
    first = fingerprint.operator_digest("inrush_tests::told")
    assert first == fingerprint.operator_digest("inrush_tests::told")
    define(3)
    assert first != fingerprint.operator_digest("inrush_tests::told")


def test_other_backends_are_left_alone():
    import torch

    import inrush

    inrush.warm_start()
    try:
        before = inrush.captures()
        f = torch.compile(lambda a: a + 1, backend="eager")
        assert f(torch.ones(2)).tolist() == [2, 2]
        assert inrush.captures() == before
    finally:
        inrush.warm_start(False)


def test_precision_by_the_name_of_a_backend(tmp_path, monkeypatch):
    import torch

    import inrush

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path))
    f = lambda a, b: (a @ b).relu()  # noqa: E731
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    before = torch.backends.cuda.matmul.fp32_precision
    inrush.warm_start()
    try:
        # From then on PyTorch's function that asks for the precision of all products raises.
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        for kind in ("kept", "restored"):
            torch._dynamo.reset()
            was = inrush.captures().get(kind, {}).get("", 0)
            torch.testing.assert_close(torch.compile(f, backend="inrush")(a, b), f(a, b))
            assert inrush.captures()[kind][""] == was + 1
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
        inrush.warm_start(False)


def test_guards_that_cannot_be_made_here_are_no_errors(tmp_path, monkeypatch, caplog):
    import torch

    import inrush

    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path))
    f = lambda: torch.zeros(3) + 1  # noqa: E731
    inrush.warm_start()
    try:
        with torch.device("cpu"):
            torch.compile(f, backend="inrush")()
        torch._dynamo.reset()
        before = sum(inrush.captures().get("not restored", {}).values())
        assert torch.compile(f, backend="inrush")().tolist() == [1, 1, 1]
        # The device was held by a mode that there is no more.
        assert sum(inrush.captures()["not restored"].values()) == before + 1
        assert not [r for r in caplog.records if r.name == "torch._guards" and r.levelname == "ERROR"]
    finally:
        inrush.warm_start(False)
