"""Captured frames on disk: another process that compiles the same function runs neither Dynamo nor AOTAutograd.

PyTorch can describe what Dynamo made of a function as data (``torch._dynamo.package``): new bytecode, and the guards under
which it holds. This module keeps that beside inrush's compiled graphs, for functions that are compiled with inrush only.

Guards that compare identities (this very module, function, class) mean nothing in another process. PyTorch's own caching
drops them; here each becomes the name of what was there. When a capture is read back, the names are resolved, and what the
function would find must be what is named; where the place is reached through the function's arguments, the comparison stays
a guard. A capture with an identity that has no name is not kept. Captures are bound to the files that their code came from,
to this build of inrush and of PyTorch, and to the options.

It leans on interfaces of PyTorch that are not stable: :func:`warm_start` refuses releases that it does not know.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import hashlib
import importlib
import inspect
import itertools
import os
import pickle
import re
import sys
import tempfile
import threading
import time
import types
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
from torch._dynamo import bytecode_transformation, eval_frame, guards, source
from torch._dynamo.package import CompilePackage, SerializedCode

from inrush import _backend, _cache, _compat, _log, _native, _options, _report

# Guards that compare identities, by PyTorch's names, and of them those that no name can stand for.
UNSERIALIZABLE = frozenset(("ID_MATCH", "DICT_VERSION", *guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES))
MOMENTARY = frozenset(("WEAKREF_ALIVE", "DICT_VERSION"))
# How Dynamo names what it makes global by its address.
BY_ADDRESS = re.compile(r"\w*_\d{6,}_c\w+")
# Modules of functions written in C, which do not always say where they are.
NATIVE_HOMES = ("torch", "torch._C", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch.Tensor")

_lock = threading.RLock()
_installed = False
_enabled = False


def warm_start(enabled: bool = True) -> None:
    """Has functions that are compiled with inrush from now on look for what an earlier process captured, and leave theirs.

    Call it before ``torch.compile``, or set ``INRUSH_WARM_START=1``. It is for programs that do the same in every process:
    a function that replaces another by assignment to a module's attribute *after* a capture was read is not noticed, where
    Dynamo's own guards would.
    """
    global _enabled
    with _lock:
        if enabled and not _installed:
            _install()
        _enabled = enabled


class Unnamed(Exception):
    """Something that another process cannot find again."""


def name_of(value: Any) -> tuple[str, ...]:
    """What identifies ``value`` in any process."""
    if value is None or isinstance(value, bool) or value is Ellipsis:
        return ("constant", repr(value))
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    paths = [p for p in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)) if isinstance(p, str)]
    owner = getattr(value, "__self__", None)
    homes = [getattr(value, "__module__", None), getattr(owner, "__name__", None), *NATIVE_HOMES]
    for home in (h for h in homes if isinstance(h, str)):
        for path in paths:
            name = ("attribute", home, path, digest_of(value))
            with contextlib.suppress(Unnamed):
                if named(name) is value:
                    return name
    if isinstance(value, (types.FunctionType, types.CodeType)):
        # Nested in another, or wrapped by a decorator: what it does stands for it. What its closure holds has guards of
        # its own as far as the capture depends on it.
        return ("function", digest_of(value))
    raise Unnamed(paths[0] if paths else type(value).__qualname__)


def digest_of(value: Any) -> str:
    """Of a Python function, what it does."""
    code = getattr(value, "__code__", value)
    return code_digest(code) if isinstance(code, types.CodeType) else ""


def code_digest(code: types.CodeType) -> str:
    text = hashlib.sha256()

    def add(c: types.CodeType) -> None:
        text.update(c.co_code)
        text.update(repr((c.co_names, c.co_varnames, c.co_freevars, c.co_qualname if hasattr(c, "co_qualname") else c.co_name)).encode())
        for k in c.co_consts:
            if isinstance(k, types.CodeType):
                add(k)
            else:
                # Sets are in no order.
                text.update(repr(sorted(map(repr, k)) if isinstance(k, frozenset) else k).encode())

    add(code)
    return text.hexdigest()


def named(name: tuple[str, ...]) -> Any:
    """What has this name in this process."""
    kind, *rest = name
    if kind == "constant":
        return {"None": None, "True": True, "False": False, "Ellipsis": Ellipsis}[rest[0]]
    try:
        value: Any = importlib.import_module(rest[0])
        if kind == "attribute":
            for part in rest[1].split("."):
                value = getattr(value, part)
            if digest_of(value) != rest[2]:
                raise Unnamed(rest[1])
    except (ImportError, AttributeError) as error:
        raise Unnamed(rest[-1]) from error
    return value


@dataclass
class Identity:
    """An expression in Dynamo's words (``G['torch'].cat``, ``L['self'].act``), and the name of its value."""

    place: str
    name: tuple[str, ...]

    @property
    def local(self) -> bool:
        """Whether the place is reached through the arguments."""
        return "L[" in self.place

    def check(self) -> Callable[[dict[str, Any]], bool]:
        """Whether the place, seen from a scope, holds what is named."""
        place = compile(self.place, "<guard>", "eval")
        if self.name[0] != "function":
            want = named(self.name)
            return lambda scope: eval(place, scope) is want
        digest, good = self.name[1], {}

        def check(scope: dict[str, Any]) -> bool:
            value = eval(place, scope)
            code = getattr(value, "__code__", value)
            if not isinstance(code, types.CodeType) or (id(code) not in good and code_digest(code) != digest):
                return False
            good[id(code)] = code
            return True

        return check


