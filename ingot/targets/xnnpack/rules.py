"""Rewrites for XNNPACK, in order: a rule may leave work for later ones (attention makes matmuls)."""

from __future__ import annotations

from torch.fx import Node

from ingot.rewrite import (
    attention,
    avg_pool,
    constant_adds,
    elu,
    expand,
    gelu_tanh,
    hardsigmoid,
    layer_norm,
    matmul,
    mean,
    permute_chains,
    pool1d,
    reduce_sum,
    scalar_operands,
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
from ingot.targets.missing_ops import rules_for_missing_ops
from ingot.targets.xnnpack.kernels import runs_somewhere


def _runs_nowhere(node: Node) -> bool:
    return not runs_somewhere(node)


def _left_to_torch(node: Node) -> bool:
    """Sums and norms are rewritten by a later rule, into ops of the delegate."""
    return _runs_nowhere(node) and reduce_sum.summed_dims(node) is None


# First: they leave their result in canonical form.
_MISSING = rules_for_missing_ops(_runs_nowhere, _left_to_torch)
_EARLY = (
    pool1d, avg_pool, unbatched, constant_adds, slice_scatter, strided_slice, upsample_nearest,
    upsample_bilinear_factors, hardsigmoid, softplus, elu, gelu_tanh,
)  # fmt: skip
_LATE = (
    attention, split_dims, slice_as_linear, matmul, softmax, layer_norm, mean, reduce_sum, scalar_operands, expand,
    permute_chains,
)  # fmt: skip
RULES = (*_MISSING, *(module.RULE for module in (*_EARLY, *_LATE)))
