"""Rewrites for XNNPACK, in order: a rule may leave work for later ones (attention makes matmuls)."""

from __future__ import annotations

from ingot.rewrite import (
    attention,
    constant_adds,
    depth_pool,
    elu,
    expand,
    hardsigmoid,
    layer_norm,
    matmul,
    mean,
    permute_chains,
    reduce_sum,
    scalar_operands,
    slice_scatter,
    softmax,
    softplus,
    strided_slice,
    upsample_nearest,
)

_EARLY = (constant_adds, slice_scatter, strided_slice, upsample_nearest, depth_pool, hardsigmoid, softplus, elu)
_LATE = (
    attention, matmul, softmax, layer_norm, mean, reduce_sum, scalar_operands, expand, permute_chains,
)  # fmt: skip
RULES = tuple(module.RULE for module in (*_EARLY, *_LATE))
