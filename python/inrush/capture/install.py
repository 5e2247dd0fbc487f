"""Captured frames on disk: another process that compiles the same function runs neither Dynamo nor AOTAutograd.

When Dynamo has captured a frame, PyTorch can describe its guards as data; that is kept here with the new bytecode and the
compiled graphs. When Dynamo is about to capture a frame in another process, what was kept for the same code under the same
settings is tried first. What comes of it is an entry of Dynamo's own cache, with guards of Dynamo's own:

* Guards on values are compared with what the frame holds now, before anything of the capture is used.
* Guards that compare identities (this very module, function, class) mean nothing in another process. Each is kept with the
  name of what was there; the name must fit what the frame finds at that place now, and then the same guard is made anew for
  that object. From there on a replaced function is noticed as it always is.
* What Dynamo does not guard, because it does not change within a process, is compared too (:mod:`inrush.capture.fingerprint`): the files
  and methods whose code was traced, custom operators, settings, what PyTorch's own names mean.

What does not fit, or cannot be compared, is captured as usual, for a reason that is counted (:func:`captures`).

It leans on interfaces of PyTorch that are not stable: for releases that it does not know it stays off.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import logging
import os
import pickle
import re
import sys
import tempfile
import threading
import time
import types
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
from torch._dynamo import bytecode_transformation, convert_frame, eval_frame, guards, output_graph, source, symbolic_convert
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.package import SerializedCode, load_guards_state
from torch._dynamo.utils import CleanupHook, CleanupManager
from torch._dynamo.variables import builtin as builtin_variables
from torch._dynamo.variables import functions as function_variables
from torch._dynamo.variables import nn_module as module_variables
from torch._dynamo.variables.constant import ConstantVariable
from torch.fx.experimental import symbolic_shapes

from inrush import _native, compile_options, dynamo_backend, log, report as reports, torch_internals
from inrush.autograd import aot_cache, training
from inrush.capture import fingerprint, overhead
from inrush.dynamo_graph import aliasing
from inrush.capture.fingerprint import NotPortable, name_of, named

# Guards that compare identities, by PyTorch's names, and of them those that no name can stand for.
IDENTITIES = frozenset(("ID_MATCH", "DICT_VERSION", *guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES))
MOMENTARY = frozenset(("WEAKREF_ALIVE", "DICT_VERSION"))
POLYFILLS = os.path.join("torch", "_dynamo", "polyfills")
# How Dynamo names what it makes global by its address.
BY_ADDRESS = re.compile(r"\w*_\d{6,}_c\w+")
# Captures that are kept of one frame: those used last. One that does not hold costs some 10 ms to find out.
MOST = 8
# In the names of what Dynamo makes global for a capture, so that no other process gives them.
_token = uuid.uuid4().hex[:12]

_lock = threading.RLock()
_local = threading.local()
_installed = False
_enabled = os.environ.get("INRUSH_WARM_START", "1") not in ("", "0")
_counts: collections.Counter[tuple[str, str]] = collections.Counter()


def warm_start(enabled: bool = True) -> None:
    """Whether functions that are compiled with inrush from now on look for what an earlier process captured, and keep what
    is captured for later ones. They do by default; ``INRUSH_WARM_START=0`` and the option ``warm_start`` turn it off too."""
    global _enabled
    with _lock:
        if enabled:
            install()
        _enabled = enabled


def captures() -> dict[str, dict[str, int]]:
    """What became of captures in this process: how often each was restored, kept, and not restored, captured or kept for a reason."""
    out: dict[str, dict[str, int]] = {}
    for (what, why), count in sorted(_counts.items()):
        out.setdefault(what, {})[why] = count
    return out


def count(what: str, why: str, frame: types.CodeType) -> None:
    _counts[what, why] += 1
    log.cache.info("%s: capture %s%s", frame.co_name, what, f": {why}" if why else "")


@dataclass
class Guards:
    """When a capture holds."""

    state: bytes = b""
    """PyTorch's guards."""
    identities: list[tuple[Any, tuple[str, ...]]] = field(default_factory=list)
    """Guards that compare identities, with the names of what they found."""
    types: dict[tuple[str, str], str] = field(default_factory=dict)
    """What the methods of classes did whose instances were guarded."""
    modules: list[tuple[Any, str]] = field(default_factory=list)
    """Guards on modules, with digests of what these were made of."""
    aliasing: list[dict[str, Any]] = field(default_factory=list)
    """How the inputs of graphs overlapped that change inputs."""
    constants: list[tuple[tuple[str, str, str], tuple[Any, ...], dict[str, Any], str]] = field(default_factory=list)
    """Calls of functions whose results are declared constant, in their order, with what they gave."""
    files: dict[str, str] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)


