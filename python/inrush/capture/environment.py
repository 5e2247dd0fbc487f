"""State outside of a frame that tracing depends on and Dynamo does not guard: settings, modules' structure, PyTorch's own names."""

from __future__ import annotations

import hashlib
import sys
import types
from typing import Any

import torch

from inrush import gpu
from inrush.capture.fingerprint import digest_of

# Where PyTorch's own Python code looks for functions while a graph is traced; nothing guards these.
NAMESPACES = ("torch", "torch.Tensor", "torch._C._nn", "torch.nn.functional", "torch.nn.init", "torch.linalg", "torch.special", "torch.fft")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def structure(value: torch.nn.Module) -> list[Any]:
    """Returns the modules of which a module is made, and their hooks: Dynamo traces hooks, but does not guard that there are none."""
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
    """Returns the structures of the modules among a frame's values. They keep captures of different models that run the same code apart."""
    values = [(name, scope[name]) for name in sorted(scope)]
    return [(n, structure(v)) for n, v in values if isinstance(v, torch.nn.Module) and "_modules" in vars(v)]


def surroundings() -> list[Any]:
    """Returns what tracing takes for granted and Dynamo does not guard: settings, and which functions PyTorch's own names mean."""
    import torch._functorch.config
    import torch.fx.experimental._config

    parts: list[Any] = [torch.__version__, torch.version.git_version, sys.version]
    for config in (torch._dynamo.config, torch._functorch.config, torch.fx.experimental._config):
        # Settings that are sets or functions print differently in each process.
        values = config.get_config_copy()
        parts.append([(k, setting_text(v)) for k, v in sorted(values.items())])
    started = gpu.module().is_initialized()
    parts += [started, gpu.module().current_device() if started else None, gpu.module().get_device_name() if started else None]
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
    """Returns settings that decide among implementations of an operator while it is traced."""
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
    """Returns a digest of which functions PyTorch's own names mean."""
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
