"""Rewrites for XNNPACK, in order: a rule may leave work for later ones (attention makes matmuls)."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ingot.rewrite import (
    adaptive_pool,
    attention,
    avg_pool,
    bilinear,
    boolean_masks,
    bucketize,
    complex_pairs,
    constant_adds,
    conv3d,
    conv_transpose3d,
    cumulative_sum,
    elu,
    embedding_bag,
    expand,
    extrema,
    group_norm,
    hardsigmoid,
    layer_norm,
    log_softmax,
    matmul,
    mean,
    negative_pad,
    order_statistics,
    permute_chains,
    pool1d,
    pool3d,
    pool_indices,
    powers,
    prelu,
    reduce_sum,
    repetition,
    resample,
    rms_norm,
    round_decimals,
    rrelu,
    scalar_operands,
    scans,
    slice_scatter,
    softmax,
    softplus,
    strided_slice,
    unbatched,
    upsample_bilinear_factors,
    upsample_nearest,
    variance,
    windows,
)
from ingot.rewrite.constant_gather import ConstantGather
from ingot.rewrite.torch_decompositions import TorchDecompositions
from ingot.targets.xnnpack.kernels import XnnpackKernels, runs_somewhere


def _runs_nowhere(node: Node) -> bool:
    return not runs_somewhere(node)


def _outside(node: Node) -> bool:
    return not XnnpackKernels().ability(node).runs


# What neither XNNPACK nor the runtime has. First: they leave their result in canonical form.
_MISSING = tuple(
    replace(module.RULE, wanted=_outside if module is adaptive_pool else _runs_nowhere, required=True)
    for module in (
        conv3d, conv_transpose3d, adaptive_pool, pool3d, pool_indices, order_statistics, round_decimals, prelu,
        embedding_bag, scans, bucketize, resample, bilinear, rrelu,
    )
)  # fmt: skip


def _left_to_torch(node: Node) -> bool:
    """Sums and norms are rewritten by a later rule, into ops of the delegate."""
    return _runs_nowhere(node) and reduce_sum.summed_dims(node) is None


# What XNNPACK lacks in this form, and has in another.
_IN_FLOAT = tuple(
    replace(module.RULE, wanted=_outside)
    for module in (negative_pad, avg_pool, group_norm, variance, windows, extrema, cumulative_sum, powers)
)
_BY_TORCH = TorchDecompositions(_left_to_torch, frozenset(op for r in (*_MISSING, *_IN_FLOAT) for op in r.functions))
_EARLY = (
    pool1d, unbatched, constant_adds, slice_scatter, upsample_nearest, upsample_bilinear_factors,
    hardsigmoid, softplus, elu,
)  # fmt: skip
_LATE = (
    strided_slice, matmul, softmax, layer_norm, rms_norm, mean, reduce_sum, scalar_operands, expand, repetition,
)  # fmt: skip
_MASKED = (attention, boolean_masks, log_softmax)
RULES = (
    complex_pairs.RULE, _BY_TORCH, *_MISSING, *(module.RULE for module in (*_EARLY, *_MASKED)), *_IN_FLOAT,
    *(module.RULE for module in _LATE), ConstantGather(_outside), permute_chains.RULE,
)  # fmt: skip