@dataclass
class Stored:
    """A file of this cache: one captured frame."""

    guards: Guards
    code: Any
    imports: dict[str, str]
    values: dict[str, tuple[str, ...]]
    """What Dynamo put among the global names, such as classes of results."""
    resumes: dict[str, Any]
    """Code that goes on after graph breaks, by its name."""
    graphs: dict[str, bytes]
    """AOTAutograd's entries, by the names under which the captured code calls them."""


@dataclass
class Inlined:
    """A function that was traced as a part of a frame."""

    function: types.FunctionType | None
    code: types.CodeType
    is_guarded: bool
    """Whether Dynamo guards its default arguments and what its closure holds."""
    place: str
    """Where it was called."""


def place_of(caller: Any) -> str:
    """Where in the user's code Dynamo is; functions of its own stand in for some of the interpreter."""
    while POLYFILLS in caller.f_code.co_filename and hasattr(caller, "parent"):
        caller = caller.parent
    return f"{caller.f_code.co_filename}:{caller.lineno}"


class Pending:
    """A frame that is being captured."""

    def __init__(self, folder: str, code: types.CodeType, scope: dict[str, Any]) -> None:
        self.folder = folder
        self.code = code
        self.scope = scope
        self.guards = Guards()
        self.imports: dict[str, str] = {}
        self.resumes: dict[str, types.CodeType] = {}
        self.covered = set(map(fingerprint.code_digest, fingerprint.codes_of(code)))
        self.digests: dict[type, str] = {}
        self.names: dict[int, tuple[Any, tuple[str, ...]]] = {}
        self.bases: set[type] = set()
        self.told: set[types.FunctionType] = set()
        self.inlined: dict[Any, Inlined] = {}
        self.constants: dict[str, Any] = {}
        self.refused: str | None = None
        self.stored: Stored | None = None
        # Why AOTAutograd kept no entry of a graph of this frame.
        self.unkept: list[str] = []
        self.tasks: list[Callable[[], None]] = []

    def refuse(self, why: str) -> None:
        self.refused = self.refused or why

    def split(self, builder: Any, all_guards: list[Any]) -> list[Any]:
        """Takes the identities out of the guards, with their names."""
        for symbol, sources in builder.check_fn_manager.output_graph.shape_env.var_to_sources.items():
            if symbolic_shapes.symbol_is_type(symbol, symbolic_shapes.SymT.FLOAT):
                # What PyTorch describes of guards does not hold what such a number was found to have to be.
                raise NotPortable(f"{sources[0].name}, a number that was a symbol")
        kept = []
        modules: dict[int, tuple[Any, torch.nn.Module]] = {}
        for guard in all_guards:
            if guard.inner_create_fn() is aliasing.aliasing:
                self.guards.aliasing.append(guard.create_fn.keywords)
                continue
            try:
                self.take(guard, builder, kept, modules)
            except NotPortable as error:
                raise NotPortable(f"{error}, at {fingerprint.place_text(guard.name)}") from error
        inner = {id(child) for _, m in modules.values() for child in m.modules() if child is not m}
        for key, (guard, module) in modules.items():
            if key not in inner:
                place = guards.Guard(guard.originating_source, guards.GuardBuilder.TYPE_MATCH)
                self.guards.modules.append((place, fingerprint.digest(fingerprint.structure(module))))
        return kept

    def take(self, guard: Any, builder: Any, kept: list[Any], modules: dict[int, tuple[Any, torch.nn.Module]]) -> None:
        """Puts one guard among the identities, or among those that are ``kept`` as they are."""
        try:
            value, has_value = builder.get(guard), True
        except Exception:
            # Guards may ask that something is not there, and some are of no place.
            value, has_value = None, False
        kinds = {guard.create_fn_name(), *(guard.guard_types or ())}
        if kinds & IDENTITIES:
            if kinds & MOMENTARY or not has_value:
                raise NotPortable(f"a guard of kind {guard.create_fn_name()}")
            if id(value) not in self.names:
                # With the value itself, whose address nothing else gets then.
                self.names[id(value)] = (value, name_of(value, self.digests))
                self.cover(value)
            self.guards.identities.append((_plain(guard), self.names[id(value)][1]))
            return
        # Drop the stack: the larger part of a guard, and without use in another process.
        kept.append(_with(guard, stack=None, user_stack=None))
        if has_value:
            self.add_type(type(value))
            if isinstance(value, torch.nn.Module):
                modules.setdefault(id(value), (guard, value))

    def add_type(self, cls: type) -> None:
        key = (cls.__module__, cls.__qualname__)
        if cls.__module__ != "builtins" and key not in self.guards.types:
            if not fingerprint.is_at(cls, *key):
                raise NotPortable(f"class {fingerprint.described(cls)}, which is not there under its name")
            self.guards.types[key] = fingerprint.class_digest(cls, self.digests)
            self.cover(cls)

    def cover(self, value: Any) -> None:
        """Notes which functions and code cannot change without a digest that is kept."""
        parts = [value]
        if isinstance(value, type):
            parts = [base for base in value.__mro__ if base not in self.bases]
            self.bases.update(parts)
        for part in parts:
            told = set(fingerprint.functions_told(part))
            self.told |= told
            codes = [value] if isinstance(value, types.CodeType) else [f.__code__ for f in told]
            self.covered.update(fingerprint.code_digest(inner) for code in codes for inner in fingerprint.codes_of(code))

    def add_inlined(self, variable: Any, caller: Any) -> None:
        """Called for each function that Dynamo begins to trace as a part of the frame."""
        function = getattr(variable, "fn", None)
        code = variable.get_code()
        if (function or code) not in self.inlined:
            is_guarded = getattr(variable, "get_source", lambda: None)() is not None
            self.inlined[function or code] = Inlined(function, code, is_guarded, place_of(caller))

    def add_constant(self, function: Any, args: tuple[Any, ...], named_args: dict[str, Any], result: Any) -> None:
        """Called for each result that is declared constant. What was called is called again before the capture is used, as tracing
        would call it."""
        args, result = tuple(a.realize() for a in args), result.realize()
        named_args = {k: a.realize() for k, a in named_args.items()}
        variables = (*args, *named_args.values(), result)
        is_plain = all(type(v) is ConstantVariable and fingerprint.is_plain(v.value) for v in variables)
        name = fingerprint.name_of_wrapped(function) if is_plain else None
        if name is None:
            raise NotPortable(f"{fingerprint.described(function)}, whose result is declared constant")
        if isinstance(result.source, source.ConstantSource):
            # Captured code may find it among the global names.
            self.constants[result.source.source_name] = result.value
        call = (tuple(a.value for a in args), {k: a.value for k, a in named_args.items()})
        entry = (name, *call, fingerprint.value_text(result.value))
        # By their text: True and 1 are equal.
        if repr(entry) not in map(repr, self.guards.constants):
            self.guards.constants.append(entry)

    def add_files(self, codes: list[types.CodeType]) -> None:
        """Code that was traced must be what its file holds. Where there is no file, a digest must cover it."""
        inlined = list(self.inlined.values())
        known = {i.code for i in inlined}
        others = [Inlined(None, c, False, c.co_filename) for c in (self.code, *codes) if c not in known]
        for item in (*inlined, *others):
            if fingerprint.is_generated(item.code):
                with fingerprint.found_at(item.place):
                    self.add_generated(item)
            else:
                self.add_file(item.code.co_filename)

    def add_file(self, path: str) -> None:
        if path not in self.guards.files:
            self.guards.files[path] = fingerprint.file_digest(path)

    def add_generated(self, item: Inlined) -> None:
        """Of a function whose code is in no file a digest must tell what it does: a guard's, or that of its class."""
        function = item.function
        if function is None:
            # One that traced code makes: what it holds comes from there.
            if fingerprint.code_digest(item.code) not in self.covered:
                raise NotPortable(f"{item.code.co_name}, whose code is in no file")
            return
        if function not in self.told:
            cls = fingerprint.class_named_by(function)
            if cls is not None:
                self.add_type(cls)
                path = getattr(sys.modules[cls.__module__], "__file__", None)
                if path is not None:
                    self.add_file(path)
        if function not in self.told:
            raise NotPortable(f"{fingerprint.described(function)}, whose code is in no file")
        untold: list[str] = []
        fingerprint.function_parts(function, untold)
        if untold and not item.is_guarded:
            raise NotPortable(f"{fingerprint.described(function)}, which holds a {untold[0]}")

    def finish(self, code: types.CodeType) -> None:
        """Called with the new bytecode when all guards are known."""
        code = without_namespaces(code, self.scope)
        names = set(global_names(code))
        for resume in self.resumes.values():
            names.update(global_names(resume))
        names_of_guards = (n for guard, _ in self.guards.identities for n in BY_ADDRESS.findall(guard.name))
        addresses = {n for n in (*names, *names_of_guards) if is_by_address(n)}
        graphs = sorted(n for n in names if n.startswith("__compiled_fn_"))
        resumes = {n: without_namespaces(c, self.scope) for n, c in self.resumes.items() if n in names}
        values = {}
        for n in sorted(addresses):
            with fingerprint.found_at(f"G[{n!r}]"):
                values[n] = name_of(self.scope[n])
                named(values[n])
        for n in sorted(names & self.constants.keys()):
            with fingerprint.found_at(f"G[{n!r}]"):
                values[n] = name_of(self.constants[n])
        self.stored = Stored(
            guards=self.guards,
            code=SerializedCode.from_code_object(code),
            imports=dict(self.imports),
            values=values,
            resumes={n: SerializedCode.from_code_object(c) for n, c in resumes.items()},
            graphs=dict.fromkeys(graphs, b""),
        )

    def missing(self) -> list[str]:
        """Returns the graphs that the new bytecode calls and that AOTAutograd has not kept so far."""
        return [] if self.stored is None else [n for n in self.stored.graphs if n not in _graphs]

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
        """Writes the capture, if all graphs are there that its code calls (a backward graph may be compiled late)."""
        stored = self.stored
        if stored is None or self.missing():
            return False
        stored.graphs = {n: _graphs[n] for n in stored.graphs}
        try:
            os.makedirs(self.folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".")
            try:
                content = pickle.dumps(stored, protocol=pickle.HIGHEST_PROTOCOL)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(temporary, os.path.join(self.folder, checksum(content)))
            except BaseException:
                os.unlink(temporary)
                raise
            for old in kept_in(self.folder)[MOST:]:
                # Another process may have dropped it.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
            count("kept", "", self.code)
        except Exception as error:
            count("not kept", f"it cannot be written: {error}", self.code)
        return True


