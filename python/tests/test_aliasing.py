"""Inputs that share memory and are written to, one way after the other: in one capture's life, after a reset, restored, in another process."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

import inrush

WAYS = {
    "apart": lambda s: (s[:4].clone(), s[2:6].clone()),
    "overlapping": lambda s: (s[:4], s[2:6]),
    "reversed": lambda s: (s[2:6], s[:4]),
    "same": lambda s: (s[:4],) * 2,
    "same place": lambda s: (s[:4], s[:4]),
    "side by side": lambda s: (s[:4], s[4:8]),
    "two arrays": lambda s: (torch.from_numpy(s.numpy())[:4], torch.from_numpy(s.numpy())[2:6]),
    "bits": lambda s: (s[:4], s.view(torch.int32)[2:6]),
}
GLOBAL = torch.arange(8.0)


def written(a, b):
    a.mul_(2)
    b.add_(1)
    return a + b


def read(a, b):
    return a * 2 + b, a.view(2, 2)


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(8.0))
        self.register_buffer("state", torch.arange(8.0))

    def forward(self, a):
        a.mul_(2)
        return self.state * self.weight.detach() + a


def values(out):
    return [t.clone() for t in (out if isinstance(out, tuple) else (out,))]


def run(f, way):
    args = WAYS[way](torch.arange(8.0) + 1)
    return values(f(*args)) + values(args)


# What is written and what is read, of a memory of 64 floats. PyTorch's own test says of each that they are apart.
MISSED = {
    "columns and later rows": lambda s: (s.view(8, 8)[:, :2], s.view(8, 8)[1:]),
    "later rows and columns": lambda s: (s.view(8, 8)[1:], s.view(8, 8)[:, :2]),
    "a part of later rows": lambda s: (s.view(8, 8)[:, 1:5], s.view(8, 8)[3:5, 4:]),
    "wider": lambda s: (s[4:8], s.view(torch.float64)[2:4]),
    "narrower": lambda s: (s.view(torch.float64)[2:4], s[4:8]),
    "bytes": lambda s: (s[4:6], s.view(torch.int8)[16:24]),
}
# Matrices of one memory that are apart.
APART = {
    "columns": lambda s: (s.view(8, 8)[:, :2], s.view(8, 8)[1:, 2:]),
    "rows": lambda s: (s.view(8, 8)[:3], s.view(8, 8)[3:]),
    "rows past the last": lambda s: (s.view(8, 8)[:3, :2], s.view(8, 8)[3:]),
    "wider": lambda s: (s[4:8], s.view(torch.float64)[8:12]),
}


def written_and_read(a, b):
    a.mul_(2)
    return b + 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("way", MISSED)
def test_overlaps_that_tracing_misses(way, dynamic, monkeypatch):
    # Views of other dtypes have no form in AOTAutograd.
    monkeypatch.setattr("inrush.fallback.report_failure", lambda gm, kind, error: (str(error), None))
    results = []
    for f in (written_and_read, torch.compile(written_and_read, backend="inrush", dynamic=dynamic)):
        data = torch.arange(64.0) + 1
        results.append((f(*MISSED[way](data)).clone(), data))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("way", APART)
def test_matrices_of_one_memory_that_are_apart_are_compiled(way):
    compiled = torch.compile(written_and_read, backend="inrush", options={"strict": True}, fullgraph=True)
    torch._dynamo.reset()
    results = []
    for f in (written_and_read, compiled):
        data = torch.arange(64.0) + 1
        results.append((f(*APART[way](data)).clone(), data))
    torch.testing.assert_close(*results, rtol=0, atol=0)
    # Nothing is made one input of the whole memory.
    assert len(inrush.last_compile().graphs) == 1 and inrush.last_compile().graphs[0].fallback is None


def transposed(rows, columns, before, after):
    """A matrix and its transpose, of which autograd knows no base, with other elements of the storage before and after."""
    data = torch.arange(float(before + rows * columns + after))
    matrix = data.detach()[before : before + rows * columns].view(rows, columns).detach()
    return matrix, matrix.T.detach()


def shifted(rows, columns, before, after):
    """Two matrices of which the second begins four elements later."""
    data = torch.arange(float(before + rows * columns + after + 4))
    return tuple(data.as_strided((rows, columns), (columns, 1), start).detach() for start in (before, before + 4))


def changed_first(a, b):
    a.mul_(2)
    return b + 1, a.sum(0)


def changed_both(a, b):
    a.mul_(2)
    b.add_(1)
    return b + 1, a.sum(0), a


@torch._dynamo.config.patch(recompile_limit=16)
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("f", [changed_first, changed_both])
@pytest.mark.parametrize("pair", [transposed, shifted])
def test_storages_of_any_size_without_a_base(pair, f, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="inrush", dynamic=dynamic, options={"strict": True}, fullgraph=True)
    for case in ((5, 7, 0, 0), (5, 9, 0, 0), (4, 9, 3, 0), (6, 8, 0, 11), (6, 8, 2, 5), (16, 3, 0, 0), (6, 8, 0, 100), (6, 8, 0, 11)):
        expected, got = pair(*case), pair(*case)
        torch.testing.assert_close(compiled(*got), f(*expected), rtol=0, atol=0, msg=str(case))
        torch.testing.assert_close(got, expected, rtol=0, atol=0, msg=str(case))


def test_a_view_of_a_result_of_another_graph_is_changed():
    def f(x):
        clamped = x.clamp(-1, 1)
        turned = clamped.mT
        torch.add(turned, turned, out=turned)
        turned.transpose(-1, -1).add_(turned[:4, :4].sum())
        return clamped * 2, turned

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="inrush", dynamic=True)
    for columns in (17, 16, 4):
        x = torch.randn(33, columns)
        torch.testing.assert_close(compiled(x), f(x))


@torch._dynamo.config.patch(recompile_limit=2 * len(WAYS))
@pytest.mark.parametrize("f", [written, read])
@pytest.mark.parametrize("mode", ["one life", "reset", "restored"])
def test_each_way_after_others(f, mode, tmp_path, monkeypatch):
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path))
    # What has no form in AOTAutograd runs eagerly, which the report says.
    monkeypatch.setattr("inrush.fallback.report_failure", lambda gm, kind, error: (str(error), None))
    inrush.warm_start(mode == "restored")
    before = inrush.captures().get("restored", {}).get("", 0)
    try:
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="inrush")
        for way in (*WAYS, *reversed(WAYS)):
            torch.testing.assert_close(run(compiled, way), run(f, way), rtol=0, atol=0, msg=lambda m: f"{way}: {m}")  # noqa: B023
            if mode != "one life":
                torch._dynamo.reset()
        if mode == "restored":
            assert inrush.captures()["restored"][""] > before
    finally:
        inrush.warm_start(False)


def test_buffers_parameters_and_globals_are_inputs_too():
    model, plain = Holder(), Holder()
    compiled = torch.compile(model, backend="inrush", options={"strict": True})
    with torch.no_grad():
        for pick in (lambda m: torch.ones(8), lambda m: m.state, lambda m: m.state.view(8), lambda m: m.weight.data, lambda m: torch.ones(8)):
            torch.testing.assert_close(compiled(pick(model)), plain(pick(plain)))
            torch.testing.assert_close(model.state_dict(), plain.state_dict())

    def f(a):
        a.add_(1)
        return GLOBAL * a

    g = torch.compile(f, backend="inrush", options={"strict": True})
    for pick in (lambda: torch.ones(8), lambda: GLOBAL[:], lambda: torch.ones(8)):
        GLOBAL.copy_(torch.arange(8.0))
        want = f(pick())
        GLOBAL.copy_(torch.arange(8.0))
        torch.testing.assert_close(g(pick()), want)


def test_training_with_state_that_overlaps_an_argument():
    def f(state, a, w):
        state.mul_(0.5)
        return (a * w).sum()

    compiled = torch.compile(f, backend="inrush")
    for shared in (False, True, False):
        results = []
        for g in (f, compiled):
            state, w = torch.arange(1.0, 5.0), torch.ones(4, requires_grad=True)
            g(state, state[:] if shared else state.clone(), w).backward()
            results.append((state, w.grad))
        torch.testing.assert_close(*results)


def test_views_apart_and_what_is_only_read_are_captured_once():
    data = torch.arange(64.0)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(inrush.backend)

    def f(a, b, out):
        out.copy_(a + b)

    compiled = torch.compile(f, backend=counter, dynamic=False)
    for k in range(6):
        # Windows that overlap are read, and a part of another's storage is written.
        out = torch.empty(8, 4)[k]
        compiled(data[k : k + 4], data[k + 2 : k + 6], out)
        assert torch.equal(out, data[k : k + 4] + data[k + 2 : k + 6])
    assert counter.frame_count == 1


def test_why_overlapping_inputs_are_refused():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="inputs that are changed overlap: .*different dtypes"):
        run(torch.compile(written, backend="inrush", options={"strict": True}), "bits")
    with pytest.raises(Exception, match="inputs that are changed overlap: they share memory under different storages"):
        run(torch.compile(written, backend="inrush", options={"strict": True}), "two arrays")


def each_in_a_process(folder):
    """Forks before anything is compiled: a first process sees arguments that share memory in one way, a second one first in the
    other ways. Prints how often captures were restored, with the warm start on and off."""
    ways = ("apart", "overlapping", "same")
    # What takes long to import is imported once.
    import torch._dynamo.convert_frame
    import torch._functorch._aot_autograd.autograd_cache

    assert inrush.backend
    reader, writer = os.pipe()
    orders = (ways, ways[::-1], ways[1:] + ways[:1])
    for enabled, (first, *others) in (*((True, order) for order in orders), (False, orders[0]), (False, orders[1])):
        os.environ["INRUSH_CACHE_DIR"] = os.path.join(folder, f"{enabled} {first}")
        for seen in ([first], [*others, first]):
            child = os.fork()
            if child == 0:
                # Whatever is raised is the exit code of the child, and not the end of the parent's work.
                code = 1
                try:
                    os.write(writer, b"%d\n" % calls(seen, enabled))
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0, (enabled, first, seen)
    os.close(writer)
    with os.fdopen(reader) as file:
        print(json.dumps([int(line) for line in file]))


def calls(seen, enabled):
    warnings.simplefilter("ignore")
    inrush.warm_start(enabled)
    for way in seen:
        torch._dynamo.reset()
        torch.testing.assert_close(run(torch.compile(written, backend=inrush.backend), way), run(written, way), rtol=0, atol=0, msg=way)
    return inrush.captures().get("restored", {}).get("", 0)


def test_a_second_process_that_sees_other_ways_first(tmp_path):
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    on, off = (json.loads(done.stdout)[k : k + 6] for k in (0, 6))
    # The second process finds what the first one captured for the way that it has in common with it.
    assert on == [0, 1, 0, 1, 0, 1] and not any(off), (on, off)


if __name__ == "__main__":
    each_in_a_process(sys.argv[1])
