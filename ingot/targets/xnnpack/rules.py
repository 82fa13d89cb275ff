"""The rewrites that XNNPACK needs, in order. Each module describes one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Graph, Node

from ingot.rewrite import (
    activations,
    adaptive_pool,
    attention,
    avg_pool,
    avg_pool_factors,
    bilinear_resize,
    boolean_masks,
    complex_pairs,
    computed_gather,
    computed_kernels,
    constant_adds,
    constant_powers,
    constant_products,
    cumulative_sum,
    diagonal,
    distances,
    dynamic_sum,
    elu,
    expand,
    extrema,
    folded_constants,
    gelu_tanh,
    grid_sample,
    group_norm,
    hardsigmoid,
    index_put,
    instance_norm,
    layer_norm,
    log_softmax,
    logarithms,
    masked_assignment,
    matmul,
    mean,
    permute_chains,
    pool1d,
    powers,
    products,
    reduce_sum,
    repetition,
    rms_norm,
    rounding,
    scalar_operands,
    scalar_tensors,
    slice_as_linear,
    slice_scatter,
    softmax,
    softplus,
    split_dims,
    strided_slice,
    trigonometry,
    unbatched,
    unit_dims,
    upsample_nearest,
    variance,
    vector_norm,
    windows,
)
from ingot.rewrite.composite_parts import CompositeParts
from ingot.rewrite.constant_gather import ConstantGather
from ingot.rewrite.torch_decompositions import TorchDecompositions
from ingot.targets.edge_ops import functional_parts
from ingot.targets.missing_ops import rules_for_missing_ops
from ingot.targets.xnnpack.kernels import XnnpackKernels, edge_ops, runs_somewhere
from ingot.targets.xnnpack.whole_numbers import has_whole_number_inside


def _runs_nowhere(node: Node) -> bool:
    return not runs_somewhere(node)


def _outside(node: Node) -> bool:
    return not XnnpackKernels().ability(node).runs


def _parts_outside(node: Node) -> Graph | None:
    return functional_parts(node) if _outside(node) and len(edge_ops(node)) > 1 else None


def _extremum_outside(node: Node) -> bool:
    """The partitioner takes a max over any axis, its kernel over rows and columns of images only."""
    return _outside(node) or node.target in (torch.ops.aten.max.dim, torch.ops.aten.min.dim)


# What XNNPACK lacks in this form, and has in another.
_IN_FLOAT = tuple(
    replace(module.RULE, wanted=_extremum_outside if module is extrema else _outside)
    for module in (
        grid_sample, avg_pool_factors, instance_norm, group_norm, variance, windows, products, extrema, cumulative_sum,
        activations, rounding, trigonometry, logarithms, powers, diagonal,
    )
)  # fmt: skip
_COVERED = frozenset(op for rule in _IN_FLOAT for op in rule.functions)


def _left_to_torch(node: Node) -> bool:
    """Sums and norms are rewritten by a later rule, into ops of the delegate."""
    return _runs_nowhere(node) and node.target not in _COVERED and reduce_sum.summed_dims(node) is None


# First: they leave their result in canonical form.
_MISSING = rules_for_missing_ops(_runs_nowhere, _left_to_torch, {adaptive_pool: _outside, distances: _outside})
_EARLY = (
    pool1d, avg_pool, unbatched, constant_adds, constant_powers, slice_scatter, upsample_nearest, bilinear_resize,
    hardsigmoid, softplus, elu, gelu_tanh, computed_kernels,
)  # fmt: skip
_MASKED = (attention, masked_assignment, index_put, computed_gather, boolean_masks, log_softmax, vector_norm)
# Taken apart here, so that the number becomes a float constant.
_NUMBERS = TorchDecompositions(
    has_whole_number_inside, scalar_operands.REVERSED, "whole-numbers-as-constants", required=False
)
# Constants that the rules before left: a product can only be with one that is computed.
_FOLDED = folded_constants.FoldedConstants("fold-constants-of-products")
_SLICES = (strided_slice, split_dims, slice_as_linear, dynamic_sum, unit_dims)
_LATE = (
    constant_products, matmul, softmax, layer_norm, rms_norm, mean, reduce_sum, scalar_operands, expand, repetition,
)  # fmt: skip
_PARTS = (*_IN_FLOAT, _FOLDED, *(module.RULE for module in _LATE))
RULES = (
    complex_pairs.RULE, *_MISSING, *(module.RULE for module in (*_EARLY, *_MASKED)), *_IN_FLOAT,
    _NUMBERS, *(module.RULE for module in _SLICES), _FOLDED, *(module.RULE for module in _LATE),
    CompositeParts(_parts_outside, _PARTS), ConstantGather(_outside), scalar_tensors.RULE, permute_chains.RULE,
    folded_constants.RULE,
)  # fmt: skip
