"""Captured frames on disk: another process that compiles the same function runs neither Dynamo nor AOTAutograd.

When Dynamo has captured a frame, PyTorch can describe its guards as data; that is kept here with the new bytecode and the
compiled graphs (:mod:`inrush.capture.session`). When Dynamo is about to capture a frame in another process, what was kept for the
same code under the same settings is tried first (:mod:`inrush.capture.restore`). It becomes an entry of Dynamo's own cache:

* Guards on values are compared with what the frame holds now, before anything of the capture is used.
* Guards that compare identities (this very module, function, class) mean nothing in another process. Each is kept with the
  name of the object that it found; the object that the frame finds at that place now must have that name, and then the same
  guard is made anew for it. From there on a replaced function is noticed as it always is.
* What Dynamo does not guard, because it does not change within a process, is compared too (:mod:`inrush.capture.guards`).

What does not fit, or cannot be compared, is captured as usual, for a reason that is counted (:func:`inrush.captures`).

It needs interfaces of PyTorch that are not stable: the functions below replace some of them (:mod:`inrush.patches.table`), and for
releases that lack one it stays off.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import itertools
import os
import threading
import types
import uuid
from typing import Any, Callable, Iterator

import torch
from torch._dynamo import convert_frame

from inrush import _native, compile_options, dynamo_backend, patches, remote, torch_internals
from inrush.autograd import aot_cache
from inrush.capture import environment, fingerprint, names, overhead, session
from inrush.capture.guards import place_of
from inrush.capture.outcomes import count
from inrush.capture.restore import restore
from inrush.capture.session import CaptureSession
from inrush.capture.stored import kept_in, used

# Part of the names of objects that Dynamo makes global for a capture, so that no other process gives them.
_token = uuid.uuid4().hex[:12]

# Folders of frames for which the second tier was asked.
_asked: set[str] = set()

_lock = threading.RLock()
_enabled = os.environ.get("INRUSH_WARM_START", "1") not in ("", "0")


def warm_start(enabled: bool = True) -> None:
    """Turns captures on disk on or off for functions that are compiled from now on.

    While on, functions that are compiled with inrush look for captures of earlier processes, and theirs are kept for later ones.
    They are on by default; ``INRUSH_WARM_START=0`` and the option ``warm_start`` turn them off too.
    """
    global _enabled
    with _lock:
        if enabled:
            install()
        _enabled = enabled


class Captures:
    """Stands for Dynamo's package of a function that is compiled with inrush."""

    def __init__(self, folder: str, mode: Any) -> None:
        self.of = folder
        self.folder = os.path.join(folder, "captures")
        self.mode = mode

    def folder_of(self, code: types.CodeType, scope: dict[str, Any], locals: dict[str, Any], one_graph: bool) -> str:
        """Returns the folder of the captures of a frame."""
        breaks = getattr(convert_frame, "_get_error_on_graph_break", lambda: None)()
        digest = [fingerprint.code_digest(code), code.co_filename, code.co_firstlineno, scope.get("__name__"), one_graph, breaks]
        parts = [digest, self.mode, environment.structures(locals), environment.surroundings()]
        return os.path.join(self.folder, fingerprint.digest(parts)[:40])

    def fetched(self, folder: str) -> Iterator[str]:
        """Yields the captures of a frame that only the second tier has. It is asked when all others do not hold, once."""
        if folder not in _asked:
            _asked.add(folder)
            yield from (os.path.join(folder, n) for n in remote.fetch("captures", self.of, os.path.basename(folder), folder))

    # What Dynamo tells a package.

    def code_context(self, code: types.CodeType) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        _session().dynamo_code = dynamo_code

    def add_inlined_source(self, sources: list[types.CodeType]) -> None:
        frame = _session()
        if frame.refused is None:
            with frame.refusing():
                frame.dependencies.add_files(list(sources))
                frame.finish(frame.dynamo_code)

    def add_resume_function(self, python_code: types.CodeType, python_module: str, function_name: str | None) -> None:
        # Where variables are shared with an inner function it has no name: captured code holds it, and makes the function.
        if function_name is not None:
            _session().resumes[function_name] = python_code

    def add_import_source(self, alias: str, module_name: str) -> None:
        _session().imports[alias] = module_name

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        """Does nothing: the bytecode tells."""

    def update_device_type(self, graph: Any) -> None:
        """Does nothing: the folder stands for the device."""

    def is_initialized(self) -> bool:
        return True


def _session() -> CaptureSession:
    """Returns the session of this thread. Dynamo has a package only while there is one."""
    found = session.current()
    assert found is not None
    return found


@contextlib.contextmanager
def finishing(frame: CaptureSession) -> Iterator[None]:
    """Does the work that was put off at the end of this, whatever happens: nothing is left at work in the background."""
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
    for task in frame.tasks:
        try:
            task()
        except Exception as error:
            raised = raised or torch_internals.backend_failed(dynamo_backend.backend, error)
    if raised is not None:
        raise raised


def captures_of(backend: Any, dynamic: Any) -> Captures | None:
    """Returns the captures of functions that ``backend`` compiles; None if it is not inrush, or nothing is to be kept."""
    inner = getattr(backend, "compiler_fn", backend)
    if isinstance(inner, str):
        if inner != "inrush":
            return None
    elif inner is not dynamo_backend.backend:
        return None
    given = dict(getattr(backend, "kwargs", {}))
    try:
        options = compile_options.check(given.get("options"), given.get("mode"))
    except _native.InputError:
        # The first call raises it.
        return None
    folder = aot_cache.folder(options)
    if folder is None or not options.warm_start:
        return None
    return Captures(folder, (given.get("mode"), dynamic))


