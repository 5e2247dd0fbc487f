"""Integers: wrap-around, division and remainder of negative numbers, shifts, bits, reductions that widen."""

import torch

INTS = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}


def cases(suite):
    for short, dtype in INTS.items():
        info = torch.iinfo(dtype)
        low, high = info.min, info.max
        numbers = [0, 1, 2, 3, 5, 7, 100, high, high - 1, low, low + 1] + ([] if low == 0 else [-1, -2, -3, -7, -100])
        a = torch.tensor(numbers, dtype=dtype)
        divisors = torch.tensor([1, 2, 3, 7, high] + ([] if low == 0 else [-2, -3, -7]), dtype=dtype)[:, None]
        shifts = torch.tensor([0, 1, 2, 6], dtype=dtype)[:, None]
        with suite.group(f"integer_{short}", tol="exact") as g:
            for name in ("add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "lt", "ge", "ne"):
                g.add(name, getattr(torch, name), a, divisors)
            g.add("neg", torch.neg, a)
            g.add("abs", torch.abs, a)
            g.add("sign", torch.sign, a)
            g.add("bitwise_not", torch.bitwise_not, a)
            g.add("square", torch.square, a)
            g.add("relu", torch.relu, a)
            g.add("clamp", lambda x: torch.clamp(x, 2, 50), a)
            g.add("add_scalar", lambda x: x + 3, a)
            g.add("add_alpha", lambda x, y: torch.add(x, y, alpha=3), a, divisors)
            g.add("rsub", lambda x: 5 - x, a)
            g.add("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), a, divisors)
            g.add("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), a, divisors)
            g.add("floor_divide", lambda x: x // 3, a)
            g.add("remainder", torch.remainder, a, divisors)
            g.add("fmod", torch.fmod, a, divisors)
            g.add("remainder_scalar", lambda x: x % 7, a)
            g.add("true_divide", torch.div, a, divisors, tol="close")
            g.add("true_divide_scalar", lambda x: x / 4, a, tol="close")
            g.add("shift_left", torch.bitwise_left_shift, a, shifts)
            g.add("shift_right", torch.bitwise_right_shift, a, shifts)
            g.add("pow_2", lambda x: torch.pow(x, 2), a)
            g.add("pow_3", lambda x: torch.pow(x, 3), a)
            g.add("logical_not", torch.logical_not, a)
            g.add("exp", lambda x: torch.exp(x.clamp(max=10)), a, tol="close")
            g.add("sqrt", lambda x: torch.sqrt(x.clamp(min=0)), a, tol="close")
            g.add("sigmoid", torch.sigmoid, a, tol="close")
            g.add("sum", lambda x: x.sum(), a)
            g.add("sum_own_type", lambda x: x.sum(dtype=x.dtype), a)
            g.add("prod", lambda x: (x[:6] + 1).prod(), a)
            g.add("amax", lambda x: x.amax(), a)
            g.add("argmin", lambda x: x.argmin(), a)
            g.add("cumsum", lambda x: x.cumsum(0), a)
            g.add("any", lambda x: x.any(), a)
            g.add("all", lambda x: x.all(), a)
            g.add("mean", lambda x: (x % 1000).mean(dtype=torch.float64), a)
            g.add("where", lambda x: torch.where(x > 3, x, 0), a)
    i, j = torch.arange(-6, 6).reshape(3, 4), torch.arange(1, 9).reshape(4, 2)
    with suite.group("integer_matrix", "near", tol="exact") as g:
        g.add("mm", torch.mm, i, j)
        g.add("matmul_i32", lambda x, y: x.int() @ y.int(), i, j)
    with suite.group("integer_bits", tol="exact") as g:
        n = torch.tensor([0, 1, -1, 5, -8, 1 << 40, -(1 << 62)])
        g.add("and_scalar", lambda x: x & 0xFF, n)
        g.add("or_scalar", lambda x: x | 1, n)
        g.add("xor_scalar", lambda x: x ^ -1, n)
        g.add("shift_scalar", lambda x: (x << 3) >> 2, n)
        g.add("large_compare", lambda x: x > (1 << 39), n)
