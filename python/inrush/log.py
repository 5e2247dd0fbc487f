"""Loggers, and the environment variable that turns them on.

``INRUSH_LOGS`` is a comma-separated list in the manner of ``TORCH_LOGS``: a name shows that logger from INFO on, ``+name``
from DEBUG on, ``-name`` errors only. ``all`` stands for every logger. Names: compile, fallback, cache, package,
output_code (the source of each graph).
"""

from __future__ import annotations

import logging
import os

NAMES = ("compile", "fallback", "cache", "package", "output_code")

compile = logging.getLogger("inrush.compile")
fallback = logging.getLogger("inrush.fallback")
cache = logging.getLogger("inrush.cache")
package = logging.getLogger("inrush.package")
output_code = logging.getLogger("inrush.output_code")


def configure(setting: str | None = None) -> None:
    """Applies ``setting``, by default that of the environment; does nothing when it is empty."""
    setting = os.environ.get("INRUSH_LOGS", "") if setting is None else setting
    if not setting.strip():
        return
    root = logging.getLogger("inrush")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(levelname)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    for item in filter(None, (part.strip() for part in setting.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(item[0], logging.INFO)
        name = item.lstrip("+-")
        if name == "all":
            root.setLevel(level)
        elif name in NAMES:
            logging.getLogger(f"inrush.{name}").setLevel(level)
        else:
            root.warning("INRUSH_LOGS: there is no logger %r; known: all, %s", name, ", ".join(NAMES))
