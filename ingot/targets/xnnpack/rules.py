"""Rewrites for XNNPACK, in order: a rule may leave work for later ones (attention makes matmuls)."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ingot.rewrite import (
    adaptive_pool,
    attention,
    constant_adds,
    conv3d,
    conv_transpose3d,
    elu,
    embedding_bag,
    expand,
    hardsigmoid,
    layer_norm,
    matmul,
    mean,
    order_statistics,
    permute_chains,
    pool3d,
    pool_indices,
    prelu,
    reduce_sum,
    round_decimals,
    scalar_operands,
    slice_scatter,
    softmax,
    softplus,
    strided_slice,
    upsample_nearest,
)
from ingot.targets.xnnpack.kernels import runs_somewhere


def _runs_nowhere(node: Node) -> bool:
    return not runs_somewhere(node)


# What neither XNNPACK nor the runtime has. First: they leave their result in canonical form.
_MISSING = (
    conv3d, conv_transpose3d, adaptive_pool, pool3d, pool_indices, order_statistics, round_decimals, prelu,
    embedding_bag,
)  # fmt: skip
_EARLY = (constant_adds, slice_scatter, strided_slice, upsample_nearest, hardsigmoid, softplus, elu)
_LATE = (
    attention, matmul, softmax, layer_norm, mean, reduce_sum, scalar_operands, expand, permute_chains,
)  # fmt: skip
RULES = (
    *(replace(module.RULE, wanted=_runs_nowhere) for module in _MISSING),
    *(module.RULE for module in (*_EARLY, *_LATE)),
)
