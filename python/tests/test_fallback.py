"""When inrush fails: one warning for each cause, a reproduction, an eager result; `strict` raises."""

import os
import warnings

import pytest
import torch

import inrush
from inrush import _native, fallback


@pytest.fixture
def broken(monkeypatch):
    def fail(*args):
        raise inrush.InternalError("made to fail")

    monkeypatch.setattr(_native, "compile_fx", fail)
    monkeypatch.setattr(fallback, "_warned", set())


def test_the_graph_runs_eagerly_with_one_warning(broken):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for k in range(3):
            f = torch.compile(lambda a, k=k: a * 2 + k, backend="inrush")
            assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0 + k))
    ours = [w for w in seen if "inrush could not compile" in str(w.message)]
    assert len(ours) == 1 and "made to fail" in str(ours[0].message)
    report = inrush.last_compile().graphs[0]
    assert "made to fail" in report.fallback
    assert inrush.last_compile().fallbacks == [report.fallback]


def test_a_reproduction_is_saved(broken):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(lambda a: torch.relu(a) @ a, backend="inrush")(torch.ones(3, 3))
    folder = inrush.last_compile().graphs[0].reproduction
    assert folder.startswith(os.environ["INRUSH_CACHE_DIR"])
    assert {"graph.txt", "error.txt", "reproduce.py"} <= set(os.listdir(folder))
    with open(os.path.join(folder, "reproduce.py"), encoding="utf-8") as script:
        code = compile(script.read(), "reproduce.py", "exec")
    # What it ends with is the compile that failed.
    with pytest.raises(inrush.InternalError, match="made to fail"):
        exec(code, {"__name__": "__main__"})


def test_training_falls_back_too(broken):
    model = torch.nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(model, backend="inrush")(torch.ones(4, 3)).sum().backward()
    assert torch.equal(model.bias.grad, torch.full((2,), 4.0))


def test_strict_raises(broken):
    with pytest.raises(Exception, match="made to fail"):
        torch.compile(lambda a: a + 1, backend="inrush", options={"strict": True})(torch.ones(3))


def test_an_interrupt_is_not_swallowed(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(_native, "compile_fx", interrupt)
    with pytest.raises(KeyboardInterrupt):
        torch.compile(lambda a: a + 1, backend="inrush")(torch.ones(3))
    monkeypatch.undo()
    torch._dynamo.reset()
    assert torch.equal(torch.compile(lambda a: a + 1, backend="inrush")(torch.ones(3)), torch.full((3,), 2.0))


def test_a_missing_compiler_is_a_clean_fallback(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        f = torch.compile(lambda a: torch.tanh(a) * 17.25, backend="inrush")
        got = f(torch.ones(3))
    torch.testing.assert_close(got, torch.tanh(torch.ones(3)) * 17.25)
    assert any("compiler" in str(w.message) for w in seen), [str(w.message) for w in seen]


@pytest.fixture(params=["error", "killed"])
def bad_compiler(request, monkeypatch, tmp_path):
    """A C compiler that fails late: the capture goes on while it works."""
    cc = tmp_path / "cc"
    end = {"error": "echo 'made to fail' >&2; exit 1", "killed": "kill -KILL $$"}[request.param]
    cc.write_text(f"#!/bin/sh\ncat > /dev/null\nsleep 0.3\n{end}\n")
    cc.chmod(0o755)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    return {"error": "made to fail", "killed": "signal: 9"}[request.param]


def threads() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            found.append(file.read().strip())
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads")
def test_a_failing_c_compiler(bad_compiler, monkeypatch):
    f = torch.compile(lambda a: torch.tanh(a) * 18.25, backend="inrush")
    with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(f(torch.ones(3)), torch.tanh(torch.ones(3)) * 18.25)
    told = [str(w.message) for w in seen if "runs eagerly" in str(w.message)]
    assert len(told) == 1 and "C compiler" in told[0]
    report = inrush.last_compile()
    assert "C compiler" in report.fallbacks[0] and not report.direct
    with open(os.path.join(report.graphs[0].reproduction, "error.txt")) as file:
        assert bad_compiler in file.read()
    assert "inrush build" not in threads()
    # Nothing of it is kept for other processes.
    assert not [n for _, _, names in os.walk(os.path.join(os.environ["INRUSH_CACHE_DIR"], "graphs")) for n in names]
    monkeypatch.delenv("CC")
    torch._dynamo.reset()
    torch.testing.assert_close(f(torch.ones(3)), torch.tanh(torch.ones(3)) * 18.25)
    assert inrush.last_compile().fallbacks == []


def test_a_failing_c_compiler_when_strict(bad_compiler, monkeypatch):
    f = torch.compile(lambda a: torch.tanh(a) * 19.25, backend="inrush", options={"strict": True})
    with torch.no_grad():
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=bad_compiler) as raised:
            f(torch.ones(3))
        assert isinstance(raised.value.inner_exception, _native.MachineError)
        monkeypatch.delenv("CC")
        torch.testing.assert_close(f(torch.ones(3)), torch.tanh(torch.ones(3)) * 19.25)


def test_a_full_disk(monkeypatch, tmp_path):
    """Neither the cache nor a temporary folder can be written to: both are a file."""
    (tmp_path / "cache").write_text("")
    for name in ("INRUSH_CACHE_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        got = torch.compile(lambda a: torch.tanh(a) * 20.25, backend="inrush")(torch.ones(3))
    torch.testing.assert_close(got, torch.tanh(torch.ones(3)) * 20.25)
    assert any("build cache" in str(w.message) for w in seen)
