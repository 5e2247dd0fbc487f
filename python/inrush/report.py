"""Reports of compiles: ``inrush.last_compile()``."""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass, field
from typing import Any, Iterator


@dataclass
class Called:
    """An operator that is called instead of compiled."""

    op: str
    reason: str
    count: int = 1
    line: str | None = None


@dataclass
class GraphReport:
    """One graph: the inference graph, or the forward or backward graph of a training step."""

    kind: str
    nodes: int = 0
    kernels: list[str] = field(default_factory=list)
    """Fused kernels, each with what is fused in it."""
    contractions: int = 0
    """Matrix products and convolutions."""
    libraries: list[str] = field(default_factory=list)
    """Operators that a vendor's library does on a GPU: matrix products, convolutions, attention."""
    tuned: list[str] = field(default_factory=list)
    """Kernels whose tiles were measured, with option `tune`: what the rules chose, what won."""
    calls: list[Called] = field(default_factory=list)
    """Operators that PyTorch runs, with the reason."""
    fallback: str | None = None
    """Why the whole graph runs eagerly; None when it does not."""
    reproduction: str | None = None
    """Folder that holds what is needed to see the failure again."""
    cache: str = ""
    """`hit`, or why there was none."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds in each stage."""
    kept: dict[str, str] = field(default_factory=dict)
    """Why operators stay that are replaced elsewhere, by their names."""
    subgraphs: list[GraphReport] = field(default_factory=list)
    """Branches and bodies of control-flow operators."""

    @property
    def extern_calls(self) -> int:
        return sum(c.count for c in self.calls)

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())

    def update(self, native: dict[str, Any]) -> None:
        """Takes over what the native half reports."""
        self.kernels = list(native["kernels"])
        self.contractions = native["contractions"]
        self.libraries = list(native["libraries"])
        self.tuned = list(native["tuned"])
        self.stages = dict(native["stages"])
        self.cache = {True: "hit", False: "nothing was built from these kernels before", None: "no kernels"}[native["cached"]]
        calls: dict[tuple[str, str], Called] = {}
        for call in native["calls"]:
            reason = self.kept.get(call["op"], call["reason"])
            known = calls.setdefault((call["op"], reason), Called(call["op"], reason, 0, call["line"]))
            known.count += 1
        self.calls = list(calls.values())

    def __str__(self) -> str:
        if self.fallback is not None:
            return f"{self.kind}: {self.nodes} nodes run eagerly: {self.fallback}"
        lines = [
            f"{self.kind}: {self.nodes} nodes, {len(self.kernels)} kernels, {self.contractions} matrix products or convolutions, "
            + (f"{len(self.libraries)} library calls, " if self.libraries else "")
            + f"{self.extern_calls} called operators, {self.seconds * 1e3:.1f} ms, cache: {self.cache or 'not used'}"
        ]
        lines += [f"  {c.op} called {c.count} times: {c.reason}" for c in self.calls]
        return "\n".join(lines)


@dataclass
class Compilation:
    """One call of the backend: what Dynamo captured between two graph breaks."""

    graphs: list[GraphReport] = field(default_factory=list)
    """In the order in which they were compiled."""
    direct: bool = False
    """Calls go straight to the native code, past AOTAutograd's wrappers, which have nothing to do."""
    seconds: float = 0.0
    """Time in the backend: AOTAutograd's tracing and inrush's compile."""

    @property
    def kernels(self) -> int:
        return sum(len(g.kernels) for g in self.all_graphs())

    @property
    def extern_calls(self) -> int:
        return sum(g.extern_calls for g in self.all_graphs())

    @property
    def fallbacks(self) -> list[str]:
        """Reasons for graphs that run eagerly and for operators that are called."""
        out = [g.fallback for g in self.all_graphs() if g.fallback is not None]
        return out + [f"{c.op}: {c.reason}" for g in self.all_graphs() for c in g.calls]

    @property
    def cache(self) -> list[str]:
        return [g.cache for g in self.all_graphs()]

    @property
    def stages(self) -> dict[str, float]:
        """Seconds in each stage, over all graphs."""
        total: dict[str, float] = {}
        for graph in self.all_graphs():
            for name, seconds in graph.stages.items():
                total[name] = total.get(name, 0.0) + seconds
        return total

    def all_graphs(self) -> Iterator[GraphReport]:
        """The graphs and, after each, its subgraphs."""
        stack = list(reversed(self.graphs))
        while stack:
            graph = stack.pop()
            yield graph
            stack += reversed(graph.subgraphs)

    def __str__(self) -> str:
        return "\n".join(str(g) for g in self.all_graphs()) or "nothing compiled"


# The last ones, newest last. A deque's append is atomic, so compiles in several threads need no lock.
_history: collections.deque[Compilation] = collections.deque(maxlen=256)
_local = threading.local()


def begin() -> Compilation:
    new = Compilation()
    _history.append(new)
    _local.last = new
    return new


def last_compile() -> Compilation | None:
    """Returns what this thread compiled last, else what any thread did; None when nothing has been compiled.

    A backward graph is added to its compilation when it is compiled, which may be at the first call of ``backward``.
    """
    last = getattr(_local, "last", None)
    if last is not None:
        return last
    return _history[-1] if _history else None


def compilations() -> list[Compilation]:
    """The last compilations of all threads, oldest first."""
    return list(_history)
