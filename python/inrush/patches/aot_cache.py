"""Replacements that have AOTAutograd's cache keep inrush's code, in the folder of the thread, under inrush's keys."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
from typing import Any, Callable, Iterator

import torch
import torch._functorch.config as config
from torch._functorch._aot_autograd import autograd_cache
from torch._guards import TracingContext
from torch._inductor.codecache import sha256_hash
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from inrush import _native, log, torch_internals
from inrush.autograd import aot_cache
from inrush.capture import environment, fingerprint
from inrush.capture.session import CaptureSession
from inrush.remote import fetch, files_in, store
from inrush.torch_internals import BypassCache
from inrush.triton import user_kernels


class GraphKey:
    """All that decides what a captured graph is compiled to, apart from what its folder stands for.

    PyTorch's own key would have Inductor imported for its settings.
    """

    def __init__(self, gm: Any, example_inputs: Any, aot_config: Any, aliases: Any) -> None:
        if hasattr(gm, "saved_tensors_hooks_pack_0"):
            raise BypassCache("hooks on saved tensors")
        # The graph names kernels by numbers.
        self.kernels = list(user_kernels.identities(gm))
        if any(is_traceable_wrapper_subclass(x) for x in example_inputs):
            # AOTAutograd traces their methods, wherever these lead.
            raise BypassCache("tensor subclasses")
        try:
            self.operators = sorted(fingerprint.operators_of(gm).items())
        except fingerprint.NotPortable as error:
            raise BypassCache(str(error)) from error
        self.names = environment.namespaces()
        self.switches = environment.switches()
        self.aliases = aliases
        self.gm = gm
        self.example_inputs = example_inputs
        self.aot_config = aot_config
        self.torch = (torch.__version__, torch.version.git_version)
        self.modes = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch_internals.autocast_state(),
            torch.are_deterministic_algorithms_enabled(),
            str(torch.get_default_dtype()),
        )
        self.config = config.save_config()
        self.checkpoints = autograd_cache._collect_context_fn_hashes(gm)
        self.solvers = autograd_cache._get_custom_estimator_solver_uuids(config)
        context = TracingContext.try_get()
        shape_env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
        self.hints = sorted((str(k), v) for k, v in getattr(shape_env, "var_to_hint_override", {}).items())


def _tell_reason(session: CaptureSession | None, error: Exception) -> None:
    """Passes on why AOTAutograd keeps no entry of a graph."""
    if session is not None:
        session.add_graph_without_entry(str(error) or type(error).__name__)


@contextlib.contextmanager
def _reasons_told(session: CaptureSession | None) -> Iterator[None]:
    """Passes on an error inside of this, which AOTAutograd takes for a reason to keep no entry, without a word."""
    try:
        yield
    except Exception as error:
        _tell_reason(session, error)
        raise


def entries(folder: str, only: list[str] | None = None) -> Iterator[tuple[Any, bytes, bool]]:
    """Yields AOTAutograd's entries in a folder, all or those of these names. Names are digests of what was written: one with any other
    content is damaged."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder) if only is None else only):
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    content = file.read()
                if not name.startswith(".") and name == sha256_hash(content):
                    _native.touch(path)
                    yield pickle.loads(content), content, True
            except Exception as error:
                log.cache.info("an entry is not read: %s", error)


def own_folder(get_folder: Callable[..., Any]) -> Callable[..., Any]:
    """Has the folder of entries follow the thread."""

    @functools.wraps(get_folder)
    def own(cls: Any) -> str:
        return aot_cache.current().folder or get_folder(cls)

    return own


def own_make_entry(make_entry: Callable[..., Any]) -> Callable[..., Any]:
    """Makes bundled entries of graphs that inrush compiled."""

    @functools.wraps(make_entry)
    def own(compiled_fw_func: Any, *args: Any, **kwargs: Any) -> Any:
        code = torch_internals.below(compiled_fw_func)
        if not isinstance(code, aot_cache.Code):
            return make_entry(compiled_fw_func, *args, **kwargs)
        with config.patch(bundled_autograd_cache=True), _reasons_told(code.session()):
            return make_entry(compiled_fw_func, *args, **kwargs)

    return own


def own_save(save: Callable[..., Any]) -> Callable[..., Any]:
    """Saves entries in the folder of their code, and gives them to the session of the frame."""

    @functools.wraps(save)
    def own(key: str, entry: Any, remote: bool) -> None:
        code = getattr(entry.compiled_fw, "result", None)
        if not isinstance(code, aot_cache.Code):
            return save(key, entry, remote)
        if code.folder is None:
            return None
        # With a name PyTorch would keep a copy in the process, which means to load the machine code again.
        config_of_entry = entry.sanitized_aot_config
        name, config_of_entry.precompile_backend_id = config_of_entry.precompile_backend_id, None
        session = code.session()
        # Constants of a graph are real; while all tensors are fake, those of a GPU could not be written down.
        with aot_cache.scope(aot_cache.Scope(code.folder)), torch_internals.no_tracing():
            save(key, entry, False)
            store("graphs", code.folder, key, files_in(os.path.join(code.folder, key)))
            if session is not None and name is not None:
                try:
                    session.add_graph(name, pickle.dumps(entry))
                except Exception as error:
                    _tell_reason(session, error)
        return None

    return own


def own_bundles(bundles: Callable[..., Any]) -> Callable[..., Any]:
    """Bundles the entry of a backward graph that was just compiled, which may be in a call."""

    @functools.wraps(bundles)
    def own() -> bool:
        return aot_cache.take_backward() or bundles()

    return own


def own_key(get_key: Callable[..., Any]) -> Callable[..., Any]:
    """Gives graphs that inrush compiles keys of :class:`GraphKey`."""

    @functools.wraps(get_key)
    def own(gm: Any, example_inputs: Any, aot_config: Any, *rest: Any, **named: Any) -> Any:
        scope = aot_cache.current()
        if scope.folder is None:
            return get_key(gm, example_inputs, aot_config, *rest, **named)
        gm = getattr(gm, "gm", gm)
        # Newer releases leave it to the key to look past what Dynamo numbers anew for each capture.
        with autograd_cache.sanitize_gm_for_cache(gm), _reasons_told(scope.session):
            autograd_cache.check_cacheable(gm)
            pickler = autograd_cache.AOTAutogradCachePickler(gm)
            key = GraphKey(gm, example_inputs, aot_config, scope.aliases)
            if key.kernels:
                # Their numbers are left out of the graph's text.
                pickler.dispatch_table[type(gm)] = pickler._reduce_graph_module
            return "a" + pickler.get_hash(key), []

    return own


def own_find(find: Callable[..., Any]) -> Callable[..., Any]:
    """Notes the entry that was found, pickled."""

    @functools.wraps(find)
    def own(cls: Any, *args: Any, **kwargs: Any) -> Any:
        found = find(cls, *args, **kwargs)
        scope = aot_cache.current()
        if scope.folder is not None:
            scope.found = found[1]
        return found

    return own


def own_candidates(candidates: Callable[..., Any]) -> Callable[..., Any]:
    """Reads only entries that are whole: those of the folder, then those of the second tier."""

    @functools.wraps(candidates)
    def own(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[tuple[Any, ...]]:
        folder = aot_cache.current().folder
        if folder is None:
            yield from candidates(cls, local, remote_cache, key)
        elif local:
            place = cls._get_tmp_dir_for_key(key)
            yield from entries(place)
            yield from entries(place, fetch("graphs", folder, key, place))

    return own
