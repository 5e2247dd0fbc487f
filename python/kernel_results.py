"""Comparison of what GPU kernels computed, for `triton_check.py` and `gpu_check.py`."""

from __future__ import annotations

# Types of arguments that are narrower than float64.
NARROW = {"fp32", "fp16", "bf16"}


def bound_of(plan, dtype, float32):
    """Returns the relative bound of a result of ``plan``, ``float32`` for that type. A float64 that may come from narrower values has it too."""
    import torch

    if dtype == torch.float64:
        types = {a["type"].removeprefix("tensordesc<").lstrip("*").partition("[")[0] for launch in plan["launches"] for a in launch["arguments"] if "type" in a}
        return float32 if types & NARROW else 1e-10
    return {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(dtype, float32)


# Rounding steps of the largest value in between that a result may be off by. A sum of n terms in any order is off by about the
# root of n; the worst of some thousand sums by four times that.
STEPS = 32
# Values in between that are larger do not widen the bound further: they are no sums of ordinary inputs.
LARGEST = 100.0


def largest_within(tensors):
    """Returns the largest finite magnitude of float32 in what launches read and wrote. A sum of many products is rounded as it stands, whatever a function makes of it afterwards."""
    import torch

    finite = [t[t.isfinite()].abs() for t in tensors if isinstance(t, torch.Tensor) and t.dtype == torch.float32]
    return max((float(t.max()) for t in finite if t.numel()), default=0.0)


def rounded_weights(plan, tensors):
    """Returns by how much attention may move a result: its weights are rounded to the halves that they are multiplied with, where values cancel. A quarter of a step of the largest half covers the sums that are drawn."""
    import torch

    if not any("attention" in launch["kernel"] for launch in plan["launches"]):
        return 0.0
    halves = [t[t.isfinite()].abs() for t in tensors if isinstance(t, torch.Tensor) and t.dtype in (torch.bfloat16, torch.float16)]
    return max((float(t.max()) * torch.finfo(t.dtype).eps / 4 for t in halves if t.numel()), default=0.0)


def differs(got, want, plan, float32, within=0.0, moved=0.0):
    """Returns what is wrong with a result of ``plan``, or None. ``float32`` is the relative bound of that type, ``within`` the largest magnitude of values in between, ``moved`` what :func:`rounded_weights` gives."""
    import torch

    if got.numel() == 0:
        return None
    if not want.dtype.is_floating_point:
        bad = (got != want).flatten()
        at = int(bad.nonzero()[0]) if bad.any() else None
        return None if at is None else f"element {at} is {got.flatten()[at]}, not {want.flatten()[at]}"
    bound = bound_of(plan, want.dtype, float32)
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
