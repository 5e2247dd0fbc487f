"""The second tier of the cache, for what Python keeps: graphs and captures. Kernels go through it without Python.

Entries are the files of a folder, whose names are digests of their contents. Keys do not depend on paths and times of this
machine: other machines with the same inrush find them. What is found is written into the folder of this machine's cache, and read
from there with its checks.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pathlib
import platform
from typing import Any

from inrush import _native, fallback, gpu
from inrush.compile_options import Options

# Longest wait at the end of the process for what is being stored, in seconds.
FINISH = 5.0


def is_on() -> bool:
    """Returns true if entries can be found and stored."""
    status = _native.remote_status()
    return status is not None and status["off"] is None


def remote_cache() -> dict[str, Any] | None:
    """Returns what became of the second tier of the cache in this process; None if ``INRUSH_REMOTE_CACHE`` names none.

    ``tier`` is its address, ``off`` why it is not used any more; ``hits``, ``misses``, ``refused``, ``stored`` and ``dropped`` count entries.
    """
    return _native.remote_status()


@functools.cache
def _contents() -> str:
    """Returns the digest of inrush itself: the native half and the modules of Python."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parent
    for path in sorted([pathlib.Path(_native.__file__), *root.rglob("*.py")]):
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# The digests that stand for folders of this machine, on all machines.
_shared: dict[str, str] = {}


def share(folder: str, options: dict[str, Any] | list[Any]) -> None:
    """Makes a folder of entries known, for graphs that are compiled under these options."""
    if folder not in _shared and is_on():
        parts = [_contents(), platform.python_version(), platform.machine(), _native.cpu(), options, gpu.identity()]
        _shared[folder] = hashlib.sha256(repr(parts).encode()).hexdigest()


def _key(folder: str, name: str) -> str | None:
    shared = _shared.get(folder)
    return None if shared is None else hashlib.sha256(f"{shared} {name}".encode()).hexdigest()


def fetch(kind: str, folder: str, name: str, into: str) -> list[str]:
    """Writes the files of an entry into a folder; gives the names of those that it did not have."""
    key = _key(folder, name)
    return [] if key is None else _native.remote_fetch(kind, key, into)


def store(kind: str, folder: str, name: str, files: list[str]) -> None:
    """Has the files of an entry stored, in the background, and tells the cache's bound of them."""
    _native.cache_stored(files)
    key = _key(folder, name)
    if key is not None and files:
        _native.remote_store(kind, key, files)


def files_in(folder: str) -> list[str]:
    """Returns the files in a folder that are not being written."""
    try:
        with os.scandir(folder) as found:
            return sorted(e.path for e in found if not e.name.startswith(".") and e.is_file())
    except OSError:
        return []


@functools.cache
def finish_at_exit() -> None:
    """Has the process wait at its end for what is being stored then."""
    atexit.register(finish)


def finish() -> None:
    """Waits for what is being stored, a few seconds at most."""
    _native.finish_cache(FINISH)
    fallback.tell_cache()


def chosen(options: Options) -> list[tuple[str, Any]]:
    """Returns the options that decide what graphs are compiled to."""
    return sorted((k, v) for k, v in options.as_dict().items() if k != "warm_start")
