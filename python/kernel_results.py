"""Comparison of what GPU kernels computed, for `triton_check.py` and `gpu_check.py`."""

from __future__ import annotations

# Relative bounds of results of a type, narrowest first, and Triton's names of the types.
BOUNDS = {"bf16": ("bfloat16", 2e-2), "fp16": ("float16", 3e-3), "fp32": ("float32", None), "fp64": ("float64", 1e-10)}


# Floats of eight bits may be one step off; values that are made of such are not.
FLOAT8 = {"torch.float8_e4m3fn": 0.13, "torch.float8_e5m2": 0.26, "torch.float8_e4m3fnuz": 0.13, "torch.float8_e5m2fnuz": 0.26}


def types_within(plan, text_of):
    """Returns Triton's names of the types that values of ``plan`` have. ``text_of`` gives the source of a kernel by name: a value may be rounded to halves between two arguments of float32."""
    types = {a["type"].removeprefix("tensordesc<").lstrip("*").partition("[")[0] for launch in plan["launches"] for a in launch["arguments"] if "type" in a}
    texts = [text_of(name) for name in sorted({launch["kernel"] for launch in plan["launches"]})]
    return types | {t for t in ("bf16", "fp16") if any(f"tl.{BOUNDS[t][0]}" in text for text in texts)}


def bound_of(types, dtype, float32):
    """Returns the relative bound of a result of ``dtype``, ``float32`` for that type. A value that may come from narrower ones has their bound: sums of another order round to another half here and there."""
    if str(dtype) in FLOAT8:
        return FLOAT8[str(dtype)]
    bounds = {name: (float32 if bound is None else bound) for name, bound in BOUNDS.values()}
    narrower = [bounds[BOUNDS[t][0]] for t in types if t in BOUNDS]
    return max([bounds.get(str(dtype).removeprefix("torch."), float32), *narrower])


# Rounding steps of the largest value in between that a result may be off by. A sum of n terms in any order is off by about the
# root of n; the worst of some thousand sums by four times that.
STEPS = 32
# Values in between that are larger do not widen the bound further: they are no sums of ordinary inputs.
LARGEST = 100.0


# The order of a product's sums for ordinary inputs, which no tensor shows where a function of them is stored.
PRODUCT = 16.0


def largest_within(tensors, texts=()):
    """Returns the largest finite magnitude of float32 in what launches read and wrote, and in products of kernels with these sources. A sum of many products is rounded as it stands, whatever a function makes of it afterwards."""
    import torch

    finite = [t[t.isfinite()].abs() for t in tensors if isinstance(t, torch.Tensor) and t.dtype == torch.float32]
    found = [float(t.max()) for t in finite if t.numel()]
    return max([*found, PRODUCT * any("tl.dot(" in text for text in texts)])


def rounded_weights(plan, tensors):
    """Returns by how much attention may move a result: its weights are rounded to the halves that they are multiplied with, where values cancel. A quarter of a step of the largest half covers the sums that are drawn."""
    import torch

    if not any("attention" in launch["kernel"] for launch in plan["launches"]):
        return 0.0
    halves = [t[t.isfinite()].abs() for t in tensors if isinstance(t, torch.Tensor) and t.dtype in (torch.bfloat16, torch.float16)]
    return max((float(t.max()) * torch.finfo(t.dtype).eps / 4 for t in halves if t.numel()), default=0.0)


def differs(got, want, types, float32, within=0.0, moved=0.0):
    """Returns what is wrong with a result, or None. ``types`` is what :func:`types_within` gives, ``float32`` the relative bound of that type, ``within`` the largest magnitude of values in between, ``moved`` what :func:`rounded_weights` gives."""
    import torch

    if got.numel() == 0:
        return None
    if not want.dtype.is_floating_point:
        bad = (got != want).flatten()
        at = int(bad.nonzero()[0]) if bad.any() else None
        return None if at is None else f"element {at} is {got.flatten()[at]}, not {want.flatten()[at]}"
    bound = bound_of(types, want.dtype, float32)
    a, b = got.double().flatten(), want.double().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = b[b.isfinite()]
    scale = finite.abs().max() if finite.numel() else torch.ones((), device=b.device)
    # Relative to the element, or to the tensor where things cancel.
    close = (a - b).abs() <= bound * torch.maximum(b.abs(), 0.1 * scale)
    if want.dtype == torch.float32:
        close |= (a - b).abs() <= STEPS * torch.finfo(torch.float32).eps * min(within, LARGEST)
    close |= (a - b).abs() <= moved
    bad = ~(same | close)
    if not bad.any():
        return None
    at = int(bad.nonzero()[0])
    return f"{int(bad.sum())} of {bad.numel()} elements, {at} is {float(a[at])}, not {float(b[at])}"
