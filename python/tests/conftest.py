"""What all tests share: compiled code is compared with eager, and nothing may fall back."""

from __future__ import annotations

import copy
import math
import os
import random
import tempfile
import warnings

# Before anything compiles: tests neither read nor fill the user's cache.
os.environ["INRUSH_CACHE_DIR"] = tempfile.mkdtemp(prefix="inrush-tests-")
# Tests are of what happens when frames are captured; captures that are kept have a file of their own.
os.environ.setdefault("INRUSH_WARM_START", "0")

import pytest
import torch

import inrush
from inrush import report as reports


# Of a test with so many cases one in `SHARE` runs, and of the tests of a file that is marked `by_commit` one in `RARE`. Which ones the
# seed decides, so that all are run within a few commits.
MANY, SHARE, RARE = 4, 3, 5


def pytest_configure(config):
    config.addinivalue_line("markers", "every_case: run all cases of a test whatever the seed, because they take no time")
    config.addinivalue_line("markers", "by_commit: run a share of the tests of a file, because each takes long")


def pytest_collection_modifyitems(config, items):
    """Draws the cases to run where there is a seed. Whoever runs a file by hand runs all of it."""
    seed = os.environ.get("INRUSH_SEED")
    if seed is None or os.environ.get("INRUSH_EVERY_CASE"):
        return
    tests = {}
    for item in items:
        if item.get_closest_marker("every_case") is None:
            rare = item.get_closest_marker("by_commit") is not None
            name = item.nodeid.partition("::" if rare else "[")[0]
            tests.setdefault((name, RARE if rare else SHARE), []).append(item)
    left_out = set()
    for (name, share), cases in tests.items():
        if len(cases) >= MANY:
            kept = random.Random(f"{seed} {name}").sample(cases, math.ceil(len(cases) / share))
            left_out |= set(cases) - set(kept)
    config.hook.pytest_deselected(items=[i for i in items if i in left_out])
    items[:] = [i for i in items if i not in left_out]


@pytest.fixture(autouse=True)
def fresh():
    """Each test compiles anew, and counts its own compilations; a fallback anywhere is a failure."""
    torch._dynamo.reset()
    # The history has room for so many; when it is full it does not grow.
    reports._history.clear()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="inrush could not compile")
        yield


def copies(args):
    """The same arguments for a second run; what shares memory shares it again."""
    return copy.deepcopy(args)


class Check:
    """Runs a function compiled and eagerly, on equal arguments, and compares results and what became of the arguments."""

    def __call__(self, f, *args, calls=1, rtol=1e-4, atol=1e-5, options=None, **compile_options):
        options = {"strict": True} if options is None else options
        compiled = torch.compile(f, backend="inrush", options=options, **compile_options)
        for _ in range(calls):
            theirs, ours = copies(args), copies(args)
            wanted, got = f(*theirs), compiled(*ours)
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
            same_layout(got, wanted)
        return inrush.last_compile()

    @staticmethod
    def training(model, *args, loss=None, rtol=1e-4, atol=1e-5, steps=1, **compile_options):
        """Loss and every gradient, of parameters and inputs."""
        loss = loss or (lambda out: sum(o.float().square().mean() for o in tensors(out)))
        twin = copy.deepcopy(model)
        compiled = torch.compile(model, backend="inrush", options={"strict": True}, **compile_options)
        for _ in range(steps):
            theirs, ours = copies(args), copies(args)
            wanted, got = loss(twin(*theirs)), loss(compiled(*ours))
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)
            wanted.backward()
            got.backward()
        for (name, p), q in zip(model.named_parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=atol, msg=lambda m: f"gradient of {name}: {m}")
        for (name, p), q in zip(model.named_buffers(), twin.buffers()):
            torch.testing.assert_close(p, q, rtol=rtol, atol=atol, msg=lambda m: f"buffer {name}: {m}")
        for p, q in zip(tensors(ours), tensors(theirs)):
            torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=atol)
        return inrush.last_compile()


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def same_layout(got, wanted):
    """Strides as eager gives them, where they are of any consequence."""
    for a, b in zip(tensors(got), tensors(wanted)):
        if a.layout == torch.strided and a.numel():
            pairs = zip(a.shape, a.stride(), b.stride())
            assert all(n == 1 or s == t for n, s, t in pairs), f"strides {a.stride()}, eager gives {b.stride()}"


@pytest.fixture
def check():
    return Check()
