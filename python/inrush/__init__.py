"""inrush: a compiler for PyTorch graphs, in Rust.

``torch.compile(f, backend="inrush")`` finds the backend through its entry point; importing this package is needed only for
its other functions:

    inrush.last_compile()               what was compiled last: kernels, called operators, fallbacks with reasons, times
    inrush.output_code(compiled)        the source of its graphs: files of Python that run without inrush
    inrush.options()                    the names that ``torch.compile(..., options={...})`` takes, with their defaults
    inrush.captures()                   what became of captured frames: restored, kept, or why not
    inrush.remote_cache()               what became of the cache's second tier: entries found, stored, or why it is off
    inrush.warm_start(False)            do not keep what Dynamo captures on disk, nor look there
    inrush.torch_patches()              which functions of PyTorch are replaced, why, and what is off with this release
    inrush.wait_for_tuning()            wait for option ``tune="background"``
    inrush.aot_compile(program, path)   a package from an exported program
    inrush.load(path)                   the package as a callable
    inrush.register_operator(schema, f) the function that packages call for an operator of one's own
    inrush.load_operators(path)         those of a shared library

Importing it does not import PyTorch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from inrush import log
from inrush._native import Error, InputError, InternalError, MachineError, UnsupportedError

if TYPE_CHECKING:
    from inrush.capture.install import warm_start as warm_start
    from inrush.capture.outcomes import captures as captures
    from inrush.compile_options import options as options
    from inrush.dynamo_backend import backend as backend
    from inrush.operators import load_operators as load_operators
    from inrush.operators import register_operator as register_operator
    from inrush.package import CompiledPackage as CompiledPackage
    from inrush.package import aot_compile as aot_compile
    from inrush.package import load as load
    from inrush.patches import torch_patches as torch_patches
    from inrush.remote import remote_cache as remote_cache
    from inrush.report import Compilation as Compilation
    from inrush.report import GraphReport as GraphReport
    from inrush.report import compilations as compilations
    from inrush.report import last_compile as last_compile
    from inrush.source import output_code as output_code
    from inrush.tuning import wait_for_tuning as wait_for_tuning

# Names that are imported at first use, with the module that has them.
_LAZY = {
    "backend": "dynamo_backend",
    "options": "compile_options",
    "aot_compile": "package",
    "load": "package",
    "CompiledPackage": "package",
    "register_operator": "operators",
    "load_operators": "operators",
    "last_compile": "report",
    "compilations": "report",
    "Compilation": "report",
    "GraphReport": "report",
    "output_code": "source",
    "captures": "capture.outcomes",
    "remote_cache": "remote",
    "warm_start": "capture.install",
    "torch_patches": "patches",
    "wait_for_tuning": "tuning",
}

__all__ = ["Error", "InputError", "InternalError", "MachineError", "UnsupportedError", *_LAZY]

log.configure()


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'inrush' has no attribute {name!r}")
    if name == "backend":
        _prepare()
    value = getattr(importlib.import_module(f"inrush.{module}"), name)
    globals()[name] = value
    return value


def _prepare() -> None:
    """Starts building kernels for GPUs, and replaces functions of PyTorch: the caller is about to compile."""
    from inrush import gpu, patches

    gpu.warm()
    patches.install()
    if os.environ.get("INRUSH_WARM_START", "1") in ("", "0"):
        return
    try:
        from inrush.capture import install

        install.install()
    except (UnsupportedError, ImportError, AttributeError) as error:
        log.cache.info("captured frames are not kept: %s", error)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
