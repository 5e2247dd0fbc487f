"""Compiled graphs on disk, so that another process neither traces nor compiles what this one has.

AOTAutograd keeps a cache of what it traced, by the graph that Dynamo captured. Its entries hold whatever a compiler
returned; inrush returns :class:`Code`, which pickles as a host program (see ``Compiled.__reduce__``) whose machine code is in
inrush's build cache. Entries have a folder of their own for each version of inrush and each set of options, apart from
those of other backends.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import stat
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch

from inrush import _native, gpu, log, patches, remote, torch_internals
from inrush import report as reports
from inrush.capture.session import CaptureSession, SessionRef
from inrush.compile_options import Options

_local = threading.local()


@dataclass
class Code(torch_internals.OutputCode):
    """A compiled graph as AOTAutograd's cache takes it."""

    function: Any = None
    kind: str = ""
    direct: bool = False
    """Calls need none of AOTAutograd's wrappers."""
    report: reports.GraphReport = field(default_factory=lambda: reports.GraphReport(""))

    folder: str | None = None
    """The folder in which it is kept; None: it is not."""
    session: SessionRef = field(default_factory=SessionRef)
    """The capture that waits for it."""

    def __post_init__(self) -> None:
        # In the instance: wrappers take over what they find there.
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        if self.kind == "backward":
            torch_internals.refuse_tangents(inputs)
        return self.function(inputs)

    def prepare_for_serialization(self) -> None:
        if not isinstance(self.function, _native.Compiled):
            raise torch_internals.BypassCache("the graph runs eagerly")

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called when an entry has been read."""
        loaded = current().loaded
        if loaded is not None:
            native = self.function.report()
            self.report.stages = dict(native["stages"])
            self.report.cache = "hit, not traced" if native["cached"] is not False else "hit, not traced; kernels built again"
            loaded(self)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing to keep."""


class _Moved:
    """A tensor of a GPU as it is written down."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = str(tensor.device)
        self.tensor = tensor.cpu()

    def __reduce__(self) -> tuple[Any, ...]:
        return _back, (self.tensor, self.device)


def _back(tensor: torch.Tensor, device: str) -> torch.Tensor:
    with torch_internals.no_tracing():
        return tensor.to(device)


def portable(constant: Any) -> Any:
    """A constant of a graph for a pickler: PyTorch's entries are written while tensors are fake, which this one is not."""
    if not isinstance(constant, torch.Tensor) or constant.device.type == "cpu":
        return constant
    with torch_internals.no_tracing():
        return _Moved(constant)


def folder(options: Options) -> str | None:
    """Returns the folder of entries that this build of inrush can use under these options; None if nothing is to be kept."""
    remote.finish_at_exit()
    if not options.cache or options.trace is not None:
        # A trace is of stages that run.
        return None
    with open(_native.__file__, "rb") as file:
        build = os.fstat(file.fileno())
    chosen = remote.chosen(options)
    parts = [_native.__file__, build.st_size, build.st_mtime_ns, platform.machine(), _native.cpu(), chosen]
    parts += gpu.identity()
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    place = os.path.join(_native.cache_dir(), "graphs", digest)
    if not trusted(place):
        return None
    remote.share(place, chosen)
    return place


@functools.cache
def trusted(folder: str) -> bool:
    """Returns true if no other user can have put files into a folder: entries are unpickled, and what is unpickled can run code."""
    if not hasattr(os, "geteuid"):
        return True
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    for place in (_native.cache_dir(), os.path.dirname(folder), folder):
        try:
            found = os.stat(place)
        except OSError:
            # Nothing is there to be read; what writes there says what is wrong.
            continue
        shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (os.geteuid(), 0) or shared:
            log.cache.warning("graphs are not kept: `%s` belongs to another user, or all users may write to it", place)
            return False
    return True


@dataclass
class Scope:
    """Settings of AOTAutograd's cache while a graph is compiled, or its entry saved."""

    folder: str | None = None
    """Entries are kept here, whole; None: none are kept."""
    loaded: Callable[[Code], None] | None = None
    """Gets code that was read from an entry."""
    aliases: Any = None
    """Overlap of the graph's inputs, for its key."""
    session: CaptureSession | None = None
    """The frame that is being captured."""
    found: bytes | None = None
    """The entry that was found, pickled."""


_NO_SCOPE = Scope()


def current() -> Scope:
    """Returns the scope of this thread. The functions of AOTAutograd's cache, which PyTorch calls, have no other way to it."""
    return getattr(_local, "scope", _NO_SCOPE)


@contextlib.contextmanager
def scope(new: Scope) -> Iterator[None]:
    """Has AOTAutograd's cache go by this scope in this thread."""
    before, _local.scope = current(), new
    try:
        with torch_internals.bundled_cache(new.folder is not None and patches.is_on("graph cache")):
            yield
    finally:
        _local.scope = before


def backward_is_compiled() -> None:
    """Notes that a backward graph has been compiled: AOTAutograd's next step in this thread is to save it."""
    _local.late = True


def take_backward() -> bool:
    """Returns true once after a backward graph has been compiled."""
    late, _local.late = getattr(_local, "late", False), False
    return late


def keep_recorded(gm: Any, code: Code, session: CaptureSession | None) -> None:
    """Offers a graph that was recorded without AOTAutograd to a session, under AOTAutograd's conditions."""
    name = torch_internals.name_of_graph(gm)
    if session is None or name is None:
        return
    try:
        torch_internals.check_cacheable(gm)
        code.prepare_for_serialization()
    except torch_internals.BypassCache:
        return
    session.add_graph(name, pickle.dumps(code))
