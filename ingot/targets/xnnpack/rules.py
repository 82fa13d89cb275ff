"""Rewrites for XNNPACK, in order: a rule may leave work for later ones (attention makes matmuls)."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ingot.rewrite import (
    adaptive_pool,
    attention,
    bilinear,
    bucketize,
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
    pool1d,
    pool3d,
    pool_indices,
    prelu,
    reduce_sum,
    resample,
    round_decimals,
    rrelu,
    scalar_operands,
    scans,
    slice_as_linear,
    slice_scatter,
    softmax,
    softplus,
    split_dims,
    strided_slice,
    unbatched,
    upsample_bilinear_factors,
    upsample_nearest,
)
from ingot.rewrite.torch_decompositions import TorchDecompositions
from ingot.targets.xnnpack.kernels import runs_somewhere


def _runs_nowhere(node: Node) -> bool:
    return not runs_somewhere(node)


# What neither XNNPACK nor the runtime has. First: they leave their result in canonical form.
_MISSING = tuple(
    replace(module.RULE, wanted=_runs_nowhere, required=True)
    for module in (
        conv3d, conv_transpose3d, adaptive_pool, pool3d, pool_indices, order_statistics, round_decimals, prelu,
        embedding_bag, scans, bucketize, resample, bilinear, rrelu,
    )
)  # fmt: skip


def _left_to_torch(node: Node) -> bool:
    """Sums and norms are rewritten by a later rule, into ops of the delegate."""
    return _runs_nowhere(node) and reduce_sum.summed_dims(node) is None


_BY_TORCH = TorchDecompositions(_left_to_torch, frozenset(op for rule in _MISSING for op in rule.functions))
_EARLY = (
    pool1d, unbatched, constant_adds, slice_scatter, strided_slice, upsample_nearest, upsample_bilinear_factors,
    hardsigmoid, softplus, elu,
)  # fmt: skip
_LATE = (
    attention, split_dims, slice_as_linear, matmul, softmax, layer_norm, mean, reduce_sum, scalar_operands, expand,
    permute_chains,
)  # fmt: skip
RULES = (_BY_TORCH, *_MISSING, *(module.RULE for module in (*_EARLY, *_LATE)))
