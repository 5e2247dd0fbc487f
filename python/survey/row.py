"""What became of a model."""

from __future__ import annotations

import dataclasses
import re

# `right`; `far`: further from float64 than eager by much, with one of the inputs; `wrong`: with all of them; `refused`: inrush
# says why not; `no export`: PyTorch does not export it; `failed`: an error that is no refusal; `crashed`, `slow`: the process.
FAULTS = ("wrong", "failed", "crashed", "slow")


@dataclasses.dataclass
class Row:
    name: str
    verdict: str
    text: str

    @property
    def reason(self) -> str:
        """The text without names and numbers of this one model."""
        return re.sub(r"\b\d[\d.]*\b", "N", re.sub(r"\b[a-z]+_?[a-z]*_\d+\b", "..", self.text))[:300]
