"""Packages for the tests of `inrush_runtime`: the digits, compiled by the command line, and where its module is."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "examples" / "digits"


def digits(folder):
    """Compiles the example with the command line, which the Rust tests have built."""
    path, tool = folder / "digits.inrush", REPOSITORY / "target" / "release" / "inrush"
    if not tool.exists():
        subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "inrush"], cwd=REPOSITORY, check=True, timeout=1800)
    done = subprocess.run([tool, "compile", DIGITS / "digits.pt2", "-o", path], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return path


def run(script, *args, timeout=120, env=None):
    """Runs a program of Python in a process of its own, which must end well. Gives what it prints."""
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
