"""Rewrites for Vulkan, in order."""

from __future__ import annotations

from torch.fx import Node

from ingot.rewrite import complex_pairs, index_put, rms_norm, slice_scatter, where_scalar
from ingot.targets.missing_ops import rules_for_missing_ops
from ingot.targets.vulkan.partitioner_query import runs_with_vulkan


def _runs_nowhere(node: Node) -> bool:
    return not runs_with_vulkan(node)


_LATE = (slice_scatter, index_put, rms_norm, where_scalar)
RULES = (complex_pairs.RULE, *rules_for_missing_ops(_runs_nowhere), *(module.RULE for module in _LATE))
