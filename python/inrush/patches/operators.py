"""Replacements of decompositions, shape functions and gradients of single operators."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch.autograd import forward_ad

from inrush import torch_internals
from inrush.autograd import gradients
from inrush.patches.places import Kernel


def has_effect(operator: Any) -> Any:
    """Returns an operator that does nothing but raise: PyTorch would drop it, and with it the error."""
    return operator


def zero(_: None) -> Callable[..., Any]:
    """Gives a view that is filled with zeros the strides of the view, as eager does.

    PyTorch's shape function gives others, of which the base of the view then becomes a view, or cannot.
    """

    def kernel(fake_mode: Any, func: Any, x: Any) -> Any:
        with fake_mode:
            return torch.empty_like(x)

    return kernel


def shrink_backward(_: None) -> Callable[..., Any]:
    """Gives gradients of shrinks the shape of a sum. PyTorch's shape functions do not take symbols."""

    def kernel(fake_mode: Any, func: Any, grad: Any, x: Any, lambd: Any) -> Any:
        with fake_mode:
            return grad + x

    return kernel


def one_layer_lstm(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Removes the dimension too many that PyTorch's decomposition gives states of batches of two and more without oneDNN."""

    @functools.wraps(plain)
    def own(*args: Any, **kwargs: Any) -> Any:
        out, states = plain(*args, **kwargs)
        return out, tuple(s.squeeze(0) if s.dim() == 3 else s for s in states)

    return own


def select_lstm(select: Callable[..., Any]) -> Callable[..., Any]:
    """Decomposes an LSTM if weights or states want gradients: PyTorch calls oneDNN for inference, on which AOTAutograd fails."""
    from torch._decomp import decompositions

    @functools.wraps(select)
    def own(input: Any, hx: Any, params: Any) -> Any:
        weights = (w for layer in params for w in layer)
        trains = torch.is_grad_enabled() and any(t.requires_grad for t in (*hx, *weights))
        # Read late: it is replaced itself.
        return decompositions.one_layer_lstm if trains else select(input, hx, params)

    return own


def resampling(decomposition: Kernel) -> Callable[..., Any]:
    """Keeps resampling of images on CPUs whole if sizes are known.

    PyTorch takes it apart into lookups by index before autograd sees it, whose gradients are sums by index, of another layout than
    the images have. If sizes are symbols it stays so: positions depend on them.
    """
    return _whole_if(decomposition, _is_known_image)


def shrink(decomposition: Kernel) -> Callable[..., Any]:
    """Keeps shrinks whole. Composed of others, these round their number to the dtype of halves, or keep it, where eager does not."""
    return _whole_if(decomposition, lambda *_: True)


def _whole_if(decomposition: Kernel, applies: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(decomposition.function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if gradients.own_operators_are_active() and applies(*args, *kwargs.values()):
            return decomposition.dispatched(*args, **kwargs)
        return decomposition.function(*args, **kwargs)

    return kernel


def _is_known_image(image: Any, *numbers: Any) -> bool:
    """Returns true for an image of the CPU with known sizes. PyTorch's shape functions refuse batches of none."""
    flat = [n for given in numbers for n in (given if isinstance(given, (list, tuple)) else [given])]
    symbols = (torch.SymInt, torch.SymFloat)
    if any(isinstance(n, symbols) for n in (*image.shape, *flat)):
        return False
    return image.device.type == "cpu" and image.dtype.is_floating_point and image.numel() > 0


def product(plain: Kernel) -> Callable[..., Any]:
    """Gives products the gradients of :mod:`inrush.autograd.gradients`."""

    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        # Transforms such as `vmap`, and derivatives taken forwards, have rules for PyTorch's operators alone.
        plainly = torch_internals.transforms_are_active() or forward_ad._current_level >= 0
        if gradients.own_operators_are_active() and not plainly and torch.is_grad_enabled() and x.requires_grad:
            out = gradients.differentiated(plain.operator, x, *args, **kwargs)
            if out is not None:
                return out
        return plain.function(x, *args, **kwargs)

    return kernel
