"""Sizes of tensors in the call that a graph is captured for."""

from __future__ import annotations

from typing import Any


def traced(size: Any) -> int | None:
    """Returns a size, or its value in the captured call; None for one that data decide."""
    return size if isinstance(size, int) else size.node.hint
