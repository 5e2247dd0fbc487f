"""Eager with its rounding varied: what changes by that as much as by the compiler says nothing about the compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# One or two units in the last place.
NOISE = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-22, torch.float64: 2.0**-51}
# Operators that move, choose or make values without rounding them.
EXACT = {
    "_to_copy", "_unsafe_view", "abs", "amax", "amin", "aminmax", "as_strided_scatter", "broadcast_to", "cat", "ceil", "clamp", "clamp_max",
    "clamp_min", "clone", "constant_pad_nd", "contiguous", "copy", "cummax", "cummin", "diag_embed", "diagonal_scatter", "embedding", "fill",
    "flip", "floor", "fmax", "fmin", "gather", "im2col", "index", "index_copy", "index_fill", "index_put", "index_select", "kthvalue",
    "masked_fill", "masked_scatter", "masked_select", "max", "max_pool2d_with_indices", "maximum", "median", "min", "minimum", "mode", "nan_to_num",
    "neg", "new_full", "new_ones", "new_zeros", "one_hot", "ones_like", "pixel_shuffle", "reflection_pad1d", "reflection_pad2d", "relu", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "roll", "rot90", "round", "scatter", "select_scatter", "sgn", "sign",
    "slice_scatter", "sort", "stack", "take", "threshold", "topk", "tril", "triu", "trunc", "where", "zeros_like",
}  # fmt: skip


class Noise(TorchDispatchMode):
    """Changes what each operator rounds by a unit or two in the last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name.split("::")[1] in EXACT or any(r.alias_info is not None for r in func._schema.returns):
            return out
        if not any(isinstance(x, torch.Tensor) for x in torch.utils._pytree.tree_leaves(args)):
            return out
        return torch.utils._pytree.tree_map_only(torch.Tensor, self.varied, out)

    def varied(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in NOISE or not x.numel():
            return x
        steps = torch.randint(-1, 2, x.shape, generator=self.generator).to(x.device, torch.float64)
        # Keep the strides of the result.
        return torch.empty_like(x).copy_(x.double() * (1 + NOISE[x.dtype] * steps))