def is_by_address(name: str) -> bool:
    # In the numbers that Dynamo draws for graphs there may be something like an address.
    return bool(BY_ADDRESS.fullmatch(name)) and not fingerprint.MADE_UP.fullmatch(name)


def _plain(guard: Any) -> Any:
    """A guard without references to objects of this process."""
    if isinstance(guard.create_fn, functools.partial):
        raise NotPortable(f"a guard of kind {guard.create_fn_name()}")
    unset = ("obj_weakref", "guarded_class_weakref", "stack", "user_stack", "guard_types", "code_list")
    return _with(guard, **dict.fromkeys(unset))


def _with(guard: Any, **changed: Any) -> Any:
    """A copy of a guard, without what `dataclasses.replace` asks of each field."""
    copy = object.__new__(type(guard))
    for name in _FIELDS:
        setattr(copy, name, changed[name] if name in changed else getattr(guard, name))
    return copy


_FIELDS = tuple(f.name for f in dataclasses.fields(torch._guards.Guard))


def checksum(content: bytes) -> str:
    """In a capture's name: what is damaged may well unpickle, to something else."""
    return hashlib.sha256(content).hexdigest()[:32]


def kept_in(folder: str) -> list[str]:
    """Captures in a folder, the one that was used last first."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    # Another process may have dropped it.
                    with contextlib.suppress(FileNotFoundError):
                        found.append((entry.stat().st_mtime_ns, entry.path))
    except FileNotFoundError:
        # Nothing was kept yet.
        pass
    except OSError as error:
        log.cache.warning("captures cannot be read: %s", error)
    return [path for _, path in sorted(found, reverse=True)]


def used(path: str) -> None:
    """Notes that a capture was used now. In a cache that cannot be written nothing is dropped either."""
    with contextlib.suppress(OSError):
        os.utime(path)


class Captures:
    """What Dynamo takes for the package of a function that is compiled with inrush."""

    def __init__(self, folder: str, mode: Any) -> None:
        self.folder = os.path.join(folder, "captures")
        self.mode = mode

    def folder_of(self, code: types.CodeType, scope: dict[str, Any], locals: dict[str, Any], one_graph: bool) -> str:
        """Where captures of a frame lie."""
        breaks = getattr(convert_frame, "_get_error_on_graph_break", lambda: None)()
        digest = [fingerprint.code_digest(code), code.co_filename, code.co_firstlineno, scope.get("__name__"), one_graph, breaks]
        parts = [digest, self.mode, fingerprint.structures(locals), fingerprint.surroundings()]
        return os.path.join(self.folder, fingerprint.digest(parts)[:40])

    # What Dynamo tells a package.

    def code_context(self, code: types.CodeType) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        _local.pending.dynamo_code = dynamo_code

    def add_inlined_source(self, sources: list[types.CodeType]) -> None:
        pending = _local.pending
        if pending.refused is None:
            try:
                pending.add_files(list(sources))
                pending.finish(pending.dynamo_code)
            except Exception as error:
                pending.refuse(str(error))

    def add_resume_function(self, python_code: types.CodeType, python_module: str, function_name: str | None) -> None:
        # Where variables are shared with an inner function it has no name: captured code holds it, and makes the function.
        if function_name is not None:
            _local.pending.resumes[function_name] = python_code

    def add_import_source(self, alias: str, module_name: str) -> None:
        _local.pending.imports[alias] = module_name

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        """The bytecode tells."""

    def update_device_type(self, graph: Any) -> None:
        """The folder stands for the device."""

    def is_initialized(self) -> bool:
        return True


def restore(path: str, code: types.CodeType, scope: dict[str, Any], locals: dict[str, Any], hooks: Any, compile_id: Any) -> Any:
    """A capture as what Dynamo's own capture would give; raises where it does not hold for the frame."""
    start = time.perf_counter()
    with open(path, "rb") as file:
        content = file.read()
    if os.path.basename(path) != checksum(content):
        raise NotPortable("the file, which is damaged")
    stored = pickle.loads(content)
    if not isinstance(stored, Stored):
        raise NotPortable("the file holds something else")
    held = stored.guards
    for name, digest in held.files.items():
        if fingerprint.file_digest(name) != digest:
            raise NotPortable(f"{name} has changed")
    digests: dict[type, str] = {}
    for (module, name), digest in held.types.items():
        if fingerprint.class_digest(fingerprint.found(module, name), digests) != digest:
            raise NotPortable(f"methods of {name} have changed")
    for name, digest in held.operators.items():
        if fingerprint.operator_digest(name) != digest:
            raise NotPortable(f"operator {name} has changed")
    added: list[str] = []

    def put(name: str, value: Any) -> None:
        if name not in scope:
            scope[name] = value
            added.append(name)
        elif scope[name] is not value:
            raise NotPortable(f"{name}, which is another here")

    try:
        for alias, module in stored.imports.items():
            put(alias, fingerprint.imported(module))
        for name, what in stored.values.items():
            put(name, named(what))
        state = load_guards_state(held.state)
        key = state.output_graph.name_of_builtins_dict_key_in_fglobals
        if key:
            put(key, output_graph.get_builtins_dict(scope))
        manager = guard_manager(state, held, code, scope, locals, hooks)
        compare_constants(held)
        # Fresh names, which nothing else in the process has.
        fresh = {n: _fresh(n) for n in (*stored.graphs, *stored.resumes)}
        resumes = {n: renamed(SerializedCode.to_code_object(c), fresh, scope) for n, c in stored.resumes.items()}
        compiled = renamed(SerializedCode.to_code_object(stored.code), fresh, scope)
        made = set(fresh.values())
        unknown = [n for n in global_names(compiled) if n not in scope and n not in made and not hasattr(builtins, n)]
        if unknown:
            raise NotPortable(unknown[0])
        codes: list[aot_cache.Code] = []
        functions = {n: load_graph(data, codes) for n, data in stored.graphs.items()}
    except BaseException:
        for name in added:
            scope.pop(name, None)
        raise
    cleanups = []
    for name, function in functions.items():
        cleanups.append(CleanupHook.create(scope, fresh[name], torch_internals.disable(function, "compiled by inrush")))
    for name, resume in resumes.items():
        cleanups.append(CleanupHook.create(scope, fresh[name], types.FunctionType(resume, scope, fresh[name])))
    CleanupManager.instance[compiled] = cleanups
    convert_frame.output_codes.add(compiled)
    convert_frame.orig_code_map[compiled] = code
    report(codes, time.perf_counter() - start)
    entry = convert_frame.GuardedCode(compiled, manager, compile_id, f"Torch-Compiled Region: {compile_id}")
    return convert_frame.wrap_guarded_code(entry)


