"""One seed: drawn, checked, and made shorter where it is wrong."""

from __future__ import annotations

import logging
import os
import time
import traceback
import warnings
from dataclasses import dataclass, field

import torch

from drawn.check import check, is_wrong, kind_of, shorter
from drawn.draw import draw
from drawn.known import known
from drawn.program import Program

# What Dynamo says of programs that it does not take.
logging.getLogger("torch").setLevel(logging.CRITICAL)
# Seconds that making a program shorter may take.
PATIENCE = 60


@dataclass
class Outcome:
    """What became of a seed."""

    seed: int
    verdict: str
    features: list[str] = field(default_factory=list)
    # The shortened program, where it is wrong.
    text: str = ""
    # Why it was expected to be wrong.
    known: str = ""

    @property
    def kind(self) -> str:
        if self.known:
            return f"known ({self.known})"
        return "wrong" if is_wrong(self.verdict) else self.verdict


def attempt(seed: int, device: str, expect_known: bool = True, patience: float = PATIENCE) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(seed)
        except torch.AcceleratorError:
            # An earlier program ended the device's context: this process can run nothing more there.
            os._exit(1)
        try:
            program = draw(seed)
            verdict = check(program, device)
            if not is_wrong(verdict):
                return Outcome(seed, verdict, program.features)
            if expect_known and (reason := known(program, verdict, device)):
                return Outcome(seed, verdict, program.features, known=reason)
            short = shorter(program, lambda p: kind_of(check(p, device)) == kind_of(verdict), time.monotonic() + patience)
            final = check(short, device)
            return Outcome(seed, final if is_wrong(final) else verdict, program.features, shown(short, device))
        except torch.AcceleratorError as error:
            # An assertion on the device ends its context: this process can run nothing more there.
            print(f"seed {seed}: {str(error)[:300]}\n{draw(seed).text(device)}", flush=True)
            os._exit(1)
        except Exception:
            return Outcome(seed, "the script failed: " + traceback.format_exc()[-900:])


def shown(program: Program, device: str) -> str:
    """A program as a script, with what its text does not say."""
    said = {name: getattr(program, name) for name in ("theme", "dynamic", "resets", "trains", "tangent", "tight", "draws")}
    return "# " + ", ".join(f"{k} {v}" for k, v in said.items() if v) + "\n" + program.text(device)
