"""Finds out how eager takes the numbers among operators' arguments, and compares with `crates/inrush-aten/src/numbers.txt`.

usage: numbers_check.py [--device cuda] [PART_OF_A_NAME ...]

Each operator runs on all halves (products on small matrices) with numbers that halves do not have, and again with these
numbers rounded. A number counts as rounded to the tensors' dtype where that changes nothing for any of them, else as computed in
float32. Prints the lines that are wrong and how many were tried; exits with 1 if any is wrong. `double` is not told from
`compute`, and a line whose number never shows in a result passes either way.
"""

import argparse
import os
import sys

import torch

ops = torch.ops.aten
LINES = os.path.join(os.path.dirname(__file__), "..", "crates", "inrush-aten", "src", "numbers.txt")
NUMBERS = [0.1, 1 / 3, 1e-8, 0.7, 2049.0, 2049.7, 7.77e-3, 1.2345, 1 + 2**-9 + 2**-12, 5.4321, 33.3333]


def places(x):
    return torch.arange(0, 100, device=x.device)


def matrices(x):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=generator).to(x.device, x.dtype) for s in [(16, 16)] * 2 + [(4, 16, 16)] * 2 + [(16,)] * 2]


def product(op, name):
    def f(x, v):
        m, n, b, c, u, w = matrices(x)
        args = {"addmm": (m, m, n), "addmv": (u, m, w), "addr": (m, u, w), "baddbmm": (b, b, c), "addbmm": (m, b, c)}[op]
        return getattr(ops, op).default(*args, **{name: v})

    return f


# What a line's parameter is tried with: `x` are halves, `v` is the number.
CALLS = {
    **{f"aten.{op}.Scalar other": lambda x, v, f=getattr(ops, op): f.Scalar(x, v) for op in ("eq", "ne", "lt", "le", "gt", "ge", "mul", "div", "remainder", "fmod", "floor_divide", "copysign")},
    **{f"aten.{op}.{overload} other": lambda x, v, f=getattr(torch, op): f(x, v) for op in ("add", "sub", "mul", "div") for overload in ("Tensor", "Scalar")},
    **{f"aten.{op}.default {name}": product(op, name) for op in ("addmm", "addmv", "addr", "baddbmm", "addbmm") for name in ("alpha", "beta")},
    **{f"aten.{op}.default lambd": lambda x, v, f=getattr(ops, op): f.default(x, v) for op in ("hardshrink", "softshrink")},
    **{f"aten.{op}_backward.default lambd": lambda x, v, f=getattr(ops, op + "_backward"): f.default(x.flip(0), x, v) for op in ("hardshrink", "softshrink")},
    **{f"aten.nan_to_num.default {n}": lambda x, v, n=n: torch.nan_to_num(x, **{n: v}) for n in ("nan", "posinf", "neginf")},
    **{f"aten.elu.default {n}": lambda x, v, k=k: ops.elu.default(x, *[v if i == k else 1.0 for i in range(3)]) for k, n in enumerate(("alpha", "scale", "input_scale"))},
    **{
        f"aten.elu_backward.default {n}": lambda x, v, k=k: ops.elu_backward.default(x.flip(0), *[v if i == k else 1.0 for i in range(3)], False, x)
        for k, n in enumerate(("alpha", "scale", "input_scale"))
    },
    "aten.add.Tensor alpha": lambda x, v: torch.add(x, x.flip(0), alpha=v),
    "aten.add.Scalar alpha": lambda x, v: ops.add.Scalar(x, 3, v),
    "aten.sub.Tensor alpha": lambda x, v: torch.sub(x, x.flip(0), alpha=v),
    "aten.rsub.Tensor alpha": lambda x, v: ops.rsub.Tensor(x, x.flip(0), alpha=v),
    "aten.rsub.Scalar alpha": lambda x, v: ops.rsub.Scalar(x, 3, v),
    "aten.rsub.Scalar other": lambda x, v: ops.rsub.Scalar(x, v),
    "aten.div.Scalar_mode other": lambda x, v: torch.div(x, v, rounding_mode="trunc"),
    "aten.div.Tensor_mode self": lambda x, v: torch.div(v, x, rounding_mode="trunc"),
    "aten.div.Tensor self": lambda x, v: torch.div(v, x),
    "aten.remainder.Scalar_Tensor self": lambda x, v: torch.remainder(v, x),
    "aten.floor_divide.default self": lambda x, v: torch.floor_divide(v, x),
    "aten.pow.Tensor_Scalar exponent": lambda x, v: ops.pow.Tensor_Scalar(x, v),
    "aten.pow.Scalar self": lambda x, v: ops.pow.Scalar(v, x),
    "aten.where.ScalarOther other": lambda x, v: torch.where(x > 0, x, v),
    "aten.where.ScalarSelf self": lambda x, v: torch.where(x > 0, v, x),
    "aten.clamp.default min": lambda x, v: ops.clamp.default(x, v, None),
    "aten.clamp.default max": lambda x, v: ops.clamp.default(x, None, v),
    "aten.clamp_min.default min": lambda x, v: ops.clamp_min.default(x, v),
    "aten.clamp_max.default max": lambda x, v: ops.clamp_max.default(x, v),
    "aten.threshold.default threshold": lambda x, v: ops.threshold.default(x, v, 7.0),
    "aten.threshold.default value": lambda x, v: ops.threshold.default(x, 0.5, v),
    "aten.threshold_backward.default threshold": lambda x, v: ops.threshold_backward.default(x.flip(0), x, v),
    "aten.hardtanh.default min_val": lambda x, v: ops.hardtanh.default(x, v, float("inf")),
    "aten.hardtanh.default max_val": lambda x, v: ops.hardtanh.default(x, -1000.0, v),
    "aten.hardtanh_backward.default min_val": lambda x, v: ops.hardtanh_backward.default(x.flip(0), x, v, float("inf")),
    "aten.hardtanh_backward.default max_val": lambda x, v: ops.hardtanh_backward.default(x.flip(0), x, -1000.0, v),
    "aten.leaky_relu.default negative_slope": lambda x, v: ops.leaky_relu.default(x, v),
    "aten.leaky_relu_backward.default negative_slope": lambda x, v: ops.leaky_relu_backward.default(x.flip(0), x, v, False),
    "aten.celu.default alpha": lambda x, v: ops.celu.default(x, v),
    "aten.softplus.default beta": lambda x, v: ops.softplus.default(x, v, 20.0),
    "aten.softplus.default threshold": lambda x, v: ops.softplus.default(x, 1.0, v),
    "aten.softplus_backward.default beta": lambda x, v: ops.softplus_backward.default(x.flip(0), x, v, 20.0),
    "aten.softplus_backward.default threshold": lambda x, v: ops.softplus_backward.default(x.flip(0), x, 1.0, v),
    "aten.addcmul.default value": lambda x, v: torch.addcmul(x, x.flip(0), x, value=v),
    "aten.addcdiv.default value": lambda x, v: torch.addcdiv(x, x.flip(0), x, value=v),
    "aten.lerp.Scalar weight": lambda x, v: torch.lerp(x, x.flip(0), v),
    "aten.masked_fill.Scalar value": lambda x, v: x.masked_fill(x > 0, v),
    "aten.fill.Scalar value": lambda x, v: ops.fill.Scalar(x, v),
    "aten.full.default fill_value": lambda x, v: torch.full((3,), v, dtype=x.dtype, device=x.device),
    "aten.full_like.default fill_value": lambda x, v: torch.full_like(x, v),
    "aten.new_full.default fill_value": lambda x, v: x.new_full((3,), v),
    "aten.scalar_tensor.default s": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype, device=x.device),
    "aten.constant_pad_nd.default value": lambda x, v: ops.constant_pad_nd.default(x, [1, 1], v),
    "aten.scatter.value value": lambda x, v: ops.scatter.value(x, 0, places(x), v),
    "aten.scatter.value_reduce value": lambda x, v: ops.scatter.value_reduce(x, 0, places(x) * 600, v, reduce="add"),
    "aten.index_fill.int_Scalar value": lambda x, v: ops.index_fill.int_Scalar(x, 0, places(x), v),
    "aten.index_add.default alpha": lambda x, v: x.index_add(0, torch.arange(x.numel(), device=x.device), x.flip(0), alpha=v),
    "aten.xlogy.Scalar_Other other": lambda x, v: torch.xlogy(x, v),
    "aten.special_xlog1py.other_scalar other": lambda x, v: torch.special.xlog1py(x, v),
    "aten.special_xlog1py.self_scalar self": lambda x, v: torch.special.xlog1py(v, x),
    "aten.logit.default eps": lambda x, v: torch.logit(x, v),
    "aten.logit_backward.default eps": lambda x, v: ops.logit_backward.default(x.flip(0), x, v),
    "aten.isin.Tensor_Scalar test_element": lambda x, v: torch.isin(x, v),
    "aten.searchsorted.Scalar self": lambda x, v: torch.searchsorted(x[~x.isnan()].sort()[0], v),
    "aten.bucketize.Scalar self": lambda x, v: torch.bucketize(v, x[~x.isnan()].sort()[0]),
    "aten.native_dropout_backward.default scale": lambda x, v: ops.native_dropout_backward.default(x, x > 0, v),
}