@contextlib.contextmanager
def no_complaints() -> Iterator[None]:
    """PyTorch reports guards that cannot be made as errors; here they tell that the capture is not one of this process."""
    thread, logger = threading.get_ident(), logging.getLogger("torch._guards")

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


def guard_manager(
    state: Any,
    held: Guards,
    code: types.CodeType,
    scope: dict[str, Any],
    locals: dict[str, Any],
    hooks: Any,
) -> Any:
    """Guards of Dynamo's own for the objects of this process."""

    digests: dict[type, str] = {}

    def here(builder: Any, guard: Any) -> Any:
        try:
            return builder.get(guard)
        except Exception as error:
            raise NotPortable(f"{guard.name}, which is not there") from error

    class Manager(guards.CheckFunctionManager):
        def build_guards(self, *args: Any, **named: Any) -> Any:
            builder, manager = super().build_guards(*args, **named)
            # What the others were made from are values of the other process; these are made from values of this one.
            builder.scope["L"], builder.scope["G"] = locals, scope
            builder.src_get_value_cache.clear()
            for guard, name in held.identities:
                if name_of(here(builder, guard), digests) != name:
                    raise NotPortable(f"{guard.name}, which is another here")
                guard.create_fn(builder, guard)
            for parts in held.aliasing:
                aliasing.aliasing(builder, None, **parts)
            for guard, digest in held.modules:
                if fingerprint.digest(fingerprint.structure(here(builder, guard))) != digest:
                    raise NotPortable(f"{guard.name}, which is made of other modules or has other hooks")
            return builder, manager

    extra = {"guard_build_local_state": state.local_state} if hasattr(state, "local_state") else {}
    with no_complaints():
        manager = Manager(
            code,
            OutputGraphCommon(state.output_graph),
            guard_fail_fn=hooks.guard_fail_fn,
            shape_code_parts=state.shape_code_parts,
            runtime_global_scope=scope,
            **extra,
        ).guard_manager
    if not manager.check(locals):
        raise NotPortable("guards do not hold")
    return manager


