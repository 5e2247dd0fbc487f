"""The way of a graph on a GPU, without one: see `interpreted.py`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def rows():
    script = os.path.join(os.path.dirname(__file__), "interpreted.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=1200)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and rows, done.stderr[-3000:]
    return {r["name"]: r for r in rows}


def test_results_are_those_of_eager(rows):
    failed = [f"{r['name']}: {r['failed']}" for r in rows.values() if r["failed"]]
    assert not failed, "\n".join(failed)


def test_kernels_are_made_for_the_gpu(rows):
    assert rows["pointwise"]["kernels"] > 0 and not rows["pointwise"]["called"]


def test_products_are_a_librarys(rows):
    assert rows["product"]["libraries"] == ["aten.mm.default", "aten.addmm.default"]
    assert "aten.convolution.default" in rows["convolutional, training"]["libraries"]


def test_small_convolutions_are_products_and_sums(rows):
    for name in ("convolutional, eval", "small convolutions, 1", "small convolutions, 3", "a small convolution as the result"):
        assert "aten.convolution.default" not in rows[name]["libraries"] and not rows[name]["called"], rows[name]
    # The stem, the head, and two products of points; what has a filter for each channel is a sum.
    assert rows["small convolutions, 1"]["libraries"] == ["aten.mm.default"] * 4
    assert "aten.convolution.default" in rows["a large convolution among small ones"]["libraries"]


def test_large_products_take_their_activations_along(rows):
    row = rows["large products with activations"]
    assert row["libraries"] == ["aten._addmm_activation.default"] * 3 and not row["kernels"] and not row["called"], row


def test_short_products_are_kernels_with_what_follows(rows):
    for dtype in ("bfloat16", "float16"):
        row = rows[f"short products, torch.{dtype}"]
        assert row["kernels"] > 0 and not row["libraries"] and not row["called"], row


def test_one_row_is_summed_by_kernels(rows):
    for dtype in ("float32", "float16", "bfloat16"):
        row = rows[f"products of one row, torch.{dtype}"]
        assert row["kernels"] > 0 and not row["libraries"] and not row["called"], row


def test_the_greatest_few_are_found_by_kernels(rows):
    assert rows["greatest few of one row"]["kernels"] > 0 and not rows["greatest few of one row"]["called"]


def test_rows_are_sorted_by_kernels(rows):
    for dtype in ("float32", "float16", "bfloat16", "int32", "uint8"):
        row = rows[f"sorted rows, torch.{dtype}"]
        assert row["kernels"] > 0 and not row["called"] and not row["libraries"], row
    # Values of eight bytes leave no room for a position.
    assert "aten.sort.stable" in rows["sorted rows, torch.int64"]["libraries"]


def test_kernels_convert_floats_of_eight_bits(rows):
    for name in ("eight bits", "eight bits without a type of Triton's"):
        assert not rows[name]["called"] and rows[name]["kernels"] > 0


def test_nothing_is_called_that_need_not_be(rows):
    for name in ("reductions", "product", "views", "in_place", "numbers", "attention, eval", "convolutional, eval"):
        assert not rows[name]["called"], rows[name]


def test_a_mask_is_made_once(rows):
    assert len(rows["masks"]["libraries"]) == 3 and rows["masks"]["kernels"] == 1, rows["masks"]


def test_pictures_of_half_types_get_channels_last(rows):
    # The input and two filters are laid out, by one segment or one launch; the picture among the results is laid back.
    assert rows["channels last"]["relaid"] == 4
    # The input and the filter, and what a view reads that the layout does not allow.
    assert rows["channels last before a view"]["relaid"] == 3