def same(a, b):
    if isinstance(b, Exception):
        return False
    return torch.equal(torch.nan_to_num(a, nan=0.0).view(-1), torch.nan_to_num(b, nan=0.0).view(-1)) and torch.equal(a != a, b != b)


def outcome(f, x, v):
    try:
        return f(x, v)
    except (RuntimeError, IndexError, ValueError, NotImplementedError) as error:
        return error


def found(f, x):
    """`tensor` or `compute`, with `!` where a number that does not fit is refused; nothing where eager has no such kernel."""
    rounded = True
    tried = 0
    for v in NUMBERS:
        kept = outcome(f, x, v)
        if isinstance(kept, Exception):
            continue
        tried += 1
        rounded &= same(kept, outcome(f, x, float(torch.tensor(v, dtype=x.dtype))))
    if not tried:
        return None
    large = outcome(f, x, 1e39)
    overflows = isinstance(large, Exception) and any(words in str(large) for words in ("overflow", "in range"))
    return ("tensor" if rounded else "compute") + ("!" if overflows else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    wrong = tried = 0
    for line in open(LINES):
        if line.startswith("#"):
            continue
        op, parameter, *devices = line.split()
        f = CALLS.get(f"{op} {parameter}")
        if f is None or not all(n in op for n in options.names):
            continue
        told = devices[options.device != "cpu"].rstrip("~")
        for dtype in (torch.float16, torch.bfloat16):
            x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(options.device)
            now = found(f, x)
            tried += now is not None
            # Where rounding never shows, either word is true.
            if now is not None and now != told and not (now.rstrip("!") == "tensor" and now[6:] == told[7:]):
                wrong += 1
                print(f"{op} {parameter} of {dtype}: {told} in the table, eager {now}", flush=True)
    print(f"{tried} tried, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