def compile_frame(compile: Callable[..., Any], *args: Any, **named_args: Any) -> Any:
    """Captures a frame with Dynamo, or restores the capture of another process."""
    package = named_args.get("package")
    with session.active(None):
        if not isinstance(package, Captures):
            return compile(*args, **named_args)
        given = signature(compile).bind(*args, **named_args).arguments
        code, scope, locals = given["code"], given["globals"], given["locals"]
        why = None if _enabled else "the warm start is off"
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            why = "torch.distributed is initialized"
        if why is not None or given["export"]:
            if why is not None:
                count("not kept", why, code)
            return compile(*args, **{**named_args, "package": None})
        folder = package.folder_of(code, scope, locals, given["one_graph"])
        for path in itertools.chain(kept_in(folder), package.fetched(folder)):
            try:
                found = restore(path, code, scope, locals, given["hooks"], given["compile_id"])
                count("restored", "", code)
                used(path)
                return found
            except Exception as error:
                count("not restored", str(error) or type(error).__name__, code)
        frame = CaptureSession(folder, code, scope, package.of)
        try:
            with session.active(frame), overhead.patient_collector(), overhead.no_marks(), finishing(frame):
                result = compile(*args, **named_args)
        except Exception as error:
            count("not captured", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", code)
            raise
        frame.conclude()
        return result


signature = functools.cache(inspect.signature)


# Replacements of functions of Dynamo's, see `inrush.patches.table`.


def own_optimize(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Gives functions that inrush compiles a package."""

    @functools.wraps(optimize)
    def own(rebuild: Any, backend: Any = "inductor", **named: Any) -> Any:
        if _enabled and named.get("package") is None:
            named["package"] = captures_of(backend, named.get("dynamic"))
        return optimize(rebuild, backend, **named)

    return own


def own_compile(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Tries captures before Dynamo's, and opens a session for Dynamo's."""

    @functools.wraps(compile)
    def own(*args: Any, **named: Any) -> Any:
        return compile_frame(compile, *args, **named)

    return own


def own_serialize(serialize: Callable[..., Any]) -> Callable[..., Any]:
    """Takes guards on identities out before the others are described."""

    @functools.wraps(serialize)
    def own(self: Any, builder: Any, sorted_guards: list[Any], output_graph: Any) -> bytes:
        frame = session.current()
        if frame is None:
            return serialize(self, builder, sorted_guards, output_graph)
        with frame.refusing():
            if frame.refused is None:
                held = frame.dependencies
                held.guards.state = serialize(self, builder, held.split(builder, sorted_guards), output_graph)
        return b""

    return own


def own_inline(inline: Callable[..., Any]) -> Callable[..., Any]:
    """Notes functions that are traced as parts of the frame."""

    @functools.wraps(inline)
    def own(parent: Any, func: Any, args: Any, kwargs: Any) -> Any:
        frame = session.current()
        if frame is not None:
            frame.dependencies.add_inlined(func, parent)
        return inline(parent, func, args, kwargs)

    return own


def own_bypass(bypass: Callable[..., Any]) -> Callable[..., Any]:
    """Notes why Dynamo would not package a frame, and keeps none."""

    @functools.wraps(bypass)
    def own(self: Any, reason: str = "", **named: Any) -> None:
        if not isinstance(self.package, Captures):
            return bypass(self, reason, **named)
        _session().refuse(reason)
        self.package = None
        return None

    return own


def own_install_global(install_global: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the names of new globals unique among processes."""

    @functools.wraps(install_global)
    def own(self: Any, prefix: str, value: Any) -> str:
        return install_global(self, prefix if session.current() is None else f"{prefix}{_token}", value)

    return own


def own_install_global_by_id(install_global: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the names of globals by address unique among processes."""

    @functools.wraps(install_global)
    def own(self: Any, prefix: str, value: Any) -> str:
        return install_global(self, prefix if session.current() is None else f"{prefix}_{_token}", value)

    return own


def own_constant(constant: Callable[..., Any]) -> Callable[..., Any]:
    """Notes calls whose results are declared constant."""

    @functools.wraps(constant)
    def own(tx: Any, fn: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = constant(tx, fn, name, args, kwargs)
        frame = session.current()
        if frame is not None and frame.refused is None:
            with frame.refusing(), names.found_at(place_of(tx)):
                frame.dependencies.add_constant(fn, tuple(args), dict(kwargs), result)
        return result

    return own


def own_reduce_defaults(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the source of a default argument with the fields that its constructor takes; PyTorch writes more."""

    def own(self: Any) -> Any:
        return type(self), (self.base, self.idx_key, self.is_kw)

    return own


@functools.cache
def _give_up_at_exit() -> None:
    atexit.register(session.give_up_all)


def install() -> None:
    """Ties captures into Dynamo; raises for releases of PyTorch that lack what they need."""
    with _lock:
        patches.install("capture cache", "capture overhead")
        why = patches.why_off("capture cache")
        if why is not None:
            raise _native.UnsupportedError(f"PyTorch {torch.__version__} captures frames in another way: {why}")
        _give_up_at_exit()
