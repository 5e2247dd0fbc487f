"""Files of the capture cache: one captured frame each, named by the digest of its content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from dataclasses import dataclass, field
from typing import Any

from inrush import log

# Captures that are kept of one frame: those used last. One that does not hold costs some 10 ms to find out.
MOST = 8


@dataclass
class Guards:
    """The conditions under which a capture holds."""

    state: bytes = b""
    """PyTorch's guards."""
    identities: list[tuple[Any, tuple[str, ...]]] = field(default_factory=list)
    """Guards that compare identities, with the names of the objects that they found."""
    types: dict[tuple[str, str], str] = field(default_factory=dict)
    """Digests of classes whose instances were guarded."""
    modules: list[tuple[Any, str]] = field(default_factory=list)
    """Guards on modules, with digests of their structure."""
    aliasing: list[dict[str, Any]] = field(default_factory=list)
    """Overlap of the inputs of graphs that change inputs."""
    constants: list[tuple[tuple[str, str, str], tuple[Any, ...], dict[str, Any], str]] = field(default_factory=list)
    """Calls of functions whose results are declared constant, in their order, with the results."""
    files: dict[str, str] = field(default_factory=dict)
    """Digests of traced source files."""
    operators: dict[str, str] = field(default_factory=dict)
    """Digests of custom operators."""


@dataclass
class Stored:
    """A captured frame."""

    guards: Guards
    code: Any
    imports: dict[str, str]
    values: dict[str, tuple[str, ...]]
    """Names of the objects that Dynamo put among the globals, such as classes of results."""
    resumes: dict[str, Any]
    """Code that goes on after graph breaks, by its name."""
    graphs: dict[str, bytes]
    """AOTAutograd's entries, by the names under which the captured code calls them."""


def checksum(content: bytes) -> str:
    """Returns the name of a capture with this content. A damaged file may well unpickle, to something else."""
    return hashlib.sha256(content).hexdigest()[:32]


def write(folder: str, stored: Stored) -> None:
    """Writes a capture whole or not at all, and drops those of the folder that were used longest ago."""
    os.makedirs(folder, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        content = pickle.dumps(stored, protocol=pickle.HIGHEST_PROTOCOL)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, os.path.join(folder, checksum(content)))
    except BaseException:
        os.unlink(temporary)
        raise
    for old in kept_in(folder)[MOST:]:
        # Another process may have dropped it.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)


def kept_in(folder: str) -> list[str]:
    """Returns the captures in a folder, the one that was used last first."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    # Another process may have dropped it.
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.stat().st_mtime_ns, entry.path))
    except FileNotFoundError:
        # Nothing was kept yet.
        pass
    except OSError as error:
        log.cache.warning("captures cannot be read: %s", error)
    return [path for _, path in sorted(found, reverse=True)]


def used(path: str) -> None:
    """Notes that a capture was used now. In a cache that cannot be written nothing is dropped either."""
    with contextlib.suppress(OSError):
        os.utime(path)
