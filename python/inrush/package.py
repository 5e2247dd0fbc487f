"""Ahead of time: ``inrush.aot_compile`` makes a package of an exported program, ``inrush.load`` a callable of a package.

A package is what the command line makes and runs too. This module adds the nesting of inputs and outputs to it, so that what
is loaded is called like the module that was exported.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inrush import _native, fallback, log, operators
from inrush._native import InputError, UnsupportedError

if TYPE_CHECKING:
    import torch

# The entry of a package that holds PyTorch's tree specs.
TREES = "python.json"
# Kinds of packages: of inrush, and those that PyTorch loads by itself.
FORMATS = ("inrush", "aoti")
# Forms in which packages hold kernels for GPUs.
KERNELS = ("code", "source")


def aot_compile(
    program: torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    *,
    target: str = "native",
    targets: Sequence[str] | None = None,
    libraries: bool = True,
    format: str = "inrush",
    kernels: str = "code",
    tune: bool = False,
) -> str:
    """Compiles an exported program into a package at ``path``.

    ``target`` is the processor to compile for: ``native``, ``scalar``, ``avx2``, ``avx512`` or ``neon``. ``targets`` are several
    instead, GPUs among them: ``["cpu", "cpu:avx2", "h100", "a100", "mi300x"]``. Kernels for GPUs are built by Triton, which takes no
    GPU; their matrix products are calls of cuBLAS unless ``libraries`` is false.

    Triton kernels that the program launches, by operators of ``torch.library.triton_op`` or by itself, are built into targets that are
    GPUs. Of a kernel with several configurations a target holds the fastest, where PyTorch has such a GPU here, else the first that
    builds.

    With ``kernels="source"`` targets that are GPUs hold the Triton source of their kernels, which is built where the package is loaded
    (``build_kernels`` of :func:`load`). Then no Triton is needed here, unless the program launches kernels of its own. With ``tune``
    neighbouring tiles of each kernel are stored too: its first launch measures them and keeps the fastest.

    With ``format="aoti"`` PyTorch loads the package by itself: ``torch._inductor.aoti_load_package(path)``. It runs on the CPU if a
    target is one, else on a GPU of kind ``cuda``. Gives the path.
    """
    import torch
    from torch.utils import _pytree as pytree

    # It imports PyTorch's compiler: seconds that a process that only loads packages does not wait.
    from inrush import remote
    from inrush.triton import exported

    remote.finish_at_exit()
    if not isinstance(program, torch.export.ExportedProgram):
        raise InputError(f"an ExportedProgram of torch.export is needed, not {type(program).__name__}")
    path = os.fspath(path)
    wanted = [target] if targets is None else list(targets)
    if not wanted:
        raise InputError("a package needs a target")
    if kernels not in KERNELS:
        raise InputError(f"packages hold kernels as {' or as '.join(map(repr, KERNELS))}, not as {kernels!r}")
    if tune and kernels != "source":
        raise InputError("`tune` measures where a package is loaded: it is for kernels='source'")
    if format not in FORMATS:
        raise InputError(f"there is no format {format!r} of packages: {' and '.join(FORMATS)} are")
    if format == "aoti":
        # What is missing shows before anything is compiled.
        _native.check_aoti(wanted, _library_folders())
    fallback.tell_cache()
    spec = program.call_spec
    trees = {"inputs": pytree.treespec_dumps(spec.in_spec), "outputs": pytree.treespec_dumps(spec.out_spec)}
    with tempfile.TemporaryDirectory(prefix="inrush-") as folder:
        archive = os.path.join(folder, "program.pt2")
        program, of_user = exported.prepare(program)
        torch.export.save(program, archive)
        made = path if format == "inrush" else os.path.join(folder, "package.inrush")
        # PyTorch reads the weights of an archive of its own.
        schemas, panels = operators.schemas(program), format == "inrush"
        _native.compile_package(archive, made, wanted, libraries, panels, kernels == "code", tune, schemas, of_user)
        if format == "aoti":
            _refuse_operators(made)
        with zipfile.ZipFile(made, "a", compression=zipfile.ZIP_STORED) as package:
            package.writestr(TREES, json.dumps(trees))
        if format == "aoti":
            _native.pack_aoti(made, path, _library_folders())
    log.package.info("wrote %s for %s", path, ", ".join(wanted))
    return path


def _refuse_operators(path: str) -> None:
    """Refuses operators of the user's, whose functions PyTorch's loader does not pass on."""
    found = [schema for _, called in _native.package_targets(path) for schema in called]
    if found:
        raise UnsupportedError(f"custom operators in a package that PyTorch loads by itself: {', '.join(dict.fromkeys(found))}")


def _library_folders() -> list[str]:
    """Folders with the library that packages of format ``aoti`` hold: the wheel's, or that of a build that the native module links to."""
    native = _native.__file__
    return list(dict.fromkeys(os.path.dirname(p) for p in (native, os.path.realpath(native))))


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    threads: int | None = None,
    seed: int = 0,
    cuda_graphs: bool = False,
    concurrent: int = 4,
    build_kernels: bool = False,
    records: str | os.PathLike[str] | None = None,
) -> CompiledPackage:
    """Loads a package. No compiler is needed; weights are read from the file.

    ``device`` is ``"cpu"`` or a GPU such as ``"cuda:0"``, an AMD GPU in builds of PyTorch for ROCm, or ``"xpu:0"`` in those for Intel
    GPUs; ``"cuda"`` is PyTorch's current one. Without it that is the CPU if the package has a target for one, else the first GPU. On a GPU calls take and give tensors of that device, on PyTorch's current
    stream, in memory of PyTorch's allocator; they return before the work is done. On Intel GPUs, two threads that issue work at the same
    time, eager PyTorch's included, need streams of their own. With ``cuda_graphs`` calls are captured from the
    second of the same sizes on. Up to ``concurrent`` calls are issued at once.

    A package may hold the Triton source of its kernels. They are built in the background if ``build_kernels`` is true, which runs code
    of the package in Triton's Python, so that only packages that are trusted should be loaded so. Built kernels are kept in the cache,
    and in the folder ``records`` if one is named; where all are found, neither ``build_kernels`` nor Triton is needed.

    ``threads`` run each call on the CPU, by default PyTorch's. ``seed`` is that of the first call's random numbers where the
    program draws some; each call takes the next.

    Operators that are not PyTorch's own are called: those of ``torch.library`` as they are, others by the functions of
    :func:`inrush.register_operator` and :func:`inrush.load_operators`.
    """
    import torch

    from inrush import gpu

    path = os.fspath(path)
    targets = _native.package_targets(path)
    if device is None:
        device = "cpu" if any(name.startswith("cpu") for name, _ in targets) else f"{gpu.torch_name()}:0"
    on = _device(device)
    kind = gpu.kind_of(on.type)
    operators.take_from_torch([s for name, called in targets if name.startswith(kind) for s in called], on.type)
    if on.type == "cpu":
        if cuda_graphs:
            raise InputError("CUDA graphs are for GPUs, not for the CPU")
        compiled, inputs = _native.load_package(path, threads, seed)
    else:
        if threads is not None:
            raise InputError(f"`threads` are the CPU's, the package is loaded for {on}")
        if concurrent < 1:
            raise InputError(f"{concurrent} calls at once: at least one is needed")
        if gpu.module().is_available():
            # PyTorch takes the device into use before inrush does.
            gpu.module().init()
        compiled, inputs = _native.load_device_package(path, str(on), seed, cuda_graphs, concurrent, build_kernels, records)
        for note in compiled.notes():
            log.package.warning(note)
    with zipfile.ZipFile(path) as package:
        trees = json.loads(package.read(TREES)) if TREES in package.namelist() else None
    return CompiledPackage(path, compiled, inputs, trees, on)


