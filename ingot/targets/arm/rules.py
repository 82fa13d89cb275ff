"""Rewrites for Ethos-U and VGF, in order."""

from __future__ import annotations

from ingot.rewrite import complex_pairs, log_softmax, pool3d, upsample_bilinear_factors, vector_norm
from ingot.targets.arm.decompositions import ArmDecompositions
from ingot.targets.arm.device import Device
from ingot.targets.arm.gather_as_linear import GatherAsLinear
from ingot.targets.arm.where_as_mul_add import WhereAsMulAdd
from ingot.targets.base import RewriteRule


def arm_rules(device: Device) -> tuple[RewriteRule, ...]:
    early = (complex_pairs.RULE, pool3d.RULE, vector_norm.RULE, log_softmax.RULE, upsample_bilinear_factors.RULE)
    return (*early, GatherAsLinear(device), ArmDecompositions(device), WhereAsMulAdd(device))
