"""What was drawn, by verdict and by feature."""

from __future__ import annotations

from collections import Counter

from drawn.attempt import Outcome
from drawn.draw import ALIASES, TANGENTS
from drawn.modules import MODULES, TABLES
from drawn.program import FLOATS, INTEGERS, RANKS
from drawn.steps import KINDS, THEMES

SINGLE = (
    "dynamic", "call with other sizes", "call with other aliases", "reset between calls", "result is an argument", "result twice",
    "result is a view of a result", "aliases in reverse order", "gradient of a tensor that shares memory with itself",
    "two processes", "capture found again", "capture found again, other call first",
)  # fmt: skip


def all_features() -> list[str]:
    """Everything that can be drawn."""
    out = [f"theme {t}" for t in THEMES] + [f"kind {k}" for k in (*KINDS, "module", "table")] + list(SINGLE)
    out += [f"dtype {d}" for d in (*FLOATS, *INTEGERS, "bool")] + [f"layout {name}" for name in RANKS]
    out += [f"values {v}" for v in ("normal", "exact", "special")]
    out += [f"alias {a}" for a in ALIASES] + [f"tangent {t}" for t in dict.fromkeys(TANGENTS)]
    out += [f"module {m}" for m in (*MODULES, *TABLES)]
    # Some steps are of two kinds.
    return list(dict.fromkeys([*out, *(f"step {s}" for steps in KINDS.values() for s in steps)]))


class Summary:
    """Counters that grow outcome by outcome."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        # Of each feature the programs that were drawn with it, and those of them that could be compared.
        self.drawn: Counter[str] = Counter()
        self.compared: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.verdicts[outcome.kind] += 1
        for feature in set(outcome.features):
            self.drawn[feature] += 1
            self.compared[feature] += outcome.kind in ("right", "wrong", "theirs")

    def rare(self, least: int) -> list[str]:
        """Features that fewer than so many compared programs have."""
        return [f for f in all_features() if self.compared[f] < least]

    def lines(self, steps: bool = False) -> list[str]:
        """Counts of all features, rarest first; those of single steps only if asked."""
        names = [f for f in all_features() if steps or not f.startswith("step ")]
        rows = sorted(names, key=lambda f: (self.compared[f], f))
        return [f"{self.compared[f]:7} of {self.drawn[f]:7}  {f}" for f in rows]

    def verdict_line(self) -> str:
        return ", ".join(f"{n} {what}" for what, n in sorted(self.verdicts.items())) or "nothing"
