"""Rewrites for Ethos-U and VGF, in order."""

from __future__ import annotations

from functools import cache

from torch.fx import Node

from ingot.rewrite import (
    complex_pairs,
    conv_transpose1d,
    log_softmax,
    pool1d,
    pool3d,
    upsample_bilinear_factors,
    vector_norm,
)
from ingot.targets.arm.ability import taken_by_arm
from ingot.targets.arm.decompositions import ArmDecompositions
from ingot.targets.arm.device import Device
from ingot.targets.arm.gather_as_linear import GatherAsLinear
from ingot.targets.arm.where_as_mul_add import WhereAsMulAdd
from ingot.targets.base import RewriteRule
from ingot.targets.edge_ops import decomposed_ops
from ingot.targets.host_kernels import runs_on_host
from ingot.targets.missing_ops import rules_for_missing_ops


@cache  # equal rules for equal devices: a program that was rewritten is found again
def arm_rules(device: Device) -> tuple[RewriteRule, ...]:
    def runs_nowhere(node: Node) -> bool:
        """The host is asked first: Arm's partitioner takes a second to answer."""
        return not runs_on_host(node, decomposed_ops(node)) and not taken_by_arm(device, node)

    always = (
        conv_transpose1d.RULE,
        pool1d.RULE,
        pool3d.RULE,
        vector_norm.RULE,
        log_softmax.RULE,
        upsample_bilinear_factors.RULE,
    )
    missing = (rule for rule in rules_for_missing_ops(runs_nowhere) if rule.name != pool3d.RULE.name)
    late = (GatherAsLinear(device), ArmDecompositions(device), WhereAsMulAdd(device))
    return (complex_pairs.RULE, *missing, *always, *late)