def _device(device: str | torch.device) -> torch.device:
    """The device with its index."""
    import torch

    from inrush import gpu

    try:
        on = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise InputError(f"{device!r} is no device: {e}") from e
    if on.type == "cpu":
        return torch.device("cpu")
    if on.type != gpu.torch_name():
        outside = "; outside of PyTorch `inrush_runtime.load` runs them on all kinds" if on.type in ("cuda", "xpu") else ""
        raise InputError(f"packages run on `cpu` and `{gpu.torch_name()}` in this build of PyTorch, not on {on}{outside}")
    if on.index is None:
        return torch.device(gpu.torch_name(), gpu.module().current_device() if gpu.module().is_available() else 0)
    return on


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """An input or output of a package. Sizes that a call decides are texts; ``ranges`` has the inclusive bounds of the symbols."""

    name: str | None
    kind: str
    dtype: torch.dtype | None
    shape: tuple[int | str, ...] | None
    ranges: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    written: bool = False


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """A weight or buffer of a package. Calls write those that are ``written``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    written: bool


@dataclasses.dataclass(frozen=True)
class Signature:
    """Inputs and outputs, flattened, and weights of a package."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[WeightSpec, ...]

    @staticmethod
    def _of(lines: Any) -> Signature:
        import torch

        def tensor(given: Any) -> dict[str, Any]:
            if given is None:
                return {"dtype": None, "shape": None}
            dtype, sizes = given
            return {"dtype": getattr(torch, dtype), "shape": tuple(text if n is None else n for n, text in sizes)}

        inputs, outputs, weights = lines
        return Signature(
            tuple(TensorSpec(name, kind, ranges={s: (a, b) for s, a, b in bounds}, written=written, **tensor(given)) for name, given, kind, bounds, written in inputs),
            tuple(TensorSpec(None, kind, **tensor(given)) for given, kind in outputs),
            tuple(WeightSpec(name, getattr(torch, dtype), tuple(sizes), written) for name, dtype, sizes, written in weights),
        )


