"""GPUs before a compile: which kind PyTorch is built for, whether there are any, and what stands for one in tests."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import torch

from inrush import _native, log


def settings() -> dict[str, Any]:
    """Returns settings of the native half. ``INRUSH_GPU=cuda:h100`` compiles graphs of CUDA tensors for that GPU, on any machine, and
    ``rocm:mi300x`` those of a build for ROCm, whose tensors say ``cuda`` too;
    ``INRUSH_INTERPRET`` does it with graphs of CPU tensors and runs their kernels in Triton's interpreter."""
    interpret = os.environ.get("INRUSH_INTERPRET")
    preset = interpret or os.environ.get("INRUSH_GPU")
    return {"gpu": preset, "interpret": True} if interpret else {"gpu": preset}


def identity() -> list[Any]:
    """Returns what compiled graphs for GPUs depend on, in addition to the graph and the options."""
    found: list[Any] = [os.environ.get("INRUSH_INTERPRET"), os.environ.get("INRUSH_GPU")]
    if build() is not None and module().is_initialized():
        devices = range(module().device_count())
        found.append([(module().get_device_name(i), architecture(i)) for i in devices])
        if build() == "xpu":
            # What cannot be ordered with PyTorch's work is called, until the process's settings are others.
            found.append(_native.refusal("xpu"))
    return found


def build() -> str | None:
    """Returns the vendor's platform that this PyTorch was built for, of those that graphs are compiled for: ``cuda``, ``hip``, ``xpu``,
    or none."""
    return next((name for name in ("cuda", "hip", "xpu") if getattr(torch.version, name, None) is not None), None)


def torch_name() -> str:
    """Returns PyTorch's name of the devices that graphs are compiled for. Builds for ROCm share one with others; the native half tells the
    kinds apart."""
    return "xpu" if build() == "xpu" else "cuda"


def module() -> Any:
    """Returns PyTorch's module of such devices."""
    return getattr(torch, torch_name())


def architecture(index: int) -> Any:
    """Returns the instruction set of a device: AMD's by name, with its features, Intel's by SYCL's number."""
    if build() == "hip":
        return torch.cuda.get_device_properties(index).gcnArchName
    if build() == "xpu":
        return torch.xpu.get_device_capability(index).get("architecture")
    return torch.cuda.get_device_capability(index)


def kind_of(name: str) -> str:
    """Returns the kind that a device type of PyTorch's stands for in this build: ``cuda`` is ``rocm`` in builds for ROCm."""
    return "rocm" if name == "cuda" and build() == "hip" else name


def triton_target() -> tuple[str, str]:
    """Returns Triton's names of the current device's back end and architecture."""
    found = architecture(torch.cuda.current_device())
    return ("hip", found.split(":")[0]) if build() == "hip" else ("cuda", "".join(map(str, found)))


def is_device(tensor: Any) -> bool:
    """Returns true if a tensor is on a GPU, or stands for one that is."""
    return tensor.device.type == torch_name() or bool(os.environ.get("INRUSH_INTERPRET"))


_started = False


def warm() -> None:
    """Starts what builds kernels, in the background, where there is a GPU."""
    global _started
    # Whoever has a tensor on a GPU has initialised it; asking for devices would do that to everybody.
    if _started or build() is None or not module().is_initialized():
        return
    _started = True
    try:
        _native.warm_triton()
    except _native.Error as error:
        # Graphs that need kernels will say so.
        log.compile.warning("%s", error)


def triton_release() -> str:
    """Returns the release of the Triton that is installed, without importing it. Builds for some vendors have other names."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found = [e.dist for e in importlib.metadata.entry_points(group="triton.backends")]
        if not found or found[0] is None:
            raise
        return found[0].version


def check_pointers(pointers: str) -> None:
    """Refuses what this Triton does not have."""
    if pointers != "block":
        return
    import triton
    import triton.language

    if not hasattr(triton.language, "make_block_ptr"):
        raise _native.InputError(f"option `pointers`: Triton {triton.__version__} has no block pointers any more; say 'descriptor' or 'plain'")
