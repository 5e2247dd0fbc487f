"""Restores captures of other processes as entries of Dynamo's cache, with guards made for the objects of this process."""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import pickle
import threading
import time
import types
from typing import Any, Callable, Iterator

from torch._dynamo import convert_frame, guards, output_graph
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.package import SerializedCode, load_guards_state
from torch._dynamo.utils import CleanupHook, CleanupManager

from inrush import report as reports
from inrush import torch_internals
from inrush.autograd import aot_cache, training
from inrush.capture import bytecode, environment, fingerprint, names
from inrush.capture.fingerprint import NotPortable
from inrush.capture.stored import Guards, Stored, checksum
from inrush.dynamo_graph import aliasing


def read(path: str) -> Stored:
    """Reads a capture. Raises :class:`NotPortable` for a file that is damaged or something else."""
    with open(path, "rb") as file:
        content = file.read()
    if os.path.basename(path) != checksum(content):
        raise NotPortable("the file, which is damaged")
    stored = pickle.loads(content)
    if not isinstance(stored, Stored):
        raise NotPortable("the file holds something else")
    return stored


def compare_digests(held: Guards) -> None:
    """Raises if a file, class or operator is not what it was when the frame was captured."""
    for name, digest in held.files.items():
        if fingerprint.file_digest(name) != digest:
            raise NotPortable(f"{name} has changed")
    digests: dict[type, str] = {}
    for (module, name), digest in held.types.items():
        if fingerprint.class_digest(names.found(module, name), digests) != digest:
            raise NotPortable(f"methods of {name} have changed")
    for name, digest in held.operators.items():
        if fingerprint.operator_digest(name) != digest:
            raise NotPortable(f"operator {name} has changed")


def restore(path: str, code: types.CodeType, scope: dict[str, Any], locals: dict[str, Any], hooks: Any, compile_id: Any) -> Any:
    """Returns a capture as what Dynamo's own capture would give; raises if it does not hold for the frame."""
    start = time.perf_counter()
    stored = read(path)
    held = stored.guards
    compare_digests(held)
    added: list[str] = []

    def put(name: str, value: Any) -> None:
        if name not in scope:
            scope[name] = value
            added.append(name)
        elif scope[name] is not value:
            raise NotPortable(f"{name}, which is another here")

    try:
        for alias, module in stored.imports.items():
            put(alias, names.imported(module))
        for name, what in stored.values.items():
            put(name, names.named(what))
        state = load_guards_state(held.state)
        key = state.output_graph.name_of_builtins_dict_key_in_fglobals
        if key:
            put(key, output_graph.get_builtins_dict(scope))
        manager = guard_manager(state, held, code, scope, locals, hooks)
        compare_constants(held)
        # Fresh names, which nothing else in the process has.
        fresh = {n: bytecode.fresh_name(n) for n in (*stored.graphs, *stored.resumes)}
        resumes = {n: bytecode.renamed(SerializedCode.to_code_object(c), fresh, scope) for n, c in stored.resumes.items()}
        compiled = bytecode.renamed(SerializedCode.to_code_object(stored.code), fresh, scope)
        made = set(fresh.values())
        unknown = [n for n in bytecode.global_names(compiled) if n not in scope and n not in made and not hasattr(builtins, n)]
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
    """Keeps PyTorch from reporting guards that cannot be made as errors: here they tell that the capture is of another frame."""
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
    """Makes Dynamo's guards for the objects of this process."""

    digests: dict[type, str] = {}

    def here(builder: Any, guard: Any) -> Any:
        try:
            return builder.get(guard)
        except Exception as error:
            raise NotPortable(f"{guard.name}, which is not there") from error

    class Manager(guards.CheckFunctionManager):
        def build_guards(self, *args: Any, **named: Any) -> Any:
            builder, manager = super().build_guards(*args, **named)
            # The guards so far were made from values of the other process; these are made from values of this one.
            builder.scope["L"], builder.scope["G"] = locals, scope
            builder.src_get_value_cache.clear()
            for guard, name in held.identities:
                if names.name_of(here(builder, guard), digests) != name:
                    raise NotPortable(f"{guard.name}, which is another here")
                guard.create_fn(builder, guard)
            for parts in held.aliasing:
                aliasing.aliasing(builder, None, **parts)
            for guard, digest in held.modules:
                if fingerprint.digest(environment.structure(here(builder, guard))) != digest:
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
    """Makes the calls again whose results were declared constant. Guards hold, so tracing would make the same calls."""
    for name, args, named_args, text in held.constants:
        result = names.wrapped(name)(*args, **named_args)
        if not names.is_plain(result) or fingerprint.value_text(result) != text:
            raise NotPortable(f"{name[1]}, which gives another result")


def report(codes: list[aot_cache.Code], seconds: float) -> None:
    """Reports the graphs of a restored capture as compiled."""
    new = reports.begin()
    new.direct = all(c.direct for c in codes)
    for c in codes:
        c.report.stages = dict(c.function.report()["stages"])
        c.report.cache = "hit, not captured"
        new.graphs.append(c.report)
    new.seconds = seconds


def load_graph(data: bytes, codes: list[aot_cache.Code]) -> Callable[..., Any]:
    """Returns an entry of AOTAutograd's as a function of flat arguments."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    entry = pickle.loads(data)
    if isinstance(entry, aot_cache.Code):
        # It was recorded without AOTAutograd.
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
