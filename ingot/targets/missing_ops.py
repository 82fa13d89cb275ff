"""Rewrites of ops that neither a delegate nor the runtime has, into ops that one of them has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch.fx import Node

from ingot.rewrite import (
    adaptive_pool,
    bilinear,
    bucketize,
    conv3d,
    conv_transpose3d,
    embedding_bag,
    hypot,
    nan_ignoring_extrema,
    order_statistics,
    pool3d,
    pool_indices,
    prelu,
    resample,
    round_decimals,
    rrelu,
    scans,
)
from ingot.rewrite.torch_decompositions import TorchDecompositions
from ingot.targets.base import RewriteRule

_MODULES = (
    conv3d, conv_transpose3d, adaptive_pool, pool3d, pool_indices, order_statistics, round_decimals, prelu,
    embedding_bag, scans, bucketize, resample, bilinear, rrelu, hypot,
    nan_ignoring_extrema,
)  # fmt: skip


def rules_for_missing_ops(
    runs_nowhere: Callable[[Node], bool], left_to_torch: Callable[[Node], bool] | None = None
) -> tuple[RewriteRule, ...]:
    """`left_to_torch`: which of the ops torch's own decompositions may replace, if not all that have no rule here."""
    ours = tuple(replace(module.RULE, wanted=runs_nowhere, required=True) for module in _MODULES)
    covered = frozenset(op for rule in ours for op in rule.functions)
    return (TorchDecompositions(left_to_torch or runs_nowhere, covered), *ours)
