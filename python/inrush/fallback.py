"""Handles failures of inrush itself: one warning, a saved reproduction, and the graph runs eagerly."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from typing import Any

from inrush import _native, log

_warned: set[str] = set()


def report_failure(gm: Any, kind: str, error: BaseException) -> tuple[str, str | None]:
    """Saves a reproduction and warns, once for each cause. Gives the cause and the folder."""
    cause = f"{type(error).__name__}: {error}"
    first = cause.splitlines()[0] if cause else type(error).__name__
    folder = save(gm, kind, cause)
    known = first in _warned
    _warned.add(first)
    where = f"; reproduction in {folder}" if folder else ""
    text = f"inrush could not compile a graph ({kind}), which runs eagerly instead: {first}{where}"
    if known:
        log.fallback.info(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        log.fallback.warning(text)
    return first, folder


def tell_cache() -> None:
    """Warns, once for each cause, that what is built is kept in a temporary folder, or that something is wrong with the second tier."""
    for notice in (_native.cache_notice(), _native.remote_notice()):
        if notice is not None and notice not in _warned:
            _warned.add(notice)
            warnings.warn(notice, RuntimeWarning, stacklevel=2)
            log.cache.warning(notice)


def tell_device(why: str) -> None:
    """Warns, once for each cause, that graphs of a device have no kernels."""
    text = f"inrush compiles nothing for this graph, whose operators PyTorch calls one by one: {why}"
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        log.fallback.warning(text)


def tell_option(why: str) -> None:
    """Warns, once for each cause, that an option has no effect on a device."""
    if why not in _warned:
        _warned.add(why)
        warnings.warn(why, RuntimeWarning, stacklevel=2)


def save(gm: Any, kind: str, cause: str) -> str | None:
    """Writes the graph, what its inputs are and the error; None where that cannot be done."""
    try:
        code = gm.print_readable(print_output=False, include_stride=True, include_device=True)
        name = hashlib.blake2b((code + cause).encode(), digest_size=8).hexdigest()
        folder = os.path.join(_native.cache_dir(), "reproductions", f"{time.strftime('%Y%m%d')}-{name}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "graph.txt"), "w", encoding="utf-8") as out:
            out.write(code)
        with open(os.path.join(folder, "error.txt"), "w", encoding="utf-8") as out:
            out.write(cause + "\n")
        with open(os.path.join(folder, "reproduce.py"), "w", encoding="utf-8") as out:
            out.write(script(gm, kind))
        return folder
    except Exception as error:
        # A reproduction is a courtesy: its failure must not hide the one that it is about.
        log.fallback.info("the reproduction was not saved: %s", error)
        return None


def script(gm: Any, kind: str) -> str:
    """A program that compiles the graph again, on made-up inputs."""
    inputs, attributes = [], []
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            inputs.append(f"    {made_up(value)},  # {node.target}")
        elif node.op == "get_attr":
            attributes.append(node.target)
    body = "\n".join(f"    {line}" for line in gm.code.strip().splitlines() if line.strip())
    lines = [
        f'"""A graph ({kind}) that inrush did not compile. Attributes that it needs: {attributes or "none"}."""',
        "import torch",
        "from torch import device, inf, nan",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from inrush import _native",
        "",
        "class Graph(torch.nn.Module):",
        body,
        "",
        "inputs = [",
        *inputs,
        "]",
        'graph = make_fx(Graph(), tracing_mode="symbolic")(*inputs)',
        "print(_native.import_text(graph))",
        "_native.compile_fx(graph)",
        "",
    ]
    return "\n".join(lines)


def made_up(value: Any) -> str:
    """An expression for an input like ``value``."""
    import torch

    def size(n: Any) -> int:
        if isinstance(n, int):
            return n
        hint = getattr(n.node, "hint", None)
        return 2 if hint is None else int(hint)

    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        sizes, strides = [size(n) for n in value.shape], [size(n) for n in value.stride()]
        span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if 0 not in sizes else 0
        if value.dtype.is_floating_point or value.dtype.is_complex:
            flat = f"torch.randn({span}).to({value.dtype})"
        elif value.dtype == torch.bool:
            flat = f"torch.ones({span}, dtype=torch.bool)"
        else:
            flat = f"torch.zeros({span}, dtype={value.dtype})"
        return f"{flat}.as_strided({sizes}, {strides}).to({str(value.device)!r})"
    if isinstance(value, torch.SymInt):
        return str(size(value))
    return repr(value)
