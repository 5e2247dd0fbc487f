"""Captures of models that a second process finds: both processes build the same model, compile it and call it once."""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch
from torch.utils._pytree import tree_leaves

from survey.errors import error
from survey.models import First, build
from survey.row import Row

# Of the models this share has to be found again whole.
SHARE = 0.95
# What the same kernels may differ between two calls, as sums that threads share out do.
SAME = 1e-3


def counts() -> Counter[tuple[str, str]]:
    import inrush

    return Counter({(what, why): n for what, reasons in inrush.captures().items() for why, n in reasons.items()})


def captured(name: str, args: argparse.Namespace) -> Row:
    """One process's part. `kept`: nothing was found and all is there for the next one; `found`: nothing had to be captured."""
    import inrush

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = build(name, args.size)
    # As users compile it: with all its results.
    model = model.model if isinstance(model, First) else model
    function = torch.compile(model, backend=inrush.backend, options={"fallback_random": True})
    before = counts()
    start = time.perf_counter()
    with torch.no_grad():
        torch.manual_seed(1)
        got = tensors(function(*inputs))
        took = time.perf_counter() - start
        torch.manual_seed(1)
        want = tensors(model(*inputs))
    became = counts() - before
    far = error(got, want)
    text = f"first call {took:.2f} s, error {far:.0e}"
    if far > SAME:
        return Row(name, "wrong", text)
    # What did not hold is a reason only where nothing else held: there may be several captures of a frame.
    reasons = [f"{what}: {why}" for what, why in became if what == "not kept"]
    if reasons:
        return Row(name, "not kept", "; ".join(reasons))
    if became["kept", ""]:
        tried = "; ".join(why for what, why in became if what == "not restored")
        return Row(name, "kept", text + (f", not restored: {tried}" if tried else ""))
    return Row(name, "found", text) if became["restored", ""] else Row(name, "not kept", "no captures")


def tensors(out: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(vars(out) if hasattr(out, "to_tuple") else out) if isinstance(x, torch.Tensor)]


def together(first: Row, second: Row) -> Row:
    """What became of a model in both processes."""
    for row in (first, second):
        if row.verdict not in ("kept", "found"):
            return row
    verdict = "found" if second.verdict == "found" else "not kept"
    return Row(first.name, verdict, f"{first.text}; then {second.text}" + ("" if verdict == "found" else ", captured anew"))
