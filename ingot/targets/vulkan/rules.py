"""Rewrites for Vulkan, in order."""

from __future__ import annotations

from ingot.rewrite import index_put, rms_norm, slice_scatter, where_scalar

RULES = tuple(module.RULE for module in (slice_scatter, index_put, rms_norm, where_scalar))
