"""Everything that a captured frame depends on, collected while Dynamo captures it.

PyTorch can describe most guards as data. Guards that compare identities (this very module, function, class) mean nothing in
another process: each is kept with the name of the object that it found. What Dynamo does not guard, because it does not change
within a process, is kept as digests: files and methods that were traced, custom operators, results declared constant.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch._dynamo import guards, source
from torch._dynamo.variables.constant import ConstantVariable
from torch.fx.experimental import symbolic_shapes

from inrush.capture import environment, fingerprint, names, overhead
from inrush.capture.bytecode import BY_ADDRESS
from inrush.capture.fingerprint import NotPortable
from inrush.capture.stored import Guards
from inrush.dynamo_graph import aliasing

# Guards that compare identities, by PyTorch's names, and of them those that no name can stand for.
IDENTITIES = frozenset(("ID_MATCH", "DICT_VERSION", *guards.CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES))
MOMENTARY = frozenset(("WEAKREF_ALIVE", "DICT_VERSION"))
POLYFILLS = os.path.join("torch", "_dynamo", "polyfills")


@dataclass
class Inlined:
    """A function that was traced as a part of a frame."""

    function: types.FunctionType | None
    code: types.CodeType
    is_guarded: bool
    """Dynamo guards its default arguments and what its closure holds."""
    place: str
    """File and line of its call."""


def place_of(caller: Any) -> str:
    """Returns file and line of the user's code at which Dynamo is. Functions of Dynamo stand in for some of the interpreter's."""
    while POLYFILLS in caller.f_code.co_filename and hasattr(caller, "parent"):
        caller = caller.parent
    return f"{caller.f_code.co_filename}:{caller.lineno}"


class Dependencies:
    """Guards and digests of a frame that is being captured."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.guards = Guards()
        # Digests of all code whose change changes a digest that is kept.
        self.covered = set(map(fingerprint.code_digest, fingerprint.codes_of(code)))
        self.digests: dict[type, str] = {}
        self.names: dict[int, tuple[Any, tuple[str, ...]]] = {}
        self.bases: set[type] = set()
        self.told: set[types.FunctionType] = set()
        self.inlined: dict[Any, Inlined] = {}
        self.constants: dict[str, Any] = {}

    def split(self, builder: Any, all_guards: list[Any]) -> list[Any]:
        """Takes the guards that compare identities out of all guards, and returns the rest."""
        for symbol, sources in builder.check_fn_manager.output_graph.shape_env.var_to_sources.items():
            if symbolic_shapes.symbol_is_type(symbol, symbolic_shapes.SymT.FLOAT):
                # PyTorch's description of guards does not hold the value that such a number was found to need.
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
                raise NotPortable(f"{error}, at {names.place_text(guard.name)}") from error
        inner = {id(child) for _, m in modules.values() for child in m.modules() if child is not m}
        for key, (guard, module) in modules.items():
            if key not in inner:
                place = guards.Guard(guard.originating_source, guards.GuardBuilder.TYPE_MATCH)
                self.guards.modules.append((place, fingerprint.digest(environment.structure(module))))
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
                # With the value itself, so that nothing else gets its address.
                self.names[id(value)] = (value, names.name_of(value, self.digests))
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
        """Keeps the digest of a class."""
        key = (cls.__module__, cls.__qualname__)
        if cls.__module__ != "builtins" and key not in self.guards.types:
            if not names.is_at(cls, *key):
                raise NotPortable(f"class {names.described(cls)}, which is not there under its name")
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
        """Notes a function that Dynamo begins to trace as a part of the frame."""
        function = getattr(variable, "fn", None)
        code = variable.get_code()
        if (function or code) not in self.inlined:
            is_guarded = getattr(variable, "get_source", lambda: None)() is not None
            self.inlined[function or code] = Inlined(function, code, is_guarded, place_of(caller))

    def add_constant(self, function: Any, args: tuple[Any, ...], named_args: dict[str, Any], result: Any) -> None:
        """Keeps a call whose result is declared constant. The call is made again before the capture is used."""
        args, result = tuple(a.realize() for a in args), result.realize()
        named_args = {k: a.realize() for k, a in named_args.items()}
        variables = (*args, *named_args.values(), result)
        is_plain = all(type(v) is ConstantVariable and names.is_plain(v.value) for v in variables)
        name = names.name_of_wrapped(function) if is_plain else None
        if name is None:
            raise NotPortable(f"{names.described(function)}, whose result is declared constant")
        if isinstance(result.source, source.ConstantSource):
            # Captured code may find it among the globals.
            self.constants[result.source.source_name] = result.value
        call = (tuple(a.value for a in args), {k: a.value for k, a in named_args.items()})
        entry = (name, *call, fingerprint.value_text(result.value))
        # By their text: True and 1 are equal.
        if repr(entry) not in map(repr, self.guards.constants):
            self.guards.constants.append(entry)

    def add_files(self, codes: list[types.CodeType]) -> None:
        """Keeps digests of the files whose code was traced. Generated code needs a digest that covers it."""
        inlined = list(self.inlined.values())
        known = {i.code for i in inlined}
        others = [Inlined(None, c, False, c.co_filename) for c in (self.code, *codes) if c not in known]
        for item in (*inlined, *others):
            if fingerprint.is_generated(item.code):
                with names.found_at(item.place):
                    self.add_generated(item)
            else:
                self.add_file(item.code.co_filename)

    def add_file(self, path: str) -> None:
        """Keeps the digest of a source file."""
        if path not in self.guards.files:
            self.guards.files[path] = fingerprint.file_digest(path)

    def add_generated(self, item: Inlined) -> None:
        """Requires a digest, a guard's or that of its class, of a function whose code is in no file."""
        function = item.function
        if function is None:
            # Traced code makes it: what it holds comes from there.
            if fingerprint.code_digest(item.code) not in self.covered:
                raise NotPortable(f"{item.code.co_name}, whose code is in no file")
            return
        if function not in self.told:
            cls = names.class_named_by(function)
            if cls is not None:
                self.add_type(cls)
                path = getattr(sys.modules[cls.__module__], "__file__", None)
                if path is not None:
                    self.add_file(path)
        if function not in self.told:
            raise NotPortable(f"{names.described(function)}, whose code is in no file")
        untold: list[str] = []
        fingerprint.function_parts(function, untold)
        if untold and not item.is_guarded:
            raise NotPortable(f"{names.described(function)}, which holds a {untold[0]}")

    def addresses(self) -> set[str]:
        """Returns what looks like names by address in guards on identities."""
        return {n for guard, _ in self.guards.identities for n in BY_ADDRESS.findall(guard.name)}


