"""Rewrites for Ethos-U and VGF, in order."""

from __future__ import annotations

from ingot.rewrite import bilinear_factors, pool3d
from ingot.targets.arm.decompositions import ArmDecompositions
from ingot.targets.arm.device import Device
from ingot.targets.arm.gather_as_linear import GatherAsLinear
from ingot.targets.arm.where_as_mul_add import WhereAsMulAdd
from ingot.targets.base import RewriteRule


def arm_rules(device: Device) -> tuple[RewriteRule, ...]:
    return (
        pool3d.RULE,
        bilinear_factors.RULE,
        GatherAsLinear(device),
        ArmDecompositions(device),
        WhereAsMulAdd(device),
    )
