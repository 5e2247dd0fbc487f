"""Counts of what became of captured frames: :func:`captures`."""

from __future__ import annotations

import collections
import types

from inrush import log

_counts: collections.Counter[tuple[str, str]] = collections.Counter()


def captures() -> dict[str, dict[str, int]]:
    """Returns how often each capture of this process was restored, kept, not restored, not captured or not kept, by reason."""
    out: dict[str, dict[str, int]] = {}
    for (what, why), count in sorted(_counts.items()):
        out.setdefault(what, {})[why] = count
    return out


def count(what: str, why: str, frame: types.CodeType) -> None:
    """Counts an outcome and logs it."""
    _counts[what, why] += 1
    log.cache.info("%s: capture %s%s", frame.co_name, what, f": {why}" if why else "")
