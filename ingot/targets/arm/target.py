"""Arm's accelerators: VGF for GPUs, Ethos-U55, U65 and U85. What they can do is asked of Arm's own partitioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.patches.arm import repaired
from ingot.targets.arm.ability import ability
from ingot.targets.arm.decompositions import Decompositions
from ingot.targets.arm.device import FORMATS, INT4, WEIGHT, Device
from ingot.targets.arm.fusions import fuses
from ingot.targets.arm.gather_rewrite import Selections
from ingot.targets.arm.lowering import finish, partitioners
from ingot.targets.arm.lut_ops import tabulated
from ingot.targets.arm.mask_rewrite import Masks
from ingot.targets.arm.options import GPU_OPTIONS, NPU_OPTIONS, checked
from ingot.targets.arm.performance import read
from ingot.targets.arm.requirements import COMMON, CONVERTER, VELA
from ingot.targets.arm.runner import executed_on, run
from ingot.targets.arm.vgf_contents import contents
from ingot.targets.arm.vulkan_tools import REQUIREMENTS as RUNNERS
from ingot.targets.arm.zero_points import zero_at_zero
from ingot.targets.base import Prices, Target

__all__ = ["TARGETS"]

# Sizes are multiply-adds a cycle, as Vela names them.
SIZES = {"u55": (32, 64, 128, 256), "u65": (256, 512), "u85": (128, 256, 512, 1024, 2048)}
GPU = Prices({"int8": 1.0, "int16": 2.0, "float": 4.0})
# An NPU is bought for its cycles: int16 where int8 would lose a branch or where it is asked for, not for less noise.
NPU = Prices({"int8": 1.0, "int16": 2.0, "float": 100.0}, widening=0.0)


def _target(device: Device) -> Target:
    gpu = device.is_gpu
    return Target(
        name=device.name,
        backend="VgfBackend" if gpu else "EthosUBackend",
        description=_description(device),
        requirements=(*COMMON, CONVERTER if gpu else VELA),
        formats=FORMATS,
        weight=WEIGHT,
        narrow_weights={"int4": INT4},
        narrow_saves=not gpu,  # the converter writes a byte for each
        ability=partial(ability, device),
        fuses=fuses,
        rescales=lambda node: False,  # TOSA moves numbers untouched: a rescale is an op of its own
        float_inside=gpu and "FP" in device.numbers,
        float_bias=False,
        factor_bits={"int16": 15},  # the accumulator has 48 bits and its multiplier 16, of which one is the sign
        knots={"int16": 512},
        interpolates=tabulated,
        zero_at_zero=partial(zero_at_zero, device),
        weight_axis=weight_axis,
        rules=partial(_rules, device),
        partitioners=partial(partitioners, device),
        run=partial(run, device),
        executed_on=partial(executed_on, device),
        extras=RUNNERS if gpu else (),
        ties_up=True,
        fixed_shapes=True,
        performance=contents if gpu else partial(read, device.name),
        prices=GPU if gpu else NPU,
        options=GPU_OPTIONS if gpu else NPU_OPTIONS,
        configured=partial(_configured, device),
        lowering=repaired,
        finish=finish,
        scenario=_scenario if gpu else None,
    )


def _scenario(*args: Any) -> Any:
    from ingot.targets.arm.scenario_export import write

    return write(*args)


def _rules(device: Device) -> tuple[Any, ...]:
    from ingot.rewrite import depth_pool

    return (depth_pool.RULE, Selections(device), Decompositions(device), Masks(device))


def _description(device: Device) -> str:
    if device.is_gpu:
        return "Arm GPUs with neural accelerators, through VGF"
    family, size = device.name.removeprefix("ethos-").split("-")
    return f"Arm Ethos-{family.upper()} with {size} MACs a cycle"


def _configured(device: Device, options: Mapping[str, Any]) -> Target:
    return _target(replace(device, **checked(device, options)))


TARGETS = (
    _target(Device("vgf")),
    *(_target(Device(f"ethos-{family}-{size}")) for family, sizes in SIZES.items() for size in sizes),
)
