"""Elementwise functions of one, two and three tensors, over every floating dtype, with the values that break shortcuts."""

import torch
import torch.nn.functional as F

from .core import generator

FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
INF, NAN = float("inf"), float("nan")

# Rounded once from the exact result, whatever computes them: equal to the last bit.
EXACT = {
    "abs": torch.abs,
    "neg": torch.neg,
    "relu": torch.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: torch.clamp(x, -0.5, 1.25),
    "clamp_min": lambda x: torch.clamp(x, min=0.25),
    "clamp_max": lambda x: torch.clamp_max(x, 0.75),
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "sign": torch.sign,
    "sgn": torch.sgn,
    "square": torch.square,
    "positive": torch.positive,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
    "nan_to_num": lambda x: torch.nan_to_num(x, nan=0.5, posinf=3.0, neginf=-3.0),
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
}
# The exact result is out of reach of a vector library: within a few units in the last place.
FUNCTIONS = {
    # Not always rounded correctly by PyTorch itself.
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "reciprocal": torch.reciprocal,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": F.elu,
    "elu_alpha": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
    "softsign": F.softsign,
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "deg2rad": torch.deg2rad,
    "rad2deg": torch.rad2deg,
    "sinc": torch.sinc,
    "round_decimals": lambda x: torch.round(x, decimals=1),
}
# Defined, or bounded, on a part of the line only.
DOMAIN = {
    "log": (torch.log, 0.01, 50.0),
    "log2": (torch.log2, 0.01, 50.0),
    "log10": (torch.log10, 0.01, 50.0),
    "log1p": (torch.log1p, -0.9, 50.0),
    "rsqrt": (torch.rsqrt, 0.01, 50.0),
    "tan": (torch.tan, -1.4, 1.4),
    "asin": (torch.asin, -1.0, 1.0),
    "acos": (torch.acos, -1.0, 1.0),
    "sinh": (torch.sinh, -8.0, 8.0),
    "cosh": (torch.cosh, -8.0, 8.0),
    "acosh": (torch.acosh, 1.0, 20.0),
    "atanh": (torch.atanh, -0.95, 0.95),
    "logit": (lambda x: torch.logit(x, eps=1e-3), 0.0, 1.0),
}
RARE = {
    "lgamma": (torch.lgamma, 2.5, 20.0),
    "digamma": (torch.digamma, 2.0, 20.0),
    "erfinv": (torch.erfinv, -0.9, 0.9),
}


def spread(name, dtype, *sizes, low=-4.0, high=4.0):
    return (torch.rand(sizes, generator=generator(name), dtype=torch.float64) * (high - low) + low).to(dtype)


def special(dtype):
    """Zeros, infinities, NaN, halves (which round to even), the smallest and the largest."""
    info = torch.finfo(dtype)
    return torch.tensor(
        [0.0, -0.0, INF, -INF, NAN, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, info.tiny, -info.tiny, info.tiny / 2, info.max, info.min, info.eps, 3.0, -3.0, 6.0],
        dtype=torch.float64,
    ).to(dtype)


def unary(suite):
    for short, dtype in FLOATS.items():
        x, edge = spread("unary" + short, dtype, 3, 37), special(dtype)
        with suite.group(f"unary_exact_{short}", tol="exact") as g:
            for name, fn in EXACT.items():
                g.add(name, fn, x)
                g.add(name + ".special", fn, edge)
        names = list(FUNCTIONS)
        for part in range(0, len(names), 11):
            with suite.group(f"unary_function_{short}_{part // 11}") as g:
                for name in names[part : part + 11]:
                    # 1 + erf cancels in gelu's tail, in PyTorch's float32 too
                    g.add(name, FUNCTIONS[name], x, tol={"kind": "close", "rtol": 4e-6, "atol": 1e-6} if (name, short) == ("gelu", "f32") else None)
        with suite.group(f"unary_domain_{short}") as g:
            for name, (fn, low, high) in DOMAIN.items():
                g.add(name, fn, spread(name + short, dtype, 5, 23, low=low, high=high))
    edge = special(torch.float32)
    skip = {"gelu_tanh", "mish", "sinc", "round_decimals", "celu", "tanhshrink", "hardswish"}  # inf - inf and 0 * inf inside: implementations differ
    names = [n for n in FUNCTIONS if n not in skip]
    for part in range(0, len(names), 13):
        with suite.group(f"unary_special_{part // 13}") as g:
            for name in names[part : part + 13]:
                g.add(name, FUNCTIONS[name], edge)
    with suite.group("unary_domain_special") as g:
        for name, (fn, _, _) in DOMAIN.items():
            if name not in ("logit", "tan"):
                g.add(name, fn, edge)
    with suite.group("unary_rare", "later") as g:
        for name, (fn, low, high) in RARE.items():
            g.add(name, fn, spread(name, torch.float32, 41, low=low, high=high), tol={"kind": "close", "rtol": 2e-5, "atol": 1e-6})
    with suite.group("unary_sizes") as g:
        for size in ((), (0,), (1,), (2, 0, 3), (7,), (127,), (1, 1, 1), (3, 5, 7, 2, 2), (4099,)):
            label = "x".join(map(str, size)) or "scalar"
            g.add("silu_" + label, F.silu, spread(label, torch.float32, *size))
            g.add("add_" + label, lambda x: x + 1.5, spread(label, torch.float32, *size), tol="exact")
    with suite.group("unary_large_arguments") as g:
        big = torch.tensor([1e2, -1e3, 1e4, 12345.678, -98765.4, 80.0, -80.0, 87.5, 88.9, -103.0, -110.0], dtype=torch.float32)
        for name in ("sin", "cos", "exp", "exp2", "tanh", "sigmoid", "erf", "erfc", "silu", "gelu", "softplus", "expm1"):
            g.add(name, FUNCTIONS[name], big, tol={"kind": "close", "rtol": 1e-5, "atol": 1e-6})


