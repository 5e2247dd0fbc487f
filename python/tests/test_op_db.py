"""A share of PyTorch's own operator samples; `python/op_db.py` runs them all."""

import os
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

import op_db

# Which share, of how many samples, in how many seconds.
SHARE = os.environ.get("INRUSH_OP_DB", "1/16")
SAMPLES = int(os.environ.get("INRUSH_OP_DB_SAMPLES", "3"))
SECONDS = float(os.environ.get("INRUSH_OP_DB_SECONDS", "240"))

OPERATORS = op_db.operators()
START = time.monotonic()


@pytest.mark.parametrize("name", op_db.shard(list(OPERATORS), SHARE))
def test_samples(name):
    if time.monotonic() - START > SECONDS:
        pytest.skip("the time for operator samples is over")
    result = op_db.check(name, OPERATORS[name], SAMPLES)
    assert not result.failed, str(result)
