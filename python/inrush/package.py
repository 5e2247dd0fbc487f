"""Ahead of time: ``inrush.aot_compile`` makes a package of an exported program, ``inrush.load`` a callable of a package.

A package is what the command line makes and runs too. This module adds the nesting of inputs and outputs to it, so that what
is loaded is called like the module that was exported.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

from inrush import _native, log
from inrush._native import InputError

if TYPE_CHECKING:
    import torch

# The entry of a package that holds PyTorch's tree specs.
TREES = "python.json"


def aot_compile(program: torch.export.ExportedProgram, path: str | os.PathLike[str], *, target: str = "native") -> str:
    """Compiles an exported program into a package at ``path``.

    ``target`` is the processor to compile for: ``native``, ``scalar``, ``avx2``, ``avx512`` or ``neon``. Gives the path.
    """
    import torch
    from torch.utils import _pytree as pytree

    if not isinstance(program, torch.export.ExportedProgram):
        raise InputError(f"an ExportedProgram of torch.export is needed, not {type(program).__name__}")
    path = os.fspath(path)
    with tempfile.TemporaryDirectory(prefix="inrush-") as folder:
        archive = os.path.join(folder, "program.pt2")
        torch.export.save(program, archive)
        _native.compile_package(archive, path, target)
    spec = program.call_spec
    trees = {"inputs": pytree.treespec_dumps(spec.in_spec), "outputs": pytree.treespec_dumps(spec.out_spec)}
    with zipfile.ZipFile(path, "a", compression=zipfile.ZIP_STORED) as package:
        package.writestr(TREES, json.dumps(trees))
    log.package.info("wrote %s for %s", path, target)
    return path


def load(path: str | os.PathLike[str], *, threads: int | None = None, seed: int = 0) -> CompiledPackage:
    """Loads a package. No compiler is needed; weights are read from the file.

    ``seed`` is that of the first call's random numbers where the program draws some; each call takes the next.
    """
    import torch  # noqa: F401  # the native half looks PyTorch's functions up in the process

    path = os.fspath(path)
    compiled, inputs = _native.load_package(path, threads, seed)
    with zipfile.ZipFile(path) as package:
        trees = json.loads(package.read(TREES)) if TREES in package.namelist() else None
    return CompiledPackage(path, compiled, inputs, trees)


class CompiledPackage:
    """A compiled program: called like the module that was exported, or with flat inputs by :meth:`flat`."""

    def __init__(self, path: str, compiled: Any, inputs: list[tuple[str, tuple[str, int] | None, Any, bool]], trees: Any) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.path = path
        self._compiled = compiled
        self._inputs = inputs
        self._wanted = [None if t is None else (getattr(torch, t[0]), t[1]) for _, t, _, _ in inputs]
        self._in = None if trees is None else pytree.treespec_loads(trees["inputs"])
        self._out = None if trees is None else pytree.treespec_loads(trees["outputs"])

    def __repr__(self) -> str:
        return f"CompiledPackage({self.path!r}, inputs: {', '.join(name for name, *_ in self._inputs) or 'none'})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils import _pytree as pytree

        if self._in is None:
            if kwargs:
                raise InputError(f"`{self.path}` does not say how its inputs are named: pass them in order")
            return self.flat(*args)
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in:
            raise InputError(f"the program was exported with inputs nested as {self._in}, these are {spec}")
        return pytree.tree_unflatten(list(self.flat(*flat)), self._out)

    def flat(self, *inputs: Any) -> tuple[Any, ...]:
        """Outputs, in order, for inputs in order."""
        import torch
        from torch.autograd import forward_ad

        if len(inputs) != len(self._inputs):
            raise InputError(f"the program takes {len(self._inputs)} inputs, not {len(inputs)}")
        for value, (name, _, constant, begins), want in zip(inputs, self._inputs, self._wanted):
            if constant is not None and value != constant:
                raise InputError(f"input `{name}` was exported as {constant!r} and takes nothing else")
            if want is None:
                continue
            if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
                raise InputError(f"input `{name}` takes a dense tensor of the CPU, not {type(value).__name__}")
            if (value.dtype, value.dim()) != want:
                raise InputError(f"input `{name}` takes {want[1]} dimensions of {want[0]}, not {value.dim()} of {value.dtype}")
            if begins and value.storage_offset():
                raise InputError(
                    f"input `{name}` must begin its storage, its offset is {value.storage_offset()}: "
                    "the program counts positions in the storage (`as_strided`)"
                )
        if forward_ad._current_level >= 0 and any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
            raise InputError("an input carries a tangent of `torch.autograd.forward_ad`, which a package would lose")
        with torch.no_grad():
            return self._compiled(*inputs)
