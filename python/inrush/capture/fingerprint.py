"""What a capture depends on, in words that hold in any process: names of modules, functions and classes, digests of what
they do, contents of source files, and the state of PyTorch that tracing takes for granted."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import os
import re
import sys
import time
import types
from typing import Any, Iterator

import torch

# Names that Dynamo makes up: they count up, and say nothing of what they stand for.
MADE_UP = re.compile(r"__(compiled_fn|resume_at)_\w+")
# Modules of functions written in C, which do not always say where they are.
NATIVE_HOMES = ("torch", "torch._C", "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch.Tensor")
# Modules that give names to classes of the interpreter, which are in no module under their own.
BUILT_IN_CLASSES = ("types", "collections.abc")
# How deep values are told.
DEEPEST = 8
# Where PyTorch's own Python code looks for functions while a graph is traced; nothing guards these.
NAMESPACES = ("torch", "torch.Tensor", "torch._C._nn", "torch.nn.functional", "torch.nn.init", "torch.linalg", "torch.special", "torch.fft")


class NotPortable(Exception):
    """Something that another process cannot find again, or that is not what it was."""


def name_of(value: Any, known: dict[type, str] | None = None) -> tuple[str, ...]:
    """What identifies ``value`` in any process. ``known`` remembers digests of classes for as long as nothing changes."""
    if value is None or isinstance(value, bool) or value is Ellipsis:
        return ("constant", repr(value))
    if isinstance(value, types.ModuleType):
        return ("module", value.__name__)
    if isinstance(value, OPERATORS):
        return ("operator", *operator_parts(value))
    paths = [p for p in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)) if isinstance(p, str)]
    owner = getattr(value, "__self__", None)
    homes = [getattr(value, "__module__", None), getattr(owner, "__name__", None), *NATIVE_HOMES]
    for home in (h for h in homes if isinstance(h, str)):
        for path in paths:
            if is_at(value, home, path):
                return ("attribute", home, path, digest_of(value, known))
    if isinstance(value, (types.FunctionType, types.CodeType)):
        # Nested in another, or wrapped by a decorator: what it does stands for it.
        return ("function", digest_of(value))
    if isinstance(value, enum.Enum):
        return ("member", *member_parts(value))
    if isinstance(value, type) and value.__module__ == "builtins":
        for home in BUILT_IN_CLASSES:
            for path, entry in vars(imported(home)).items():
                if entry is value:
                    return ("attribute", home, path, digest_of(value, known))
    raise NotPortable(described(value))


OPERATORS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)


def operator_parts(value: Any) -> tuple[str, str, str]:
    """The name of an operator, which of its overloads it is, and what it does where it does not come with PyTorch."""
    packet = getattr(value, "_overloadpacket", value)
    name, overload = packet._qualified_op_name, "" if packet is value else value._overloadname
    if operator(name, overload) is not value:
        raise NotPortable(f"operator {name}, which is not there under its name")
    return (name, overload, "" if name.partition("::")[0] in BUILT_IN else operator_digest(name))


def operator(name: str, overload: str) -> Any:
    namespace, _, packet = name.partition("::")
    try:
        value = getattr(getattr(torch.ops, namespace), packet)
        return getattr(value, overload) if overload else value
    except AttributeError as error:
        raise NotPortable(f"operator {name}") from error


def name_of_wrapped(function: Any) -> tuple[str, str, str] | None:
    """Where a function is that decorators may have wrapped, and what it does; None where it is not there under its name."""
    if isinstance(function, types.FunctionType):
        name = (function.__module__, function.__qualname__, digest_of(function))
        with contextlib.suppress(NotPortable):
            if wrapped(name) is function:
                return name
    return None


def wrapped(name: tuple[str, str, str]) -> Any:
    """The function of this name that does the same, out of what decorators made of it."""
    home, path, digest = name
    value = found(home, path)
    while value is not None:
        if isinstance(value, types.FunctionType) and value.__qualname__ == path and digest_of(value) == digest:
            return value
        value = getattr(value, "__wrapped__", None)
    raise NotPortable(f"{path}, which does something else")


def is_plain(value: Any) -> bool:
    """Whether a value is a constant that pickles to the same in any process."""
    if type(value) is tuple:
        return all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, complex, str, bytes)


def member_parts(value: enum.Enum) -> tuple[str, ...]:
    """Where a member of an enumeration is, and all that it and its class are."""
    cls = type(value)
    untold: list[str] = []
    text = value_text(value.value, untold=untold)
    if untold or not is_at(cls, cls.__module__, cls.__qualname__) or cls.__members__.get(value.name) is not value:
        raise NotPortable(described(value))
    return (cls.__module__, cls.__qualname__, value.name, text, class_digest(cls))


def described(value: Any) -> str:
    """A value in words for the log."""
    if isinstance(value, (type, types.FunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    cls = type(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(value, enum.Enum):
        name = value.name
    kind = f"{cls.__module__}.{cls.__qualname__}"
    return f"{name}, a {kind}" if isinstance(name, str) else f"a {kind}"


def named(name: tuple[str, ...]) -> Any:
    """What has this name in this process."""
    kind, *rest = name
    if kind == "constant":
        return {"None": None, "True": True, "False": False, "Ellipsis": Ellipsis}[rest[0]]
    if kind == "module":
        return imported(rest[0])
    if kind == "member":
        value = getattr(found(rest[0], rest[1]), "__members__", {}).get(rest[2])
        if not isinstance(value, enum.Enum) or list(member_parts(value)) != rest:
            raise NotPortable(f"{rest[1]}.{rest[2]}, which is another here")
        return value
    if kind == "operator":
        value = operator(rest[0], rest[1])
        if list(operator_parts(value)) != rest:
            raise NotPortable(f"operator {rest[0]}, which has changed")
        return value
    if kind != "attribute":
        raise NotPortable(kind)
    value = found(rest[0], rest[1])
    if digest_of(value) != rest[2]:
        raise NotPortable(f"{rest[1]}, which does something else")
    return value


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotPortable(module) from error


@contextlib.contextmanager
def found_at(place: str) -> Iterator[None]:
    """Has what cannot be named say where it was found: by a guard's name, or by file and line."""
    try:
        yield
    except NotPortable as error:
        raise NotPortable(f"{error}, at {place_text(place)}") from error