def compare_constants(held: Guards) -> None:
    """Calls what tracing would call now; guards hold, so that it would come to the same calls until one gives something else."""
    for name, args, named_args, text in held.constants:
        result = fingerprint.wrapped(name)(*args, **named_args)
        if not fingerprint.is_plain(result) or fingerprint.value_text(result) != text:
            raise NotPortable(f"{name[1]}, which gives another result")


def report(codes: list[aot_cache.Code], seconds: float) -> None:
    new = reports.begin()
    new.direct = all(c.direct for c in codes)
    for c in codes:
        c.report.stages = dict(c.function.report()["stages"])
        c.report.cache = "hit, not captured"
        new.graphs.append(c.report)
    new.seconds = seconds


def _fresh(name: str) -> str:
    return bytecode_transformation.unique_id(f"{name}_restored")


@dataclass(frozen=True)
class Namespace:
    """Stands for the global names of a module among the constants of code, where Dynamo has code make a function; None: those of
    the frame."""

    module: str | None


def without_namespaces(code: types.CodeType, scope: dict[str, Any]) -> types.CodeType:
    def stand_in(k: Any) -> Any:
        if not isinstance(k, dict):
            return k
        name = k.get("__name__")
        if k is not scope and getattr(sys.modules.get(name), "__dict__", None) is not k:
            raise NotPortable(f"a dictionary in the code of {code.co_name}")
        return Namespace(None if k is scope else name)

    return with_constants(code, stand_in)


