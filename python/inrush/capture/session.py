"""One frame that Dynamo is capturing, and the captures that wait for graphs.

A session begins when Dynamo captures a frame of a function that inrush compiles, and is passed along with the graphs of the
frame. A backward graph may be compiled long after the frame; the capture waits for it, and is written once it is complete.
"""

from __future__ import annotations

import contextlib
import os
import threading
import types
import weakref
from typing import Any, Callable, Iterator

from torch._dynamo.package import SerializedCode

from inrush import log, remote
from inrush.capture import bytecode, names, stored
from inrush.capture.guards import Dependencies
from inrush.capture.outcomes import count
from inrush.capture.stored import Stored

# Captures that wait for graphs at most.
MOST_WAITING = 64

_local = threading.local()
_lock = threading.RLock()
# Captures whose graphs are not all compiled yet.
_waiting: list[CaptureSession] = []


class CaptureSession:
    """A frame that is being captured: what it depends on, its graphs, and work that is left for the end of the capture."""

    def __init__(self, folder: str, code: types.CodeType, scope: dict[str, Any], of: str) -> None:
        self.folder = folder
        # The folder of the entries of this inrush under these options.
        self.of = of
        self.code = code
        self.scope = scope
        self.dependencies = Dependencies(code)
        self.imports: dict[str, str] = {}
        self.resumes: dict[str, types.CodeType] = {}
        self.dynamo_code: types.CodeType | None = None
        self.refused: str | None = None
        self.stored: Stored | None = None
        # AOTAutograd's entries of the frame's graphs, pickled, by the name of the compiled function in captured code.
        self.graphs: dict[str, bytes] = {}
        # The reasons for which AOTAutograd kept no entry of a graph of this frame.
        self.unkept: list[str] = []
        self.tasks: list[Callable[[], None]] = []

    def refuse(self, why: str) -> None:
        """Has the capture not be kept. The first reason counts."""
        self.refused = self.refused or why

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Takes an error inside of this for a reason to keep no capture."""
        try:
            yield
        except Exception as error:
            self.refuse(str(error) or type(error).__name__)

    def add_graph(self, name: str, entry: bytes) -> None:
        """Takes an entry that AOTAutograd has saved or found, pickled."""
        if self.refused is None:
            self.graphs[name] = entry
            write_waiting()

    def add_graph_without_entry(self, why: str) -> None:
        """Takes the reason for which AOTAutograd keeps no entry of a graph."""
        self.unkept.append(why)
        log.cache.info("AOTAutograd keeps no entry of a graph: %s", why)

    def add_operators(self, digests: Callable[[], dict[str, str]]) -> None:
        """Takes digests of the custom operators of a graph."""
        if self.refused is None:
            with self.refusing():
                self.dependencies.guards.operators.update(digests())

    def at_end(self, task: Callable[[], None]) -> None:
        """Puts work off until Dynamo is done with the frame."""
        self.tasks.append(task)

    def finish(self, code: types.CodeType) -> None:
        """Describes the capture. Called with the new bytecode when all guards are known."""
        code = bytecode.without_namespaces(code, self.scope)
        used = set(bytecode.global_names(code))
        for resume in self.resumes.values():
            used.update(bytecode.global_names(resume))
        addresses = {n for n in (*used, *self.dependencies.addresses()) if bytecode.is_by_address(n)}
        constants = self.dependencies.constants
        graphs = sorted(n for n in used if n.startswith("__compiled_fn_"))
        resumes = {n: bytecode.without_namespaces(c, self.scope) for n, c in self.resumes.items() if n in used}
        values = {}
        for n in sorted(addresses):
            with names.found_at(f"G[{n!r}]"):
                values[n] = names.name_of(self.scope[n])
                names.named(values[n])
        for n in sorted(used & constants.keys()):
            with names.found_at(f"G[{n!r}]"):
                values[n] = names.name_of(constants[n])
        self.stored = Stored(
            guards=self.dependencies.guards,
            code=SerializedCode.from_code_object(code),
            imports=dict(self.imports),
            values=values,
            resumes={n: SerializedCode.from_code_object(c) for n, c in resumes.items()},
            graphs=dict.fromkeys(graphs, b""),
        )

    def missing(self) -> list[str]:
        """Returns the graphs that the new bytecode calls and that AOTAutograd has not kept so far."""
        return [] if self.stored is None else [n for n in self.stored.graphs if n not in self.graphs]

    def conclude(self) -> None:
        """Writes the capture, has it wait for graphs, or counts why there is none. Called when Dynamo is done with the frame."""
        if self.refused is None and self.stored is None:
            self.refuse("Dynamo made no guarded code of the frame")
        elif self.refused is None and self.unkept and self.missing():
            self.refuse(f"AOTAutograd kept no entry of {self.missing()[0]}: {self.unkept[0]}")
        if self.refused is not None:
            count("not kept", self.refused, self.code)
            return
        with _lock:
            _waiting.append(self)
        write_waiting()
        if self in _waiting:
            log.cache.info("%s: capture waits for %s, such as a backward graph that is compiled when it first runs", self.code.co_name, self.missing()[0])

    def write_when_complete(self) -> bool:
        """Writes the capture if all graphs are there that its code calls. Returns true if nothing is left to wait for."""
        if self.stored is None or self.missing():
            return False
        self.stored.graphs = {n: self.graphs[n] for n in self.stored.graphs}
        try:
            stored.write(self.folder, self.stored)
            remote.store("captures", self.of, os.path.basename(self.folder), remote.files_in(self.folder))
            count("kept", "", self.code)
        except Exception as error:
            count("not kept", f"it cannot be written: {error}", self.code)
        return True


class SessionRef:
    """A session as compiled code holds it: weakly, and not in a pickle. A session that waits for a graph is alive."""

    def __init__(self, session: CaptureSession | None = None) -> None:
        self._get: Callable[[], CaptureSession | None] = (lambda: None) if session is None else weakref.ref(session)

    def __call__(self) -> CaptureSession | None:
        return self._get()

    def __reduce__(self) -> Any:
        return SessionRef, ()


def current() -> CaptureSession | None:
    """Returns the session of the frame that this thread captures."""
    return getattr(_local, "session", None)


@contextlib.contextmanager
def active(session: CaptureSession | None) -> Iterator[None]:
    """Makes a session that of this thread; None: no frame is being captured."""
    before, _local.session = current(), session
    try:
        yield
    finally:
        _local.session = before


def write_waiting() -> None:
    """Writes the waiting captures that are complete."""
    with _lock:
        _waiting[:] = [s for s in _waiting if not s.write_when_complete()]
        # A graph that will never be kept must not have its capture wait forever.
        give_up(_waiting[:-MOST_WAITING])


def give_up(sessions: list[CaptureSession]) -> None:
    """Counts captures as not kept that wait for graphs."""
    with _lock:
        for session in sessions:
            _waiting.remove(session)
            count("not kept", f"{session.missing()[0]} was not compiled, or AOTAutograd kept no entry of it", session.code)


def give_up_all() -> None:
    """Counts all waiting captures as not kept."""
    give_up(list(_waiting))