# How guards write what is an attribute of an object, a part of a module, an argument, a global variable.
PLACES = (
    (re.compile(r"\.__dict__\['([A-Za-z_]\w*)'\]"), r".\1"),
    (re.compile(r"\._(?:modules|parameters|buffers)\['([A-Za-z_]\w*)'\]"), r".\1"),
    (re.compile(r"\._modules\['(\d+)'\]"), r"[\1]"),
    (re.compile(r"\b[LG]\['([A-Za-z_]\w*)'\]"), r"\1"),
)


def place_text(place: str) -> str:
    """A guard's name as a path that users would write."""
    for pattern, text in PLACES:
        place = pattern.sub(text, place)
    return re.sub(r"\b__import_(\w+)", lambda m: m[1].replace("_dot_", "."), place)


def is_at(value: Any, home: str, path: str) -> bool:
    with contextlib.suppress(NotPortable):
        return found(home, path) is value
    return False


def class_named_by(method: types.FunctionType) -> type | None:
    """The class in which a method is by its name. Something else may be there now, such as what a decorator made of it."""
    home, _, _ = method.__qualname__.rpartition(".")
    with contextlib.suppress(NotPortable):
        cls = found(method.__module__, home)
        return cls if isinstance(cls, type) else None
    return None


def found(home: str, path: str) -> Any:
    value = imported(home)
    try:
        for part in path.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        raise NotPortable(path) from error
    return value


def digest_of(value: Any, known: dict[type, str] | None = None) -> str:
    """Of a Python function or class, what it does."""
    if isinstance(value, type):
        return class_digest(value, known)
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        # What the closure holds has guards of its own, as far as the capture depends on it.
        return digest(function_parts(value, closure=is_generated(value.__code__)))
    return code_digest(value) if isinstance(value, types.CodeType) else ""


def digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def is_generated(code: types.CodeType) -> bool:
    """Whether code is in no file, as that of methods which `dataclasses` writes."""
    return code.co_filename.startswith("<")


Above = tuple[int, ...]


def function_parts(function: types.FunctionType, untold: list[str] | None = None, above: Above = (), closure: bool = True) -> list[Any]:
    """What a function does, with its default arguments and what its closure holds: Dynamo reads these without a guard where
    it does not know from where it has the function, as for methods of classes."""
    parts: list[Any] = [code_digest(function.__code__)]
    for values in (function.__defaults__, function.__kwdefaults__):
        if values:
            parts.append(value_text(values, untold, above))
    if closure:
        parts += [value_text(value, untold, above) for value in closure_of(function)]
    return parts


def closure_of(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        # An empty cell has no contents.
        with contextlib.suppress(ValueError):
            yield cell.cell_contents


def value_text(value: Any, untold: list[str] | None = None, above: Above = ()) -> str:
    """A plain value; of others, of which kind they are, which is added to ``untold``. ``above``: what it is a part of."""

    def text(part: Any) -> str:
        return value_text(part, untold, (*above, id(value)))

    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        own = getattr(value, "value", None) if isinstance(value, enum.Enum) else value
        return f"{type(value).__qualname__} {own!r}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, range)):
        return str(value)
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (types.ModuleType, type(None))):
        return f"{value.__module__}.{value.__qualname__}"
    if any(value is s for s in SENTINELS):
        return f"the {kind}"
    if len(above) > DEEPEST or id(value) in above:
        if untold is not None:
            untold.append(f"{kind}, which is nested deeply")
        return "..."
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(text, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(text, value)))}}}"
    if isinstance(value, (dict, types.MappingProxyType)):
        return ",".join(f"{text(k)}:{text(v)}" for k, v in value.items())
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name} {text(value.value)}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {function_parts(value, untold, (*above, id(value)))}"
    if isinstance(value, functools.partial):
        return f"partial {text((value.func, value.args, value.keywords))}"
    if isinstance(value, dataclasses.Field):
        return f"field {text([getattr(value, name, None) for name in FIELD])}"
    if dataclasses.is_dataclass(value):
        return f"{kind} {text([(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)])}"
    if untold is not None:
        untold.append(kind)
    return f"a {kind}"


# What says in a dataclass that there is no default, or that a function makes it.
SENTINELS = tuple(getattr(dataclasses, n) for n in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY") if hasattr(dataclasses, n))
# What a field of a dataclass is, as far as its methods and `dataclasses.fields` tell.
FIELD = ("name", "default", "default_factory", "init", "repr", "compare", "kw_only", "metadata")


_digests: dict[types.CodeType, str] = {}


def code_digest(code: types.CodeType) -> str:
    # Equal code has one digest; the table is as large as the code that was ever asked about.
    known = _digests.get(code)
    if known is not None:
        return known
    text = hashlib.sha256(code.co_code)
    text.update(getattr(code, "co_exceptiontable", b""))
    names = [MADE_UP.sub(r"__\1", name) for name in code.co_names]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    own = getattr(code, "co_qualname", code.co_name)
    text.update(repr((names, code.co_varnames, code.co_freevars, code.co_cellvars, counts, own)).encode())
    for k in code.co_consts:
        text.update(constant_text(k).encode())
    _digests[code] = text.hexdigest()
    return _digests[code]


def constant_text(k: Any) -> str:
    if isinstance(k, types.CodeType):
        return code_digest(k)
    if isinstance(k, tuple):
        return f"({','.join(map(constant_text, k))})"
    if isinstance(k, frozenset):
        # In no order.
        return f"{{{','.join(sorted(map(constant_text, k)))}}}"
    return f"{type(k).__name__} {k!r}"


def functions_of(cls: type) -> Iterator[types.FunctionType]:
    """The functions, written in Python, that a class has of its own."""
    for value in list(vars(cls).values()):
        yield from functions_in(value)


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    for part in (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,):
        part = getattr(part, "__func__", part)
        if isinstance(part, types.FunctionType):
            yield part


# What the interpreter and the standard library keep in classes.
UNTOLD = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__annotations__", "__firstlineno__", "__static_attributes__", "__slotnames__", "_abc_impl")
)


