"""Importing this, a script of this folder gets the package `inrush` that is installed, not the sources beside it, which have no native
half: the folder comes last in the search."""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [p for p in sys.path if os.path.abspath(p) != HERE] + [HERE]