def _plain(guard: Any) -> Any:
    """Returns a guard without references to objects of this process."""
    if isinstance(guard.create_fn, functools.partial):
        raise NotPortable(f"a guard of kind {guard.create_fn_name()}")
    unset = ("obj_weakref", "guarded_class_weakref", "stack", "user_stack", "guard_types", "code_list")
    return _with(guard, **dict.fromkeys(unset))


def _with(guard: Any, **changed: Any) -> Any:
    """Returns a changed copy of a guard, without what `dataclasses.replace` asks of each field."""
    copy = object.__new__(type(guard))
    for name in _FIELDS:
        setattr(copy, name, changed[name] if name in changed else getattr(guard, name))
    return copy


_FIELDS = tuple(f.name for f in dataclasses.fields(torch._guards.Guard))

# The marks that `mark_dynamic` puts on a tensor, and that guards ask for.
MARKS = "_dynamo_dynamic_indices"


def _marked(make: Callable[..., Any], args: tuple[Any, ...], marks: Any) -> Any:
    tensor = make(*args)
    setattr(tensor, MARKS, marks)
    return tensor


def _without_unguarded(values: tuple[Any, ...], guarded: dict[int, Any]) -> tuple[Any, ...]:
    return tuple(v if id(v) in guarded else guards._Missing("not guarded") for v in values)


def _decorated(pickler: Any, function: types.FunctionType) -> Any:
    """Reduces a function whose name means what a decorator made of it, with the guarded part of its defaults and its closure."""
    guarded = pickler.guard_tree_values
    cells = function.__closure__ or ()
    contents = _without_unguarded(tuple(fingerprint.closure_of(function)), guarded)
    if len(contents) != len(cells):
        # One is empty.
        return guards._Missing, ("an empty cell",)
    defaults = function.__defaults__ and _without_unguarded(function.__defaults__, guarded)
    closure = tuple(map(types.CellType, contents)) if cells else None
    return type(pickler)._unpickle_nested_function, (function.__code__, function.__module__, function.__qualname__, defaults, closure)


def reducer_override(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Has described guards hold what PyTorch leaves out, and skips PyTorch's cases for values that pickle as usual.

    Left out are marks of tensors (PyTorch's guards then demand that there are none), and functions that are not found under their
    names, such as those that `functools.wraps` hides (guards on what these hold then find nothing).
    """

    @functools.wraps(reduce)
    def own_reduce(self: Any, obj: Any) -> Any:
        if overhead.pickles_as_usual(self, obj):
            return NotImplemented
        reduced = reduce(self, obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple) and reduced[0] is guards._Missing:
            return _decorated(self, obj) if id(obj) in self.guard_tree_values else reduced
        marks = getattr(obj, MARKS, None) if isinstance(obj, torch.Tensor) else None
        if marks is None or not isinstance(reduced, tuple) or id(obj) not in self.guard_tree_values:
            return reduced
        return _marked, (*reduced, marks)

    return own_reduce