def class_digest(cls: type, known: dict[type, str] | None = None) -> str:
    """What the methods of a class do and its plain attributes are, inherited ones too: Dynamo reads both without a guard.
    ``known`` remembers for as long as nothing changes."""
    known = {} if known is None else known
    parts = []
    for base in cls.__mro__:
        if base.__module__ != "builtins" and base not in known:
            known[base] = digest([(name, attribute_text(v)) for name, v in sorted(vars(base).items()) if name not in UNTOLD])
        parts.append((base.__module__, base.__qualname__, known.get(base)))
    return digest(parts)


def attribute_text(value: Any) -> Any:
    functions = [function_parts(f) for f in functions_in(value)]
    return functions or (value_text(value) if not isinstance(value, type) else value.__qualname__)


def functions_told(value: Any) -> Iterator[types.FunctionType]:
    """The functions of which the digest of ``value`` tells all: of a class its own methods, and those in their closures."""
    waiting = list(functions_of(value) if isinstance(value, type) else functions_in(value))
    known = set(waiting)
    while waiting:
        function = waiting.pop()
        yield function
        if isinstance(value, type) or is_generated(function.__code__):
            new = {v for v in closure_of(function) if isinstance(v, types.FunctionType)} - known
            known |= new
            waiting += new


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code and what is nested in it: its change changes the digest."""
    yield code
    for k in code.co_consts:
        if isinstance(k, types.CodeType):
            yield from codes_of(k)


def _process_start() -> float:
    """When this process began, in seconds since the epoch; a little too early rather than late."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        # Unknown: as if everything had changed since.
        return 0.0


_start = _process_start()
_contents: dict[str, tuple[tuple[int, ...], str]] = {}


def file_digest(path: str) -> str:
    """The contents of a source file. One that changed while this process ran may not be what the process has loaded."""
    try:
        status = os.stat(path)
        if max(status.st_mtime, status.st_ctime) >= _start:
            raise NotPortable(f"{path}, which changed since the process began")
        version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = _contents.get(path)
        if known is None or known[0] != version:
            with open(path, "rb") as file:
                _contents[path] = known = (version, hashlib.sha256(file.read()).hexdigest())
        return known[1]
    except OSError as error:
        raise NotPortable(path) from error


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def structure(value: torch.nn.Module) -> list[Any]:
    """Of what modules a module is made, and which hooks they have: Dynamo traces hooks, but does not guard that there are none."""
    out: list[Any] = []
    for path, module in value.named_modules():
        hooks = [(name, *map(hook_text, found.values())) for name in HOOKS if (found := vars(module).get(name))]
        out.append((path, type(module).__module__, type(module).__qualname__, hooks))
    return out


def hook_text(hook: Any) -> str:
    function = getattr(hook, "__func__", hook)
    does = digest_of(function) if isinstance(function, types.FunctionType) else digest_of(type(function))
    return f"{getattr(function, '__qualname__', type(function).__qualname__)} {does}"


def structures(scope: Any) -> list[Any]:
    """Of the modules among a frame's values. It keeps captures of different models that run the same code apart."""
    values = [(name, scope[name]) for name in sorted(scope)]
    return [(n, structure(v)) for n, v in values if isinstance(v, torch.nn.Module) and "_modules" in vars(v)]


