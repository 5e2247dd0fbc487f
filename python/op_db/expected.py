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
    ("to_sparse", None, "backward"): "sparse results come back without their gradients: not mended yet",
    ("special.polygamma.special_polygamma_n_0", "int8", None): "wrong at the poles of small integers: not mended yet",
    ("special.polygamma.special_polygamma_n_0", "int16", None): "wrong at the poles of small integers: not mended yet",
}


def settle(name: str, arguments: Any, results: list[Any]) -> list[Any]:
    """Results with the elements in place of indices where these are free."""
    if name not in ANY_OF_EQUALS:
        return results
    value, args, kwargs = arguments
    at, lacks = ANY_OF_EQUALS[name]
    args = args[1:] if name in ("topk", "kthvalue") else args
    dim = kwargs.get("dim", args[0] if args and type(args[0]) is int else -1)
    if not isinstance(results[at], torch.Tensor) or not value.dim():
        return results
    index = results[at].unsqueeze(dim) if lacks and results[at].dim() < value.dim() else results[at]
    return [*results[:at], value.detach().gather(dim, index), *results[at + 1 :]]


def undefined(name: str) -> str | None:
    """Why the values of an operator's results are not compared, or None."""
    return UNDEFINED.get(name)


def left_out(name: str, dtype: str, direction: str) -> str | None:
    """Why a cell is not run, or None."""
    for key in ((name, dtype, direction), (name, dtype, None), (name, None, direction), (name, None, None)):
        if key in LEFT_OUT:
            return LEFT_OUT[key]
    return None
