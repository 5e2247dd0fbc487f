"""What is expected to differ from eager, each with the reason. Nothing else may."""

from __future__ import annotations

from typing import Any

import torch

RANDOM = "random: compiled graphs draw other numbers than eager; shapes, dtypes and strides are compared"
MEMORY = "uninitialised memory: shapes, dtypes and strides are compared"

# Operators (by name, all variants) whose values are not defined.
UNDEFINED: dict[str, str] = {
    **dict.fromkeys(
        (
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "nn.functional.alpha_dropout",
            "nn.functional.dropout",
            "nn.functional.dropout2d",
            "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.multi_head_attention_forward",
            "nn.functional.rrelu",
            "nn.functional.scaled_dot_product_attention",
            "normal",
            "pca_lowrank",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "svd_lowrank",
            "uniform",
        ),
        RANDOM,
    ),
    **dict.fromkeys(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"), MEMORY),
}

# Equal elements may stand in any order, so what these give as indices is compared by the elements there: operator -> which
# result, and whether it lacks the dimension it is along.
ANY_OF_EQUALS: dict[str, tuple[int, bool]] = {"sort": (1, False), "argsort": (0, False), "topk": (1, False), "kthvalue": (1, True)}

# Attention and dropout draw nothing when the probability is zero; then their values are compared.
PROBABILITY = {
    "nn.functional.multi_head_attention_forward": "dropout_p",
    "nn.functional.scaled_dot_product_attention": "dropout_p",
}

# Whole cells that are left out: (operator, dtype or None, direction or None) -> reason.
LEFT_OUT: dict[tuple[str, str | None, str | None], str] = {
    ("index_fill", None, "backward"): "PyTorch declares one row for `_unique`, however many the data has: calls raise",
    ("grid_sampler_3d", "float32", "backward"): "of 637560 sums that cancel one is 1.4e-5 off: not explained yet",
    ("to_sparse", None, "backward"): "sparse results come back without their gradients: not mended yet",
}

# Sums of products in an order that is the library's affair: where terms cancel, what is left of their rounding counts.
CANCELS = {
    "__rmatmul__",
    "cdist",
    "cross",
    "gradient",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "linalg.cross",
    "linalg.householder_product",
    "matmul",
    "nn.functional.conv2d",
    "nn.functional.conv3d",
    "nn.functional.conv_transpose3d",
    "nn.functional.grid_sample",
    "nn.functional.scaled_dot_product_attention",
    # Beside a pole what the rounding of the argument leaves.
    "polygamma",
    "special.polygamma",
    # An exponential less a product, each rounded to the dtype.
    "nn.functional.poisson_nll_loss",
    "stft",
}
# What eager computes otherwise on GPUs than on CPUs, where inrush does as on CPUs, by dtype of the result: ranges of integers
# step in float32 there, in float64 here.
BY_THE_CPU = {("linspace", dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)}
# Remainders, by the place of the divisor: on GPUs that of an integer by zero means nothing, on CPUs it is an error.
REMAINDERS = {"__rmod__": 0}


def cancels(name: str) -> bool:
    return name in CANCELS


def settle(name: str, arguments: Any, results: list[Any]) -> list[Any]:
    """Results with what is free replaced: elements in place of indices, zeros in place of what means nothing."""
    value, args, kwargs = arguments
    if name in ("polygamma", "special.polygamma"):
        # At the poles of the trigamma function eager gives a large number that rounding decides, instead of infinity.
        x, n = (args[0], value) if isinstance(args[0], torch.Tensor) else (value, args[0])
        return [r.masked_fill((x <= 0) & (x == x.double().floor()), 0.0) for r in results] if n == 1 else results
    if name in REMAINDERS and not value.is_floating_point():
        return [r.masked_fill((value == 0).expand_as(r), 0) for r in results]
    if name == "mode" and value.is_cuda:
        # Of values that are as frequent, any: how often they are there is compared.
        dim = kwargs.get("dim", args[0] if args and type(args[0]) is int else -1)
        return [count(value, r, dim) for r in results[:1]]
    if name in ("median", "nanmedian") and value.is_cuda and len(results) == 2:
        # PyTorch says that on GPUs the place of a median among equals may be any of theirs, and two runs may differ.
        at, lacks = 1, True
    elif name in ANY_OF_EQUALS:
        at, lacks = ANY_OF_EQUALS[name]
    else:
        return results
    args = args[1:] if name in ("topk", "kthvalue") else args
    dim = kwargs.get("dim", args[0] if args and type(args[0]) is int else -1)
    if not isinstance(results[at], torch.Tensor) or not value.dim():
        return results
    index = results[at].unsqueeze(dim) if lacks and results[at].dim() < value.dim() else results[at]
    return [*results[:at], value.detach().gather(dim, index), *results[at + 1 :]]


def count(value: torch.Tensor, found: torch.Tensor, dim: int) -> torch.Tensor:
    """How often each value of `found` is in its row."""
    if not value.dim():
        return torch.ones_like(found)
    found = found if found.dim() == value.dim() else found.unsqueeze(dim)
    return (value.detach() == found).sum(dim)


def undefined(name: str) -> str | None:
    """Why the values of an operator's results are not compared, or None."""
    return UNDEFINED.get(name)


def left_out(name: str, dtype: str, direction: str) -> str | None:
    """Why a cell is not run, or None."""
    for key in ((name, dtype, direction), (name, dtype, None), (name, None, direction), (name, None, None)):
        if key in LEFT_OUT:
            return LEFT_OUT[key]
    return None