def binary(suite):
    for short, dtype in FLOATS.items():
        a, b = spread("a" + short, dtype, 4, 1, 29), spread("b" + short, dtype, 3, 29)
        away = b + torch.sign(b) * 0.5
        with suite.group(f"binary_exact_{short}", tol="exact") as g:
            g.add("add", torch.add, a, b)
            g.add("sub", torch.sub, a, b)
            g.add("rsub", lambda x: torch.rsub(x, 1.5), a)
            g.add("mul", torch.mul, a, b)
            g.add("div", torch.div, a, away)
            g.add("add_scalar", lambda x: x + 2.5, a)
            g.add("mul_scalar", lambda x: x * 0.75, a)
            g.add("sub_from_scalar", lambda x: 3 - x, a)
            g.add("maximum", torch.maximum, a, b)
            g.add("minimum", torch.minimum, a, b)
            g.add("fmax", torch.fmax, a, b)
            g.add("fmin", torch.fmin, a, b)
            g.add("copysign", torch.copysign, a, b)
            g.add("where", lambda x, y: torch.where(x > y, x, y), a, b)
            g.add("where_scalar", lambda x: torch.where(x > 0, x, 0.25), a)
            for op in ("eq", "ne", "lt", "le", "gt", "ge"):
                g.add(op, getattr(torch, op), a, b)
                g.add(op + "_scalar", lambda x, f=getattr(torch, op): f(x, 0.5), a)
        with suite.group(f"binary_{short}") as g:
            # Eager rounds the product in the last elements of a row, and not in whole vectors.
            product = {"bf16": 2.0**-8, "f16": 2.0**-11}.get(short)
            g.add("add_alpha", lambda x, y: torch.add(x, y, alpha=0.3), a, b, tol=product and {"kind": "close", "rtol": 0.016, "atol": product})
            g.add("sub_alpha", lambda x, y: torch.sub(x, y, alpha=2), a, b)
            g.add("div_scalar", lambda x: x / 3.0, a)
            g.add("scalar_div", lambda x: 2.0 / x, away)
            g.add("pow", lambda x, y: torch.pow(x.abs() + 0.1, y), a, b)
            for exponent in (0, 1, 2, 3, 0.5, -1, -2, 1.7, -0.5):
                g.add(f"pow_{exponent}", lambda x, e=exponent: torch.pow(x.abs() + 0.25, e), a)
            g.add("pow_negative_base", lambda x: torch.pow(x, 3), a)
            g.add("pow_scalar_base", lambda x: torch.pow(2.0, x), a)
            g.add("atan2", torch.atan2, a, b)
            g.add("hypot", torch.hypot, a, b)
            g.add("logaddexp", torch.logaddexp, a, b)
            g.add("lerp", lambda x, y: torch.lerp(x, y, 0.3), a, b)
            g.add("lerp_tensor", torch.lerp, a, b, b)
            g.add("addcmul", lambda x, y: torch.addcmul(x, y, y, value=0.5), a, b)
            g.add("addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=0.5), a, away)
            g.add("xlogy", lambda x, y: torch.xlogy(x, y.abs() + 0.1), a, b)
            g.add("clamp_tensor", lambda x, y: torch.clamp(x, y, y + 1), a, b)
            g.add("prelu", lambda x, y: F.prelu(x, y[0, :1]), a, b)
            g.add("glu", lambda x: F.glu(x[..., :28], -1), a)
    x = spread("divisions", torch.float32, 2, 31)
    y = spread("divisors", torch.float32, 31)
    y = y + torch.sign(y) * 0.3
    with suite.group("binary_division", tol="exact") as g:
        g.add("div_floor", lambda a, b: torch.div(a, b, rounding_mode="floor"), x, y)
        g.add("div_trunc", lambda a, b: torch.div(a, b, rounding_mode="trunc"), x, y)
        g.add("floor_divide", torch.floor_divide, x, y)
        g.add("floor_divide_scalar", lambda a: a // 0.7, x)
        g.add("fmod", torch.fmod, x, y)
        g.add("remainder", torch.remainder, x, y)
        g.add("remainder_scalar", lambda a: a % 1.25, x)
        g.add("fmod_scalar", lambda a: torch.fmod(a, -1.25), x)
        edge = special(torch.float32)
        g.add("div_by_zero", lambda a: a / 0.0, edge)
        g.add("remainder_special", lambda a: torch.remainder(a, 2.0), edge)
        g.add("div_floor_special", lambda a: torch.div(a, -2.0, rounding_mode="floor"), edge)
    edge = special(torch.float32)
    with suite.group("binary_special", tol="exact") as g:
        a, b = edge[:, None], edge[None, :].contiguous()
        for name in ("add", "mul", "maximum", "minimum", "fmax", "fmin", "copysign", "eq", "lt", "ge", "logical_and", "logical_or", "logical_xor"):
            g.add(name, getattr(torch, name), a, b)
        g.add("pow", lambda x, y: torch.pow(x[:12], y[:, :12]), a, b, tol="close")
        g.add("heaviside", torch.heaviside, a, b)
        g.add("nextafter", torch.nextafter, a, b)
        g.add("clamp_nan", lambda x: torch.clamp(x, -1, 1), edge)
        g.add("isclose", lambda x, y: torch.isclose(x.expand(21, 21), y.expand(21, 21), equal_nan=True), a, b)
    masks = torch.tensor([True, False, True]), torch.tensor([[True], [False]])
    with suite.group("binary_bool", tol="exact") as g:
        for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne", "mul", "add", "maximum", "le"):
            g.add(name, getattr(torch, name), *masks)
        g.add("not", lambda m: ~m, masks[0])
        g.add("and_operator", lambda m, n: m & n, *masks)
        g.add("where", lambda m, n: torch.where(m, 1, n), *masks)
        g.add("masked_fill", lambda m: torch.ones(2, 3).masked_fill(m, -INF), masks[0])
    with suite.group("broadcast", tol="exact") as g:
        shapes = [((), (3,)), ((1,), (5,)), ((2, 1, 4), (3, 1)), ((7, 1), (1, 0)), ((1, 1), (2, 3, 4)), ((), ()), ((5, 4, 3), (3,)), ((0,), ())]
        for i, (p, q) in enumerate(shapes):
            g.add(f"add_{i}", torch.add, spread(f"p{i}", torch.float32, *p), spread(f"q{i}", torch.float32, *q))
    with suite.group("layouts", tol="exact") as g:
        m = spread("layout", torch.float32, 6, 9)
        g.add("transposed", lambda x, y: x.t() + y, m, spread("layout2", torch.float32, 9, 6))
        g.add("sliced", lambda x: x[::2, 1:7:3] * 2, m)
        g.add("expanded", lambda x: x[:, :1].expand(6, 9) - x, m)
        g.add("diagonal", lambda x: x.diagonal() + 1, m)
        g.add("input_transposed", lambda x: x + 1, spread("layout3", torch.float32, 5, 8).t())
        g.add("input_strided", lambda x, y: x * y, spread("layout4", torch.float32, 10, 8)[::2, 1:6], spread("layout5", torch.float32, 5))
        g.add("input_expanded", lambda x: torch.relu(x), spread("layout6", torch.float32, 1, 4).expand(3, 4))
        g.add("input_channels_last", lambda x: x * 2 + 1, spread("layout7", torch.float32, 2, 3, 4, 5).to(memory_format=torch.channels_last))
    with suite.group("chains") as g:
        p, q = spread("chain", torch.float32, 33, 65), spread("chain2", torch.float32, 65)
        g.add("norm_like", lambda x, y: torch.sigmoid((x - y) * torch.rsqrt(y * y + 1)) * x, p, q)
        g.add("reuse", lambda x, y: (x + y) * (x + y) - (x - y).abs(), p, q, tol="norm")
        g.add("cast_between", lambda x, y: (x.to(torch.bfloat16) * 3).float() + y, p, q, tol={"kind": "norm", "max": 5e-3})
        g.add("int_between", lambda x, y: (x * 10).to(torch.int32).float() * y, p, q)
        g.add("mask_between", lambda x, y: torch.where((x > 0) & (y < 1), x.exp(), y.cos()), p, q)


def cases(suite):
    unary(suite)
    binary(suite)
