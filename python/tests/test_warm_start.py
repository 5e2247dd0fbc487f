"""Captured frames that another process reads: `inrush.warm_start()`."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import json, sys
import torch, inrush

inrush.warm_start()

def scale(a):
    return a * 1.5

class Block(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.act = act

    def forward(self, x):
        return self.act(scale(self.inner(x)))

def breaks(a):
    b = torch.sin(a) + 1
    print("between", file=sys.stderr)
    return torch.cat([b, a * 2])

def wrapped(f):
    return lambda *a: f(*a) + 1

@wrapped
def decorated(a):
    return torch.exp(a)

torch.manual_seed(0)
x = torch.linspace(-2, 2, 24).view(3, 8)
act = {"gelu": torch.nn.functional.gelu, "relu": torch.nn.functional.relu}[sys.argv[1]]
out = {}

def run(name, f, *args, train=False):
    before = len(inrush.compilations())
    g = torch.compile(f, backend="inrush")
    with torch.set_grad_enabled(train):
        want, got = f(*args), g(*args)
        if train:
            params = list(f.parameters())
            want, got = (torch.autograd.grad(y.square().sum(), params) for y in (want, got))
            want, got = (torch.cat([t.flatten() for t in y]) for y in (want, got))
    torch.testing.assert_close(got, want)
    caches = [c for r in inrush.compilations()[before:] for c in r.cache]
    out[name] = {"captured": not caches or any("not captured" not in c for c in caches)}

model = Block(act)
run("eval", model, x)
run("other batch", model, torch.cat([x, x]))
run("train", Block(act), x, train=True)
run("breaks", breaks, x)
run("decorated", decorated, x)
print(json.dumps(out))
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def run(*args):
        env = {**os.environ, "INRUSH_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, str(script), *args], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    run.script = script
    run.cache = tmp_path / "cache"
    return run


def test_another_process_captures_nothing_and_checks_what_was_captured(start):
    cold = start("gelu")
    assert all(r["captured"] for r in cold.values())
    warm = start("gelu")
    assert not any(r["captured"] for r in warm.values()), warm
    # Another function as attribute of the module: the capture does not hold, results are right.
    other = start("relu")
    assert other["eval"]["captured"] and other["train"]["captured"] and not other["breaks"]["captured"]
    # Source that has changed, and files that were damaged, are captured again.
    start.script.write_text(start.script.read_text().replace("a * 1.5", "a * 2.5"))
    assert all(r["captured"] for r in start("gelu").values())
    files = [p for p in start.cache.glob("graphs/*/captures/*") if p.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert all(r["captured"] for r in start("gelu").values())


def test_names_hold_in_any_process():
    import torch

    from inrush import _warm

    for value in (torch, torch.cat, torch.nn.functional.gelu, torch.nn.Linear, torch.nn.Linear.forward, len, None, True):
        assert _warm.named(_warm.name_of(value)) is value
    assert _warm.name_of(lambda a: a + 1) == _warm.name_of(lambda a: a + 1) != _warm.name_of(lambda a: a + 2)
    for value in (object(), [1], torch.nn.Linear(1, 1), torch.ones(1)):
        with pytest.raises(_warm.Unnamed):
            _warm.name_of(value)


def test_other_backends_are_left_alone():
    import torch

    import inrush

    inrush.warm_start()
    try:
        torch._dynamo.reset()
        f = torch.compile(lambda a: a + 1, backend="eager")
        assert f(torch.ones(2)).tolist() == [2, 2]
    finally:
        inrush.warm_start(False)
