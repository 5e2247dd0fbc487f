"""`inrush.last_compile()`."""

import torch

import inrush
from inrush import compile_options
from inrush.autograd import aot_cache


def test_kernels_times_and_cache():
    f = lambda a: torch.softmax(a * 1.23456, -1).sum()
    torch.compile(f, backend="inrush")(torch.ones(4, 8))
    first = inrush.last_compile()
    assert first.kernels >= 1 and first.extern_calls == 0 and first.fallbacks == []
    assert [g.kind for g in first.graphs] == ["inference"]
    assert {"import", "lower", "fuse", "emit", "build"} <= set(first.stages)
    assert first.seconds >= sum(first.stages.values()) > 0
    assert not first.cache[0].startswith("hit")
    torch._dynamo.reset()
    torch.compile(f, backend="inrush")(torch.ones(4, 8))
    assert inrush.last_compile() is not first
    assert inrush.last_compile().cache[0].startswith("hit")


def test_called_operators_have_reasons_and_lines():
    torch.compile(lambda a: torch.linalg.inv(a) + 1, backend="inrush")(torch.eye(3))
    report = inrush.last_compile()
    called = [c for g in report.graphs for c in g.calls]
    assert any("inv" in c.op for c in called)
    assert all(c.reason for c in called)
    assert any("test_report.py" in (c.line or "") for c in called)
    assert "called 1 times" in str(report)


def test_forward_and_backward_are_one_compilation():
    model = torch.nn.Linear(4, 4)
    torch.compile(model, backend="inrush")(torch.ones(2, 4)).sum().backward()
    assert [g.kind for g in inrush.last_compile().graphs] == ["forward", "backward"]


def test_calls_without_wrappers_where_they_have_nothing_to_do():
    torch.compile(lambda a: a + 1, backend="inrush")(torch.ones(2))
    assert inrush.last_compile().direct

    def mutates(a):
        a.add_(1)
        return a * 2

    torch.compile(mutates, backend="inrush")(torch.ones(2))
    assert not inrush.last_compile().direct


def test_a_cache_that_others_can_write_to_is_not_read(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    assert aot_cache.folder(compile_options.check({})).startswith(str(tmp_path))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(shared))
    with caplog.at_level("WARNING", logger="inrush.cache"):
        assert aot_cache.folder(compile_options.check({})) is None
    assert str(shared) in caplog.text
