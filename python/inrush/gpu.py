"""GPUs before a compile: whether there are any, and what stands for one in tests."""

from __future__ import annotations

import os
from typing import Any

import torch

from inrush import _native, log


def settings() -> dict[str, Any]:
    """Returns settings of the native half. ``INRUSH_GPU=cuda:h100`` compiles graphs of CUDA tensors for that GPU, on any machine;
    ``INRUSH_INTERPRET`` does it with graphs of CPU tensors and runs their kernels in Triton's interpreter."""
    interpret = os.environ.get("INRUSH_INTERPRET")
    preset = interpret or os.environ.get("INRUSH_GPU")
    return {"gpu": preset, "interpret": True} if interpret else {"gpu": preset}


def identity() -> list[Any]:
    """Returns what compiled graphs for GPUs depend on, in addition to the graph and the options."""
    found: list[Any] = [os.environ.get("INRUSH_INTERPRET"), os.environ.get("INRUSH_GPU")]
    if torch.version.cuda is not None and torch.cuda.is_initialized():
        devices = range(torch.cuda.device_count())
        found.append([(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in devices])
    return found


def is_device(tensor: Any) -> bool:
    """Returns true if a tensor is on a GPU, or stands for one that is."""
    return tensor.device.type == "cuda" or bool(os.environ.get("INRUSH_INTERPRET"))


_started = False


def warm() -> None:
    """Starts what builds kernels, in the background, where there is a GPU."""
    global _started
    # Whoever has a tensor on a GPU has initialised it; asking for devices would do that to everybody.
    if _started or not torch.cuda.is_initialized():
        return
    _started = True
    try:
        _native.warm_triton()
    except _native.Error as error:
        # Graphs that need kernels will say so.
        log.compile.warning("%s", error)


def check_pointers(pointers: str) -> None:
    """Refuses what this Triton does not have."""
    if pointers != "block":
        return
    import triton
    import triton.language

    if not hasattr(triton.language, "make_block_ptr"):
        raise _native.InputError(f"option `pointers`: Triton {triton.__version__} has no block pointers any more; say 'descriptor' or 'plain'")
