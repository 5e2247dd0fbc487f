"""Additions to Triton's interpreter that let it run the kernels that inrush writes.

Needs nothing of the package: `triton_check.py` takes this file alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np


@functools.cache
def patch() -> None:
    """Mends the interpreter, once."""
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    # Scalars, arrays of one element there, count loops: newer versions of numpy do not convert those.
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched

    # The result of a comparison keeps its operands' type there, and a scalar one becomes a tile of that type.
    spread = interpreter.InterpreterBuilder.create_splat

    def create_splat(self: Any, shape: Any, arg: Any) -> Any:
        if arg.data.dtype == bool:
            arg = interpreter.TensorHandle(arg.data, tl.int1)
        return spread(self, shape, arg)

    interpreter.InterpreterBuilder.create_splat = create_splat

    # A cast to bfloat16 cuts bits off there. Devices round to the nearest, and to the even one of two.
    convert = interpreter._convert_float
    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert_float(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if str(source) in EIGHT_BITS and target == tl.float32:
            return numbers(EIGHT_BITS[str(source)])[np.asarray(data).view(np.uint8)]
        if source != tl.float32 or target != tl.bfloat16 or mode == towards_zero:
            return convert(data, source, target, mode)
        bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
        nearest = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
        quiet = bits | np.uint32(0x400000)
        return (np.where(np.isnan(data), quiet, nearest) >> 16).astype(np.uint16).reshape(np.shape(data))

    interpreter._convert_float = convert_float

    # bfloat16 is kept in 16-bit integers there, and the product of matrices multiplies these.
    create_dot = interpreter.InterpreterBuilder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(self, widened(a), widened(b), *rest)

    def widened(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        bits = np.asarray(x.data).view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    interpreter.InterpreterBuilder.create_dot = dot

    # Elements are combined one by one there, which is minutes for long rows: sorts exchange keys by sums without carry, and
    # maxima in which NaN wins are functions of the kernels.
    apply_reduction = interpreter.ReduceOps.apply_impl
    whole = {"_xor_combine": np.bitwise_xor, "nan_max": np.maximum, "nan_min": np.minimum}

    def apply_impl(self: Any, input: Any) -> Any:
        combine = whole.get(getattr(getattr(self.combine_fn, "fn", None), "__name__", ""))
        if combine is None or self.axis is None:
            return apply_reduction(self, input)
        (x,) = input
        data = combine.reduce(x.handle.data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(data, x.dtype)]

    interpreter.ReduceOps.apply_impl = apply_impl


# PyTorch's names of Triton's floats of eight bits.
EIGHT_BITS = {"fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2"}


@functools.cache
def numbers(kind: str) -> Any:
    """The numbers of all codes of a float of eight bits. The interpreter takes NaN and infinity for numbers."""
    import torch

    return torch.arange(256, dtype=torch.uint8).view(getattr(torch, kind)).float().numpy()


def supply(module: Any) -> None:
    """Gives a module of kernels what the interpreter lacks."""
    if hasattr(module, "gdc_wait"):
        # Grids run one after the other here.
        module.gdc_wait = lambda: None
    if hasattr(module, "libdevice"):
        module.libdevice = libdevice()


@functools.cache
def libdevice() -> Any:
    """The device's library of functions, which the interpreter lacks."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def whole(f: Any) -> Any:
        return np.vectorize(f, otypes=[np.float64])

    def lgamma(x: float) -> float:
        try:
            return math.lgamma(x)
        except (ValueError, OverflowError):
            return math.nan if math.isnan(x) else math.inf

    names = "trunc tan sinh cosh tanh expm1 log1p log10 hypot nextafter copysign fmod"
    functions = {name: getattr(np, name) for name in names.split()}
    functions |= {
        "nearbyint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "pow": np.power,
        "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
        "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
        "erf": whole(math.erf), "erfc": whole(math.erfc), "lgamma": whole(lgamma),
    }  # fmt: skip

    class Library:
        def __getattr__(self, name: str) -> Any:
            f = functions[name]

            def call(*args: Any) -> Any:
                data = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a) for a in args]
                first = next(a for a in args if isinstance(a, tl.tensor))
                kind = first.handle.data.dtype
                with np.errstate(all="ignore"):
                    out = np.asarray(f(*[d.astype(kind) for d in data])).astype(kind)
                scalar = first.type.scalar
                # A scalar, too, lies in an array of one here.
                shape = list(out.shape) if any(a.type.is_block() for a in args if isinstance(a, tl.tensor)) else []
                return tl.tensor(TensorHandle(out, scalar), tl.block_type(scalar, shape) if shape else scalar)

            return call

    return Library()