def surroundings() -> list[Any]:
    """What tracing takes for granted, beside what Dynamo guards: settings, and which functions PyTorch's own names mean."""
    import torch._functorch.config
    import torch.fx.experimental._config

    parts: list[Any] = [torch.__version__, torch.version.git_version, sys.version]
    for config in (torch._dynamo.config, torch._functorch.config, torch.fx.experimental._config):
        # Settings that are sets or functions print differently in each process.
        values = config.get_config_copy()
        parts.append([(k, setting_text(v)) for k, v in sorted(values.items())])
    cuda = torch.cuda.is_initialized()
    parts += [cuda, torch.cuda.current_device() if cuda else None, torch.cuda.get_device_name() if cuda else None]
    parts += switches()
    everywhere = vars(torch.nn.modules.module)
    names = sorted(n for n in everywhere if n.startswith("_global_") and isinstance(everywhere[n], dict))
    parts += [(n, *map(hook_text, everywhere[n].values())) for n in names]
    parts.append(namespaces())
    return parts


def setting_text(value: Any) -> str:
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(setting_text, value)))
    if isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def switches() -> list[Any]:
    """Settings that decide among implementations of an operator while it is traced."""
    names = ("_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_cudnn_sdp_enabled")
    names += ("_get_mkldnn_enabled", "_get_cudnn_enabled", "_get_cudnn_deterministic", "_get_cudnn_benchmark", "_get_nnpack_enabled")
    # Not `torch.get_float32_matmul_precision`, which raises once a precision was set by its backend's name.
    precision = torch._C._get_fp32_precision_getter
    kinds = [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]
    return [[n, getattr(torch._C, n)()] for n in names if hasattr(torch._C, n)] + [
        [precision(*kind) for kind in [("generic", "all"), *kinds]],
        torch.backends.mha.get_fastpath_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    ]


def namespaces() -> str:
    """Which functions PyTorch's own names mean."""
    text = hashlib.sha256()
    for path in NAMESPACES:
        home, _, rest = path.partition(".")
        value: Any = sys.modules[path] if path in sys.modules else getattr(sys.modules[home], rest, None)
        for name, entry in sorted(vars(value).items()):
            code = getattr(entry, "__code__", None)
            if isinstance(code, types.CodeType):
                text.update(f"{name} {code.co_filename} {code.co_firstlineno}\n".encode())
            elif callable(entry) and not isinstance(entry, type):
                text.update(f"{name} {type(entry).__name__} {getattr(entry, '__name__', '')}\n".encode())
    return text.hexdigest()


# Namespaces of operators that come with PyTorch.
BUILT_IN = frozenset(("aten", "prims", "prim", "_c10d_functional", "inductor", "mkldnn", "quantized", "quantized_decomposed", "sparse"))


def operators_of(gm: Any) -> dict[str, str]:
    """Operators of a graph that do not come with PyTorch, with digests of what is known of them."""
    out = {}
    for module in gm.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = getattr(node.target, "_overloadpacket", node.target)
            name = getattr(target, "_qualified_op_name", None)
            if isinstance(name, str) and name.partition("::")[0] not in BUILT_IN:
                out[name] = operator_digest(name)
    return out


def operator_digest(name: str) -> str:
    """What the Python functions that define an operator do, and the files that they are in. For one that is written in
    another language, the libraries that the process has loaded for operators."""
    from torch._library.custom_ops import OPDEFS

    parts: list[Any] = []
    definition = OPDEFS.get(name)
    if definition is not None:
        values = [v for value in vars(definition).values() for v in (value.values() if isinstance(value, dict) else [value])]
        functions = {v for v in values if isinstance(v, types.FunctionType)}
        mine = [f for f in functions if not (f.__module__ or "").startswith("torch._library")]
        parts = sorted((f.__qualname__, code_digest(f.__code__), file_digest(f.__code__.co_filename)) for f in mine)
    else:
        if any(key.startswith(name.replace("::", "/")) for key in torch.library._impls):
            raise NotPortable(f"operator {name}, which Python functions implement")
        for library in sorted(torch.ops.loaded_libraries):
            status = os.stat(library)
            parts.append((library, status.st_size, status.st_mtime_ns))
    namespace, _, packet = name.partition("::")
    overloads = getattr(getattr(torch.ops, namespace), packet)
    parts += [str(getattr(overloads, o)._schema) for o in overloads.overloads()]
    return digest(parts)
