"""Compiled modules in several processes: see `gpu_several.py`."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("case", ["several_buckets", "collectives"])
def test_processes_agree_with_eager(case):
    script = os.path.join(os.path.dirname(__file__), "..", "gpu_several.py")
    done = subprocess.run([sys.executable, script, "--device", "cpu", case], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
