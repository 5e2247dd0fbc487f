"""Replaces functions of PyTorch where it has no interface for what inrush needs.

:mod:`inrush.patches.table` lists all of them. Each belongs to a *feature*. A feature is installed as a whole, and only if the
release has all its places, with the parameters that the replacements use. Otherwise it is off: the reason is logged once and
shown by :func:`inrush.torch_patches`, and everything else works.
"""

from __future__ import annotations

import threading
from typing import Any

from inrush import log
from inrush.patches import table
from inrush.patches.row import Patch

_lock = threading.RLock()
# The reason for which a feature is off, None for one that is on, by feature.
_features: dict[str, str | None] = {}


def install(*features: str) -> None:
    """Installs features, each once; without names all that captures on disk do not need."""
    with _lock:
        for feature in features or table.COMPILER_FEATURES:
            if feature not in _features:
                _features[feature] = _install([p for p in table.patches() if p.feature == feature])
                if _features[feature] is not None:
                    log.compile.warning("%s: off with this release of PyTorch: %s", feature, _features[feature])


def _install(patches: list[Patch]) -> str | None:
    """Installs the patches of a feature all or none. Returns the reason for none."""
    made = []
    for patch in patches:
        try:
            made.append((patch.place, patch.make()))
        except Exception as error:
            return str(error) or type(error).__name__
    for place, replacement in made:
        if replacement is not None:
            place.write(replacement)
    return None


def is_on(feature: str) -> bool:
    """Returns true if a feature is installed."""
    return _features.get(feature, "not installed") is None


def why_off(feature: str) -> str | None:
    """Returns the reason for which a feature is off, None for one that is on."""
    return _features.get(feature, "not installed")


def torch_patches() -> list[dict[str, Any]]:
    """Returns all functions of PyTorch that inrush replaces: target, feature, why, known releases, and the feature's state.

    The state is `on`, `not installed`, or the reason for which the feature is off with this release of PyTorch.
    """
    return [
        {"target": p.place.text, "feature": p.feature, "why": p.why, "releases": p.releases, "state": why_off(p.feature) or "on"}
        for p in table.patches()
    ]
