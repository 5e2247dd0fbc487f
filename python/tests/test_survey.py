"""The survey of public models, with models of a few operators."""

import argparse
import os
import sys

import pytest
import torch

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from survey import ahead as survey_ahead
from survey import compiled as survey_compiled
from survey.errors import error
from survey.row import Row

ARGS = argparse.Namespace(size=None, train=False, device="cpu", dynamic=False)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)

    def forward(self, x):
        return {"out": torch.relu(self.linear(x)), "sum": x.float().sum(-1)}


class Counting(torch.nn.Module):
    def forward(self, x):
        return x.nonzero().sum(0) if x.sum() > 0 else x


@pytest.fixture
def small(monkeypatch):
    model = Small().eval()
    monkeypatch.setattr(survey_ahead, "build", lambda name, size: (model, (torch.randn(2, 5),)))
    monkeypatch.setattr(survey_compiled, "build", lambda name, size: (model, (torch.randn(2, 5),)))


def test_a_model_that_agrees_is_right(small):
    row = survey_ahead.ahead("small", ARGS)
    assert row.verdict == "right" and "kernels" in row.text, row
    assert survey_compiled.compiled("small", ARGS).verdict == "right"


def test_a_wrong_package_is_seen(small, monkeypatch):
    import inrush

    real = inrush.load
    monkeypatch.setattr(inrush, "load", lambda path: lambda *x: tuple(o * 1.001 for o in real(path)(*x)))
    assert survey_ahead.ahead("small", ARGS).verdict == "wrong"


def test_what_pytorch_does_not_export_is_told(monkeypatch):
    monkeypatch.setattr(survey_ahead, "build", lambda name, size: (Counting(), (torch.randn(2, 5),)))
    assert survey_ahead.ahead("counting", ARGS).verdict == "no export"


def test_errors_count_what_is_not_finite():
    inf = float("inf")
    want = [torch.tensor([1.0, inf, float("nan")]), torch.zeros(2)]
    assert error([w.clone() for w in want], want) == 0.0
    assert error([torch.tensor([1.0, 2.0, float("nan")]), torch.zeros(2)], want) > 1
    assert error([torch.tensor([1.0, inf, 0.0]), torch.zeros(2)], want) > 1
    assert error([want[0], torch.tensor([0.0, 0.1])], want) > 1


def test_refusals_are_grouped_by_reason():
    rows = [Row(n, "refused", f"UnsupportedError: input_{k} has {k} dimensions") for k, n in enumerate("ab")]
    assert rows[0].reason == rows[1].reason