def with_constants(code: types.CodeType, change: Callable[[Any], Any]) -> types.CodeType:
    """Code with other constants, in the code nested in it too."""
    consts = tuple(with_constants(k, change) if isinstance(k, types.CodeType) else change(k) for k in code.co_consts)
    return code.replace(co_consts=consts)


def renamed(code: types.CodeType, fresh: dict[str, str], scope: dict[str, Any]) -> types.CodeType:
    """Code that finds some global names under others, and namespaces of this process."""

    def here(k: Any) -> Any:
        if isinstance(k, types.CodeType):
            return renamed(k, fresh, scope)
        if isinstance(k, Namespace):
            return scope if k.module is None else vars(fingerprint.imported(k.module))
        return k

    return code.replace(co_names=tuple(fresh.get(n, n) for n in code.co_names), co_consts=tuple(map(here, code.co_consts)))


def global_names(code: types.CodeType) -> Iterator[str]:
    """Names that code, and code nested in it, reads from the module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


# Captures whose graphs are not all compiled yet.
_waiting: list[Pending] = []
# AOTAutograd's entries of this process, pickled, by the name of the compiled function in captured code.
_graphs: dict[str, bytes] = {}


def keep_graph(name: str, entry: bytes) -> None:
    """Takes an entry that AOTAutograd has saved or found, pickled."""
    frame = pending()
    wanted = any(p.stored is not None and name in p.stored.graphs for p in _waiting)
    if wanted or (frame is not None and frame.refused is None):
        _graphs[name] = entry
        write_waiting()


def keep_operators(digests: Callable[[], dict[str, str]]) -> None:
    """Takes what custom operators of a graph do."""
    frame = pending()
    if frame is not None and frame.refused is None:
        try:
            frame.guards.operators.update(digests())
        except Exception as error:
            frame.refuse(str(error))


def write_waiting() -> None:
    with _lock:
        _waiting[:] = [p for p in _waiting if not p.write_when_complete()]
        # A graph that will never be kept must not have its capture wait forever.
        give_up(_waiting[:-64])


def give_up(frames: list[Pending]) -> None:
    """Counts captures as not kept that wait for graphs."""
    with _lock:
        for frame in frames:
            _waiting.remove(frame)
            count("not kept", f"{frame.missing()[0]} was not compiled, or AOTAutograd kept no entry of it", frame.code)


def keep_none(why: str) -> None:
    """Takes the reason why AOTAutograd keeps no entry of the graph that this thread has compiled."""
    frame = pending()
    if frame is not None:
        frame.unkept.append(why)
    log.cache.info("AOTAutograd keeps no entry of a graph: %s", why)


def load_graph(data: bytes, codes: list[aot_cache.Code]) -> Callable[..., Any]:
    """An entry of AOTAutograd's as a function of flat arguments."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    entry = pickle.loads(data)
    if isinstance(entry, aot_cache.Code):
        # What was recorded past AOTAutograd.
        codes.append(entry)
        return entry.function
    code = entry.compiled_fw.result
    codes.append(code)
    if code.direct:
        return code.function
    entry.guards_expr = None
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        function = entry.wrap_post_compile([], entry.sanitized_aot_config, {"cudagraphs": None, "boxed_forward_device_index": None})

    def flat(*arguments: Any) -> Any:
        return function(list(arguments))

    flat.__wrapped__ = function  # type: ignore[attr-defined]
    return training.direct(flat)


