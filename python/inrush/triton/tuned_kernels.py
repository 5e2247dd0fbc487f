"""Users' kernels that Triton tunes by measurement: which configuration won, in this process and in the cache folder.

Triton measures at the first call, on the real tensors. What won is compiled in when the graph is compiled once more, and by every
later process: then the kernel is launched like one with a single configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from typing import Any

import torch

from inrush import _native, gpu, log

_lock = threading.Lock()
# Positions among configurations, by key.
_winners: dict[str, int] = {}


def key(kernel: Any, text: str, constants: dict[str, Any], values: dict[str, Any]) -> str | None:
    """A digest of all that decides which configuration wins: source, configurations, the arguments that the kernel is tuned for, dtypes,
    device. ``values`` are fake tensors and numbers by name. None if a call decides about one of them."""
    if kernel.early_config_prune or kernel.perf_model:
        # Functions of the user's leave configurations out at each call.
        return None
    decides = []
    for name in getattr(kernel, "keys", None) or ():
        value = values.get(name)
        if isinstance(value, torch.Tensor) or not isinstance(value, (int, float, str, bool, type(None))):
            return None
        decides.append((name, value))
    dtypes = [(n, str(v.dtype)) for n, v in values.items() if isinstance(v, torch.Tensor)]
    configs = [sorted(c.all_kwargs().items(), key=str) for c in kernel.configs]
    import triton

    known = (text, repr(configs), repr(decides), dtypes, repr(sorted(constants.items(), key=str)), _device(values), triton.__version__)
    return hashlib.sha256(repr(known).encode()).hexdigest()


def _device(values: dict[str, Any]) -> str:
    device = next((v.device for v in values.values() if isinstance(v, torch.Tensor)), torch.device("cpu"))
    return gpu.module().get_device_name(device) if device.type == gpu.torch_name() else device.type


def winner(key: str, count: int) -> int | None:
    """The position of the configuration that won among so many; None if nothing was measured."""
    with _lock:
        known = _winners.get(key)
    if known is None:
        try:
            with open(_path(key), encoding="utf-8") as file:
                known = json.load(file)["configuration"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
    if type(known) is not int or not 0 <= known < count:
        return None
    with _lock:
        _winners[key] = known
    return known


def record(key: str, kernel: Any) -> None:
    """Keeps what won in the launch of a kernel that has just ended."""
    best = getattr(kernel, "best_config", None)
    at = next((k for k, c in enumerate(kernel.configs) if c is best), None)
    if at is None:
        return
    with _lock:
        if _winners.get(key) == at:
            return
        _winners[key] = at
    path = _path(key)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # A process that reads at the same time sees all of it or nothing.
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), delete=False, encoding="utf-8") as file:
            json.dump({"configuration": at, "options": repr(best)}, file)
        os.replace(file.name, path)
    except OSError as error:
        log.compile.debug("what won for a kernel is not kept: %s", error)


def _path(key: str) -> str:
    return os.path.join(str(_native.cache_dir()), "kernels", f"{key}.json")
