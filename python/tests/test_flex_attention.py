"""`flex_attention` and `scaled_dot_product_attention` for a GPU, without one: see `interpreted_attention.py`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def rows():
    script = os.path.join(os.path.dirname(__file__), "interpreted_attention.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=1800)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and rows, done.stderr[-3000:]
    return {r["name"]: r for r in rows}


def test_results_are_as_exact_as_those_of_eager(rows):
    failed = [f"{r['name']}: {r['error']:.2e} over {r['bound']:.2e}" for r in rows.values() if not r["error"] <= r["bound"]]
    assert not failed, "\n".join(failed)


def test_results_have_the_strides_of_eager(rows):
    assert not [r["name"] for r in rows.values() if not r["layout"]]


# PyTorch's functions, by the reason.
CALLED = {
    "blocks of 24": ("inrush.attention.default", "a mask with blocks of 24 by 24"),
    "gradients: blocks of 24": ("inrush.attention_grad_query.default", "a mask with blocks of 24 by 24"),
    "gradients: a learned bias": ("higher_order.flex_attention_backward", "gradients of what its score function reads"),
}


def test_one_kernel_holds_all_and_two_hold_gradients(rows):
    for r in rows.values():
        if r["name"] not in CALLED and not r.get("by_user"):
            assert not r["called"], r
            assert sum("attention" in k for k in r["kernels"]) == (2 if r.get("gradients") else 1), r


@pytest.mark.parametrize("name", CALLED)
def test_what_is_refused_is_called_with_a_reason(rows, name):
    op, reason = CALLED[name]
    assert reason in rows[name]["called"][op], rows[name]


def test_attentions_stay_composed_where_the_user_wants_that(rows):
    row = rows["composed: as the user wants"]
    assert not any("attention" in k for k in row["kernels"]), row
    assert row["kept"]["scaled_dot_product_attention"] == "fused attentions are turned off"