@dataclass
class Guards:
    """What a capture needs to hold: PyTorch's guards, and the identities that took the place of others."""

    state: bytes
    identities: list[Identity] = field(default_factory=list)
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What Dynamo put among the global names for guards to look at."""


class Naming:
    """A filter of guards: identities are taken out and named."""

    def __init__(self) -> None:
        self.identities: list[Identity] = []
        self.unnamed: str | None = None

    def __call__(self, entries: Any) -> list[bool]:
        return [self.keeps(e) for e in entries]

    def keeps(self, entry: Any) -> bool:
        kinds = {entry.guard_type, *entry.derived_guard_types}
        if not kinds & UNSERIALIZABLE:
            return True
        place = entry.orig_guard.name
        try:
            if kinds & MOMENTARY or not entry.has_value:
                raise Unnamed(place)
            self.identities.append(Identity(place, name_of(entry.value)))
        except Unnamed as error:
            self.unnamed = self.unnamed or f"{place} holds {error}"
        return False


@dataclass
class Stored:
    """A file of this cache."""

    codes: list[Any]
    files: list[tuple[str, int, int]]
    graphs: dict[str, bytes]
    """AOTAutograd's entries, by the names under which the captured code calls them."""
    values: dict[tuple[str, str], tuple[str, ...]]
    """What Dynamo put among the global names of a module for captured code to find, such as classes of results."""


