"""Runs kernels of GPUs in Triton's interpreter, over the CPU's memory: for tests on machines without a GPU.

With ``INRUSH_INTERPRET=cuda:h100`` graphs of the CPU are compiled for that device and their kernels come here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import tempfile
from typing import Any

# The interpreter is chosen when a kernel is defined.
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from inrush.triton import interpreter_shims

_DTYPES = {
    "i1": torch.bool, "u8": torch.uint8, "i8": torch.int8, "u16": torch.uint16, "i16": torch.int16,
    "u32": torch.uint32, "i32": torch.int32, "u64": torch.uint64, "i64": torch.int64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip


def kernel(text: str, function: str, signature: list[tuple[str, str]], constants: list[tuple[str, int]]) -> Any:
    """A kernel that :func:`launch` takes."""
    interpreter_shims.patch()
    import triton

    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    try:
        spec = importlib.util.spec_from_file_location(function, file.name)
        module = importlib.util.module_from_spec(spec)
        # Kernels of users are compiled by Dynamo as functions that nobody interprets: they turn this off.
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            spec.loader.exec_module(module)
    finally:
        os.unlink(file.name)
    interpreter_shims.supply(module)
    constants = {**getattr(module, "CONSTANTS", {}), **dict(constants)}
    return getattr(module, function), signature, constants


# The interpreter takes no booleans: they are integers there.
_PACKED = {"i1": "B", "i32": "i", "u32": "I", "u64": "Q", "fp32": "f"}


# In the place of a tensor map there are the address, the sizes and the strides.
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")


def _unpack(packed: bytes, at: int, codes: str) -> tuple[list[Any], int]:
    """Values of one size each, at the next multiple of it, and where they end."""
    size = struct.calcsize(codes[0])
    at = -(-at // size) * size
    return list(struct.unpack_from("<" + codes, packed, at)), at + size * len(codes)


def launch(made: Any, grid: list[int], packed: bytes) -> None:
    """Runs a grid of programs on arguments as a device reads them."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    function, signature, constants = made
    values, at = dict(constants), 0
    for name, t in signature:
        described = _DESCRIPTOR.fullmatch(t)
        if not described:
            (value,), at = _unpack(packed, at, _PACKED.get(t, "q"))
            values[name] = _tensor(value, _DTYPES[t[1:]]) if t.startswith("*") else value
            continue
        block = [int(n) for n in described[2].split(",")]
        (address,), at = _unpack(packed, at, "q")
        sizes, at = _unpack(packed, at, "i" * len(block))
        strides, at = _unpack(packed, at, "q" * len(block))
        values[name] = TensorDescriptor(_tensor(address, _DTYPES[described[1]]), sizes, strides, block)
    with np.errstate(all="ignore"):
        function[tuple(grid)](**values)


def run(kernel: Any, grid: Any, values: dict[str, Any]) -> None:
    """A kernel of the user's as Triton itself would launch it, in its first configuration: nothing is measured here."""
    interpreter_shims.patch()
    from triton.runtime.interpreter import InterpretedFunction

    function = kernel
    while hasattr(function, "fn") and hasattr(function.fn, "fn"):
        function = function.fn
    configs = getattr(kernel, "configs", None) or []
    constants = configs[0].kwargs if configs else {}
    if configs:
        kernel.best_config = configs[0]
    with np.errstate(all="ignore"):
        InterpretedFunction(function.fn)[tuple(grid[0])](**{**values, **constants})


def _tensor(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor at an address; the interpreter reads and writes beyond its one element."""
    memory = (ctypes.c_byte * 16).from_address(address or _NOTHING.data_ptr())
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


_NOTHING = torch.zeros(64, dtype=torch.uint8)
