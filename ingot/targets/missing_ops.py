"""Rewrites of ops that neither a delegate nor the runtime has, into ops that one of them has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType

from torch.fx import Node

from ingot.rewrite import (
    activations,
    adaptive_pool,
    bilinear,
    bucketize,
    conv3d,
    conv_transpose3d,
    distances,
    embedding_bag,
    hypot,
    logarithms,
    nan_ignoring_extrema,
    order_statistics,
    pool3d,
    pool_indices,
    powers,
    prelu,
    resample,
    round_decimals,
    rounding,
    rrelu,
    scans,
    stable_sort,
    trigonometry,
)
from ingot.rewrite.torch_decompositions import TorchDecompositions
from ingot.targets.base import RewriteRule

Wanted = Callable[[Node], bool]
_MODULES = (
    conv3d, conv_transpose3d, adaptive_pool, pool3d, pool_indices, order_statistics, stable_sort, round_decimals, prelu,
    embedding_bag, scans, bucketize, resample, bilinear, rrelu, hypot,
    nan_ignoring_extrema, distances,
)  # fmt: skip
_IN_FLOAT = (activations, rounding, trigonometry, logarithms, powers)  # where torch's own decomposition does not run


def rules_for_missing_ops(
    runs_nowhere: Wanted, left_to_torch: Wanted | None = None, wanted: Mapping[ModuleType, Wanted] | None = None
) -> tuple[RewriteRule, ...]:
    """`left_to_torch`: which of the ops torch's own decompositions may replace, if not all that have no rule here.

    `wanted`: rules that are used for more than ops that run nowhere.
    """
    more = wanted or {}
    ours = tuple(replace(m.RULE, wanted=more.get(m, runs_nowhere), required=True) for m in _MODULES)
    covered = frozenset(op for rule in ours for op in rule.functions)
    last = (replace(m.RULE, name=f"missing-{m.RULE.name}", wanted=runs_nowhere, required=True) for m in _IN_FLOAT)
    return (TorchDecompositions(left_to_torch or runs_nowhere, covered), *ours, *last)