class Capture(CompilePackage):
    """The captured frames of one function that is compiled with inrush."""

    def __init__(self, settings: str, folder: str) -> None:
        super().__init__(fn=None, dynamo=None, ignore_inlined_sources=True)
        self.settings = settings
        self.folder = folder
        self.path: str | None = None
        self.files: dict[str, tuple[str, int, int]] = {}
        self.values: dict[tuple[str, str], tuple[str, ...]] = {}

    def begin(self, fn: Callable[..., Any]) -> None:
        """Called with the function, once; takes over what is on disk."""
        inner = eval_frame.innermost_fn(fn)
        if not isinstance(getattr(inner, "__code__", None), types.CodeType):
            inner = (lambda f: lambda *a, **k: f(*a, **k))(inner)
        else:
            parts = [inner.__module__, inner.__qualname__, code_digest(inner.__code__), self.settings]
            self.path = os.path.join(self.folder, hashlib.sha256(repr(parts).encode()).hexdigest()[:40])
        stored = None if self.path is None else self.read(self.path)
        self.initialize(inner, None, ignore_inlined_sources=True)
        if stored is None:
            return
        try:
            self.restore(inner, stored)
            _log.compile.info("%s: captured frames were read from %s", inner.__qualname__, self.path)
        except Exception as error:
            # The function is captured as if there were nothing.
            _log.compile.info("%s: the captured frames do not fit: %s", inner.__qualname__, error)
            self._codes = {}
            self._initialized = False
            self.initialize(inner, None, ignore_inlined_sources=True)

    @staticmethod
    def read(path: str) -> Stored | None:
        try:
            with open(path, "rb") as file:
                stored = pickle.load(file)
        except FileNotFoundError:
            return None
        except Exception as error:
            _log.compile.info("the captured frames in %s cannot be read: %s", path, error)
            return None
        return stored if isinstance(stored, Stored) and all(fingerprint(f[0]) == f for f in stored.files) else None

    def restore(self, inner: Any, stored: Stored) -> None:
        """Makes stored frames the function's own."""
        main, *others = stored.codes
        self._codes = {inner.__code__: main}
        for entry in others:
            self._codes[SerializedCode.to_code_object(entry.python_code)] = entry
        start = time.perf_counter()
        codes: list[_cache.Code] = []
        functions = {name: load_graph(data, codes) for name, data in stored.graphs.items()}
        plans = []
        # What can be found out beforehand comes first, then what changes the process.
        for code, entry in self._codes.items():
            if not entry.bypassed:
                scope = Globals(sys.modules[entry.python_module].__dict__)
                scope.update((alias, importlib.import_module(name)) for alias, name in entry.import_sources.items())
                plans.append((code, entry, [read_guards(data, scope) for data in entry.guarded_codes]))
        before = {module: set(module.__dict__) for module in {sys.modules[entry.python_module] for _, entry, _ in plans}}
        try:
            for (module, name), value in stored.values.items():
                self._install_global(sys.modules[module], name, named(value))
            for code, entry, _ in plans:
                self.put_names(code, entry, functions)
            for code, entry, held in plans:
                self.put_frames(code, entry, held)
        except BaseException:
            self.uninstall()
            for module, names in before.items():
                for name in set(module.__dict__) - names:
                    del module.__dict__[name]
            raise
        # Frames that are captured from now on are written beside them.
        self.files = {f[0]: f for f in stored.files}
        self.values = dict(stored.values)
        _graphs.update(stored.graphs)
        report = _report.begin()
        report.direct = all(c.direct for c in codes)
        for c in codes:
            c.report.stages = dict(c.function.report()["stages"])
            c.report.cache = "hit, not captured"
            report.graphs.append(c.report)
        report.seconds = time.perf_counter() - start

    def put_names(self, code: types.CodeType, entry: Any, functions: dict[str, Any]) -> None:
        """What captured code finds among the global names of its module."""
        module = sys.modules[entry.python_module]
        for alias, name in entry.import_sources.items():
            self._install_global(module, alias, importlib.import_module(name))
        if entry.install_to_global:
            for name in entry.function_names:
                self._install_global(module, name, types.FunctionType(code, module.__dict__, name))
                reserve(name)
        for name in entry.backend_ids:
            self._install_global(module, name, torch._dynamo.disable(functions[name], reason="compiled by inrush"))

    def put_frames(self, code: types.CodeType, entry: Any, held: list[Any]) -> None:
        """Guards and captured code, to where Dynamo looks for them."""
        from torch._C._dynamo.eval_frame import _load_precompile_entry
        from torch._dynamo.output_graph import get_builtins_dict
        from torch._dynamo.package import _compile_frame_context, _lookup_code, load_guard_manager

        module = sys.modules[entry.python_module]
        with _compile_frame_context(code) if entry.has_compile_id else contextlib.nullcontext():
            target = _lookup_code(entry) if entry.code_source else code
            if not entry.guarded_codes:
                eval_frame.skip_code(target)
            for data, (state, identities, values) in zip(entry.guarded_codes, held):
                for name, value in values.items():
                    self._install_global(module, name, value)
                builtins_name = state.output_graph.name_of_builtins_dict_key_in_fglobals
                if builtins_name:
                    module.__dict__.setdefault(builtins_name, get_builtins_dict(module.__dict__))
                    reserve(builtins_name)
                compiled = SerializedCode.to_code_object(data.dynamo_code)
                unknown = [n for n in global_names(compiled) if n not in module.__dict__ and not hasattr(builtins, n)]
                if unknown:
                    raise Unnamed(unknown[0])
                manager = load_guard_manager(state, target, module.__dict__)
                if identities is not None:
                    manager.root.add_lambda_guard(identities, ["identities of what arguments hold"], None)
                _load_precompile_entry(target, manager, compiled)

    # What Dynamo tells a package.

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        module = self._current_entry.python_module
        values = {}
        try:
            for name in global_names(dynamo_code) if guards_state else ():
                if BY_ADDRESS.fullmatch(name):
                    values[module, name] = name_of(sys.modules[module].__dict__[name])
        except (Unnamed, KeyError) as error:
            _log.compile.info("%s: the capture is not kept: %s", dynamo_code.co_name, error)
            guards_state = b""
        if guards_state:
            self.values.update(values)
            super().add_guarded_code(guards_state, dynamo_code)
        else:
            self.bypass_current_entry()

    def add_inlined_source(self, sources: list[types.CodeType]) -> None:
        for code in sources:
            name = code.co_filename
            if code not in self._resume_codes and name not in self.files and not name.startswith("<"):
                self.files[name] = fingerprint(name)

    def update_device_type(self, graph: Any) -> None:
        """The folder stands for the device."""

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        with super().code_context(code):
            yield
        _waiting.add(self)
        save_waiting()

    def complete(self) -> bool:
        """Whether all graphs are there that the captured code calls."""
        return all(name in _graphs for entry in self._codes.values() for name in entry.backend_ids if not entry.bypassed)

    def write(self) -> None:
        """All frames and their graphs to one file, at once."""
        if self.path is None:
            return
        names = [n for entry in self._codes.values() if not entry.bypassed for n in entry.backend_ids]
        main = self._innermost_fn.__code__.co_filename
        files = {**self.files, main: fingerprint(main)}
        stored = Stored(list(self._codes.values()), sorted(files.values()), {n: _graphs[n] for n in names}, self.values)
        try:
            os.makedirs(self.folder, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    pickle.dump(stored, file)
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        except Exception as error:
            _log.compile.info("captured frames cannot be written: %s", error)


class Globals(dict):
    """A function's global names, in which builtin ones are found too."""

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(builtins, name)
        except AttributeError:
            raise Unnamed(name) from None


def read_guards(data: Any, scope: Globals) -> tuple[Any, Callable[[Any], bool] | None, dict[str, Any]]:
    """PyTorch's state of a frame's guards, and what checks the identities that are reached through arguments (the
    others must hold now), and what has to be among the global names."""
    from torch._dynamo.package import load_guards_state

    saved: Guards = pickle.loads(data.guards_state)
    state = load_guards_state(saved.state)
    values = {name: named(value) for name, value in saved.values.items()}
    scope.update(values)
    key = state.output_graph.name_of_builtins_dict_key_in_fglobals
    if key:
        scope.setdefault(key, builtins.__dict__)
    names = {**guards._get_closure_vars(), "G": scope}
    checks = []
    for identity in saved.identities:
        check = identity.check()
        if identity.local:
            checks.append(check)
        elif not check(names):
            raise Unnamed(identity.place)
    if not checks:
        return state, None, values

    def guard(arguments: Any) -> bool:
        here = {**names, "L": arguments}
        return all(check(here) for check in checks)

    return state, guard, values


def global_names(code: types.CodeType) -> Iterator[str]:
    """Names that code, and code nested in it, reads from the module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def reserve(name: str) -> None:
    """Keeps Dynamo from giving a name again that it gave in another process."""
    number = name.rpartition("_")[2]
    if number.isdigit():
        counter = bytecode_transformation._unique_id_counter
        taken = next(counter)
        bytecode_transformation._unique_id_counter = itertools.count(max(taken, int(number) + 1))


def fingerprint(path: str) -> tuple[str, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (path, -1, -1)
    return (path, found.st_size, found.st_mtime_ns)


# Captures whose graphs are not all compiled yet (a backward graph may come late).
_waiting: set[Capture] = set()
# AOTAutograd's entries of this process, pickled, by the name of the compiled function in captured code.
_graphs: dict[str, bytes] = {}


def keep_graph(name: str, entry: bytes) -> None:
    """Takes an entry that AOTAutograd has saved or found, pickled."""
    _graphs[name] = entry
    save_waiting()


def save_waiting() -> None:
    for capture in [c for c in _waiting if c.complete()]:
        _waiting.discard(capture)
        capture.write()


def load_graph(data: bytes, codes: list[_cache.Code]) -> Callable[..., Any]:
    """An entry of AOTAutograd's as a function of flat arguments."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    entry = pickle.loads(data)
    code = entry.compiled_fw.result
    codes.append(code)
    if code.direct:
        return code.function
    entry.guards_expr = None
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        function = entry.wrap_post_compile([], entry.sanitized_aot_config, {"cudagraphs": None, "boxed_forward_device_index": None})
    return lambda *arguments: function(list(arguments))


def _settings(backend: Any, dynamic: Any) -> tuple[str, str] | None:
    """What a capture is bound to, and the folder for it; None where ``backend`` is not inrush."""
    inner = getattr(backend, "compiler_fn", backend)
    if isinstance(inner, str):
        if inner != "inrush":
            return None
    elif inner is not _backend.backend:
        return None
    given = dict(getattr(backend, "kwargs", {}))
    options = _options.check(given.get("options"), given.get("mode"))
    folder = _cache.folder(options)
    if folder is None:
        return None
    # Settings that are sets or functions print differently in each process.
    config = torch._dynamo.config.get_config_copy()
    plain = sorted((k, v) for k, v in config.items() if isinstance(v, (bool, int, float, str)))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else ""
    parts = [given.get("mode"), dynamic, torch.__version__, torch.version.git_version, sys.version, gpu, plain]
    return hashlib.sha256(repr(parts).encode()).hexdigest(), os.path.join(folder, "captures")


def _install() -> None:
    """Ties this module into Dynamo."""
    global _installed
    known = {
        eval_frame._optimize: "package",
        eval_frame._TorchDynamoContext.__call__: "fn",
        guards.CheckFunctionManager.__init__: "save_guards",
    }
    missing = [f.__qualname__ for f, parameter in known.items() if parameter not in inspect.signature(f).parameters]
    if missing:
        raise _native.UnsupportedError(f"warm_start does not know PyTorch {torch.__version__}: {', '.join(missing)} changed")
    optimize, call, build = eval_frame._optimize, eval_frame._TorchDynamoContext.__call__, guards.CheckFunctionManager.__init__

    @functools.wraps(optimize)
    def own_optimize(rebuild: Any, backend: Any = "inductor", **named: Any) -> Any:
        if _enabled and named.get("package") is None:
            settings = _settings(backend, named.get("dynamic"))
            if settings is not None:
                named["package"] = Capture(*settings)
        return optimize(rebuild, backend, **named)

    @functools.wraps(call)
    def own_call(self: Any, fn: Any) -> Any:
        package = getattr(self, "_package", None)
        if isinstance(package, Capture) and not package.is_initialized():
            package.begin(fn.forward if isinstance(fn, torch.nn.Module) else fn)
        return call(self, fn)

    @functools.wraps(build)
    def own_build(self: Any, f_code: Any, output_graph: Any, *rest: Any, save_guards: bool = False, **named: Any) -> None:
        ours = save_guards and isinstance(getattr(output_graph, "package", None), Capture)
        build(self, f_code, output_graph, *rest, save_guards=save_guards and not ours, **named)
        if not ours:
            return
        # The function's own guards stay as they are. Those for other processes are built beside them.
        self.guards_state = b""
        naming = Naming()
        beside = object.__new__(type(self))
        try:
            build(beside, f_code, output_graph, guard_filter_fn=naming, save_guards=True, strict_error=True)
            if naming.unnamed is not None:
                raise Unnamed(naming.unnamed)
            names = {n for g in output_graph.guards for n in BY_ADDRESS.findall(g.name)}
            values = {n: name_of(output_graph.global_scope[n]) for n in sorted(names)}
            self.guards_state = pickle.dumps(Guards(beside.guards_state, naming.identities, values))
        except Exception as error:
            _log.compile.info("%s: the capture is not kept: %s", f_code.co_name, error)

    # PyTorch writes these with more fields than their constructor takes.
    source.DefaultsSource.__reduce__ = lambda self: (type(self), (self.base, self.idx_key, self.is_kw))
    eval_frame._optimize = own_optimize
    eval_frame._TorchDynamoContext.__call__ = own_call
    guards.CheckFunctionManager.__init__ = own_build
    _compat.on_entry = keep_graph
    _installed = True