class Leaf:
    """Stands for a tensor in a tree."""


def out_kind(spec: Any) -> str:
    """How outputs are nested: ``one`` of them, a ``tuple`` of them, or otherwise."""
    from torch.utils import _pytree as pytree

    if spec is None:
        return "nested"
    if spec.is_leaf():
        return "one"
    count = spec.num_leaves
    return "tuple" if spec == pytree.tree_structure((*(Leaf() for _ in range(count)),)) else "nested"


class CompiledPackage:
    """A compiled program: called like the module that was exported, or with flat inputs by :meth:`flat`."""

    def __init__(
        self, path: str, compiled: Any, inputs: list[tuple[str, tuple[str, int] | None, Any, bool]], trees: Any, device: torch.device
    ) -> None:
        import torch
        from torch.utils import _pytree as pytree

        self.path = path
        self.device = device
        self._compiled = compiled
        self._inputs = inputs
        self._wanted = [None if t is None else (getattr(torch, t[0]), t[1]) for _, t, _, _ in inputs]
        self._in = None if trees is None else pytree.treespec_loads(trees["inputs"])
        self._out = None if trees is None else pytree.treespec_loads(trees["outputs"])
        self._tensor = torch.Tensor
        # Programs of tensors in order, none of them nested, need no trees.
        in_order = pytree.tree_structure(((*(Leaf() for _ in inputs),), {}))
        self._in_order = self._in == in_order and None not in self._wanted
        self._out_kind = out_kind(self._out)

    def __repr__(self) -> str:
        return f"CompiledPackage({self.path!r}, {self.device}, inputs: {', '.join(name for name, *_ in self._inputs) or 'none'})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from torch.utils import _pytree as pytree

        if self._in is None:
            if kwargs:
                raise InputError(f"`{self.path}` does not say how its inputs are named: pass them in order")
            return self.flat(*args)
        if self._in_order and not kwargs and len(args) == len(self._inputs) and all(type(a) is self._tensor for a in args):
            return self._nested(self.flat(*args))
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in:
            raise InputError(f"the program was exported with inputs nested as {self._in}, these are {spec}")
        return self._nested(self.flat(*flat))

    def _nested(self, outputs: tuple[Any, ...]) -> Any:
        """Outputs as the program nests them."""
        if self._out_kind == "one":
            return outputs[0]
        if self._out_kind == "tuple":
            return outputs
        from torch.utils import _pytree as pytree

        return pytree.tree_unflatten(list(outputs), self._out)

    @property
    def signature(self) -> Signature:
        """Inputs, outputs and weights."""
        return Signature._of(self._compiled.signature())

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of all weights and buffers of the active set on the package's device, as they are now."""
        return {name: value.to(self.device) for name, value in self._compiled.weights().items()}

    def update_weights(self, weights: Mapping[str, torch.Tensor], *, all: bool = False) -> None:
        """Replaces weights of the inactive set by copies, by name. Several updates add up until :meth:`swap_weights`. With ``all``,
        every weight must be named. Calls go on meanwhile. A package on a GPU takes tensors of that GPU and of the CPU.
        """
        import torch

        given = []
        for name, value in weights.items():
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                raise InputError(f"the weight `{name}` takes a dense tensor, not {type(value).__name__}")
            if value.device.type != "cpu" and value.device != self.device:
                raise InputError(f"the weight `{name}` is on {value.device}, the package was loaded for {self.device}")
            given.append((name, value.detach().resolve_conj().resolve_neg()))
        self._compiled.update_weights(given, all)

    def swap_weights(self) -> None:
        """Makes the inactive set the active one. Calls that have begun finish on the old set."""
        self._compiled.swap_weights()

    def discard_update(self) -> None:
        """Forgets the inactive set."""
        self._compiled.discard_update()

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
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                raise InputError(f"input `{name}` takes a dense tensor, not {type(value).__name__}")
            if value.device != self.device:
                raise InputError(f"input `{name}` is on {value.device}, the package was loaded for {self.device}")
            if (value.dtype, value.dim()) != want:
                raise InputError(f"input `{name}` takes {want[1]} dimensions of {want[0]}, not {value.dim()} of {value.dtype}")
            if begins and value.storage_offset():
                raise InputError(
                    f"input `{name}` must begin its storage, its offset is {value.storage_offset()}: "
                    "the program counts positions in the storage (`as_strided`)"
                )
        if forward_ad._current_level >= 0 and any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
            raise InputError("an input carries a tangent of `torch.autograd.forward_ad`, which a package would lose")
        if not torch.is_grad_enabled():
            return self._compiled(*inputs)
        with torch.no_grad():
            return self._compiled(*inputs)
