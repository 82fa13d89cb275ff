"""Rewrites for Ethos-U and VGF, in order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch.fx import Graph, Node

from ingot.core.fx import is_float_op
from ingot.rewrite import (
    attention,
    bilinear_resize,
    complex_pairs,
    conv_transpose1d,
    conv_transpose_phases,
    diagonal,
    distances,
    extrema,
    instance_norm,
    log_softmax,
    permute_chains,
    pool1d,
    pool3d,
    products,
    resample,
    vector_norm,
    windows,
)
from ingot.rewrite.bilinear_resize import factors_are_ratios
from ingot.rewrite.composite_parts import CompositeParts
from ingot.targets.arm import elementwise, narrow_indices, reductions
from ingot.targets.arm.ability import ability, taken_by_arm
from ingot.targets.arm.boolean_numbers import BooleanNumbers
from ingot.targets.arm.decompositions import ArmDecompositions
from ingot.targets.arm.device import Device
from ingot.targets.arm.gather_as_linear import GatherAsLinear
from ingot.targets.arm.narrow_argmax import NarrowArgmax
from ingot.targets.arm.where_as_mul_add import WhereAsMulAdd
from ingot.targets.arm.wide_indices import WideIndices
from ingot.targets.base import RewriteRule
from ingot.targets.edge_ops import decomposed_ops, functional_parts
from ingot.targets.host_kernels import runs_on_host
from ingot.targets.missing_ops import rules_for_missing_ops


@cache  # equal rules for equal devices: a program that was rewritten is found again
def arm_rules(device: Device) -> tuple[RewriteRule, ...]:
    def runs_nowhere(node: Node) -> bool:
        """The host is asked first: Arm's partitioner takes a second to answer."""
        return not runs_on_host(node, decomposed_ops(node)) and not taken_by_arm(device, node)

    def outside(node: Node) -> bool:
        return not taken_by_arm(device, node)

    def parts(node: Node) -> Graph | None:
        """Of an op that lowering takes apart, if Arm takes all of them."""
        graph = functional_parts(node) if outside(node) and len(decomposed_ops(node)) > 1 else None
        whole = graph is not None and all(taken_by_arm(device, n) for n in graph.nodes if is_float_op(n))
        return graph if whole else None

    def resized_otherwise(node: Node) -> bool:
        return not factors_are_ratios(node) or outside(node)

    def not_as_one_op(node: Node) -> bool:
        """Arm's pass for cosine_similarity looks for `dim` and `eps` among the keywords only."""
        return not ability(device, node).runs

    def windowed_otherwise(node: Node) -> bool:
        """The partitioner takes every unfold, and the pass for it makes an index of int8."""
        return node.target is torch.ops.aten.unfold.default or outside(node)

    early = (
        complex_pairs.RULE, replace(bilinear_resize.RULE, wanted=resized_otherwise),
        replace(elementwise.RULE, wanted=outside), replace(reductions.RULE, wanted=outside),
        replace(distances.RULE, wanted=not_as_one_op, float_reason=""),
        replace(products.PRODUCTS, wanted=outside), replace(diagonal.RULE, wanted=outside),
        replace(windows.RULE, wanted=windowed_otherwise), replace(resample.RULE, wanted=outside),
    )  # fmt: skip
    phases = replace(conv_transpose_phases.RULE, wanted=outside)
    signals = (conv_transpose1d.RULE, pool1d.RULE)
    shapes = (attention.SHARED_KEYS, attention.CONSTANT_MASKS, permute_chains.MANY_DIMS, extrema.UNREAD_INDICES)
    always = (*signals, *shapes, pool3d.RULE, instance_norm.RULE, vector_norm.RULE, log_softmax.INTEGER_RULE)
    own = {pool3d.RULE.name, distances.RULE.name, resample.RULE.name}
    missing = (rule for rule in rules_for_missing_ops(runs_nowhere) if rule.name not in own)
    late = (
        GatherAsLinear(device),
        ArmDecompositions(device),
        narrow_indices.RULE,
        WhereAsMulAdd(device),
        BooleanNumbers(device),
        NarrowArgmax(device),
        WideIndices(device),
    )
    return (*early, *missing, *always, phases, CompositeParts(parts), *late)