def put_off(task: Callable[[], None]) -> bool:
    """Takes what is to be done for a graph at the end of the capture."""
    frame = pending()
    if frame is not None:
        frame.tasks.append(task)
    return frame is not None


@contextlib.contextmanager
def finishing(frame: Pending) -> Iterator[None]:
    """At the end of this, what was put off is done, whatever happens: nothing is left at work in the background."""
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
    """For functions that ``backend`` compiles; None where it is not inrush, or nothing is to be kept."""
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
    """Dynamo's capture of a frame, or what another process captured."""
    package = named_args.get("package")
    before, _local.pending = getattr(_local, "pending", None), None
    try:
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
        for path in kept_in(folder):
            try:
                found = restore(path, code, scope, locals, given["hooks"], given["compile_id"])
                count("restored", "", code)
                used(path)
                return found
            except Exception as error:
                count("not restored", str(error) or type(error).__name__, code)
        frame = _local.pending = Pending(folder, code, scope)
        try:
            with overhead.patient_collector(), overhead.no_marks(), finishing(frame):
                result = compile(*args, **named_args)
        except Exception as error:
            count("not captured", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", code)
            raise
        frame.conclude()
        with _lock:
            wanted = {n for p in _waiting if p.stored is not None for n in p.stored.graphs}
            for name in [n for n in _graphs if n not in wanted]:
                del _graphs[name]
        return result
    finally:
        _local.pending = before


signature = functools.cache(inspect.signature)


def pending() -> Pending | None:
    """The frame that this thread captures."""
    return getattr(_local, "pending", None)


# What `mark_dynamic` notes on a tensor, and guards ask for.
MARKS = "_dynamo_dynamic_indices"


def _marked(make: Callable[..., Any], args: tuple[Any, ...], marks: Any) -> Any:
    tensor = make(*args)
    setattr(tensor, MARKS, marks)
    return tensor


def _without_unguarded(values: tuple[Any, ...], guarded: dict[int, Any]) -> tuple[Any, ...]:
    return tuple(v if id(v) in guarded else guards._Missing("not guarded") for v in values)


def _decorated(pickler: Any, function: types.FunctionType) -> Any:
    """A function whose name means what a decorator made of it, with what guards ask for of its defaults and its closure."""
    guarded = pickler.guard_tree_values
    cells = function.__closure__ or ()
    contents = _without_unguarded(tuple(fingerprint.closure_of(function)), guarded)
    if len(contents) != len(cells):
        # One is empty.
        return guards._Missing, ("an empty cell",)
    defaults = function.__defaults__ and _without_unguarded(function.__defaults__, guarded)
    closure = tuple(map(types.CellType, contents)) if cells else None
    return type(pickler)._unpickle_nested_function, (function.__code__, function.__module__, function.__qualname__, defaults, closure)


def _describe_more(pickler: Any) -> None:
    """Has described guards hold what PyTorch leaves out. Marks of tensors: its guards then demand that there are none.
    Functions that are not found under their names, such as those that `functools.wraps` hides: its guards on what these hold
    then find nothing."""
    reduce = pickler.reducer_override

    @functools.wraps(reduce)
    def own_reduce(self: Any, obj: Any) -> Any:
        reduced = reduce(self, obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple) and reduced[0] is guards._Missing:
            return _decorated(self, obj) if id(obj) in self.guard_tree_values else reduced
        marks = getattr(obj, MARKS, None) if isinstance(obj, torch.Tensor) else None
        if marks is None or not isinstance(reduced, tuple) or id(obj) not in self.guard_tree_values:
            return reduced
        return _marked, (*reduced, marks)

    pickler.reducer_override = own_reduce


def install() -> None:
    """Ties this module into Dynamo, once; raises for releases of PyTorch that it does not know."""
    global _installed
    with _lock:
        if _installed:
            return
        manager, graph, inliner = guards.CheckFunctionManager, output_graph.OutputGraph, symbolic_convert.InliningInstructionTranslator
        known = {
            eval_frame._optimize: ("package",),
            convert_frame._compile: ("code", "globals", "locals", "one_graph", "export", "hooks", "compile_id", "package"),
            manager.serialize_guards: ("builder", "sorted_guards", "output_graph"),
            manager.__init__: ("shape_code_parts", "runtime_global_scope", "save_guards", "guard_fail_fn"),
            inliner.build_inline_tracer: ("parent", "func", "args", "kwargs"),
            function_variables.invoke_and_store_as_constant: ("tx", "fn", "name", "args", "kwargs"),
            graph.bypass_package: ("reason",),
            graph.install_global: ("prefix", "value"),
            graph.install_global_by_id: ("prefix", "value"),
        }
        missing = [f.__qualname__ for f, names in known.items() if not set(names) <= set(inspect.signature(f).parameters)]
        if missing:
            raise _native.UnsupportedError(f"PyTorch {torch.__version__} captures frames in another way: {', '.join(missing)}")
        optimize, compile, serialize, bypass = eval_frame._optimize, convert_frame._compile, manager.serialize_guards, graph.bypass_package
        install_global, install_by_id = graph.install_global, graph.install_global_by_id
        constant = function_variables.invoke_and_store_as_constant
        inline = inliner.build_inline_tracer

        @functools.wraps(optimize)
        def own_optimize(rebuild: Any, backend: Any = "inductor", **named: Any) -> Any:
            if _enabled and named.get("package") is None:
                named["package"] = captures_of(backend, named.get("dynamic"))
            return optimize(rebuild, backend, **named)

        @functools.wraps(compile)
        def own_compile(*args: Any, **named: Any) -> Any:
            return compile_frame(compile, *args, **named)

        def own_serialize(self: Any, builder: Any, sorted_guards: list[Any], output_graph: Any) -> bytes:
            frame = pending()
            if frame is None:
                return serialize(self, builder, sorted_guards, output_graph)
            try:
                if frame.refused is None:
                    frame.guards.state = serialize(self, builder, frame.split(builder, sorted_guards), output_graph)
            except Exception as error:
                frame.refuse(str(error) or type(error).__name__)
            return b""

        def own_inline(parent: Any, func: Any, args: Any, kwargs: Any) -> Any:
            frame = pending()
            if frame is not None:
                frame.add_inlined(func, parent)
            return inline(parent, func, args, kwargs)

        @functools.wraps(bypass)
        def own_bypass(self: Any, reason: str = "", **named: Any) -> None:
            if not isinstance(self.package, Captures):
                return bypass(self, reason, **named)
            _local.pending.refuse(reason)
            self.package = None

        @functools.wraps(install_global)
        def own_install_global(self: Any, prefix: str, value: Any) -> str:
            return install_global(self, prefix if pending() is None else f"{prefix}{_token}", value)

        @functools.wraps(install_by_id)
        def own_install_by_id(self: Any, prefix: str, value: Any) -> str:
            return install_by_id(self, prefix if pending() is None else f"{prefix}_{_token}", value)

        @functools.wraps(constant)
        def own_constant(tx: Any, fn: Any, name: str, args: Any, kwargs: Any) -> Any:
            result = constant(tx, fn, name, args, kwargs)
            frame = pending()
            if frame is not None and frame.refused is None:
                try:
                    with fingerprint.found_at(place_of(tx)):
                        frame.add_constant(fn, tuple(args), dict(kwargs), result)
                except Exception as error:
                    frame.refuse(str(error))
            return result

        overhead.install()
        _describe_more(guards.GuardsStatePickler)
        # PyTorch writes these with more fields than their constructor takes.
        source.DefaultsSource.__reduce__ = lambda self: (type(self), (self.base, self.idx_key, self.is_kw))
        eval_frame._optimize = own_optimize
        convert_frame._compile = own_compile
        manager.serialize_guards = own_serialize
        inliner.build_inline_tracer = staticmethod(functools.wraps(inline)(own_inline))
        graph.bypass_package = own_bypass
        graph.install_global, graph.install_global_by_id = own_install_global, own_install_by_id
        for module in (function_variables, builtin_variables, module_variables):
            if hasattr(module, "invoke_and_store_as_constant"):
                module.invoke_and_store_as_constant = own_constant
        torch_internals.on_entry = keep_graph
        torch_internals.on_no_entry = keep_none
        atexit.register(lambda: give_up(list(_waiting)))
        torch_internals.on_operators = keep_operators
        torch_internals.at_end = put_off
        _installed = True
