"""Models under `torch.compile`: results, or the loss's gradients, against a float64 run, with times."""

from __future__ import annotations

import argparse
import copy
import time
from typing import Any, Callable

import torch
from torch.utils._pytree import tree_map_only

from survey.errors import FAR, error, float64_everywhere, widen, widened
from survey.models import build
from survey.row import Row

def train(model: torch.nn.Module) -> None:
    """The training mode, without what is drawn at random."""
    model.train()
    for part in model.modules():
        for probability in ("p", "drop_prob", "drop_path", "dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(part, probability, None), float):
                setattr(part, probability, 0.0)
        if "Stochastic" in type(part).__name__:
            part.p = 0.0


def first(out: Any) -> torch.Tensor:
    """The first tensor of a result; of losses by name, as detectors give them in training, the sum."""
    if isinstance(out, dict) and all(isinstance(x, torch.Tensor) and x.dim() == 0 for x in out.values()):
        return sum(out.values())
    return out if isinstance(out, torch.Tensor) else first(next(iter(out.values())) if isinstance(out, dict) else out[0])


def step(f: Any, model: torch.nn.Module, inputs: tuple, training: bool) -> list[torch.Tensor]:
    if not training:
        with torch.no_grad():
            return [first(f(*inputs))]
    model.zero_grad()
    out = first(f(*inputs))
    out.double().square().mean().backward()
    statistics = [b.clone() for b in model.buffers() if b.is_floating_point()]
    return [out.detach()] + [p.grad.clone() for p in model.parameters() if p.grad is not None] + statistics


def fastest(work: Callable[[], Any]) -> float:
    """Milliseconds of the best of a few calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def compiled(name: str, args: argparse.Namespace) -> Row:
    import inrush

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = build(name, args.size)
    if args.train:
        train(model)
    model, inputs = model.to(args.device), tree_map_only(torch.Tensor, lambda x: x.to(args.device), inputs)
    # Running statistics move with each call: all start from the same.
    ours, precise = copy.deepcopy(model), widened(model)
    torch.manual_seed(1)
    eager = step(model, model, inputs, args.train)
    before = len(inrush.compilations())
    function = torch.compile(ours, backend=inrush.backend, options={"strict": True, "fallback_random": True}, dynamic=args.dynamic or None)
    start = time.perf_counter()
    torch.manual_seed(1)
    got = step(function, ours, inputs, args.train)
    took = time.perf_counter() - start
    reports = inrush.compilations()[before:]
    torch.manual_seed(1)
    with float64_everywhere():
        want = step(precise, precise, widen(inputs), args.train)
    far, near = error(got, want), error(eager, want)
    called: dict[str, int] = {}
    for graph in (g for r in reports for g in r.graphs):
        for call in graph.calls:
            called[call.op] = called.get(call.op, 0) + call.count
    # One value that rounds to the other side of a rectifier moves gradients by as much as 1e-3.
    verdict = "right" if far <= FAR * near + 1e-6 else "far" if far <= 30 * near + 1e-3 else "wrong"
    counts = f"{len(reports)} graphs, {sum(r.kernels for r in reports)} kernels"
    before = len(inrush.compilations())
    times = [fastest(lambda m=m, f=f: step(f, m, inputs, args.train)) for m, f in ((model, model), (ours, function))]
    again = len(inrush.compilations()) - before
    errors = f"error {far:.1e}, eager's {near:.1e}"
    speed = f"{times[1]:.0f} ms, eager {times[0]:.0f} ms" + (f", {again} graphs more in later calls" if again else "")
    return Row(name, verdict, f"{errors}, first call {took:.1f} s, {speed}, {counts}, called {called or 'nothing'}")
