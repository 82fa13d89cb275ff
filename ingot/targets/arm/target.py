"""Arm's targets: VGF for GPUs; Ethos-U55, U65 and U85 in each size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ingot.targets.arm.device import FORMATS, INT4, WEIGHT, Device
from ingot.targets.arm.kernels import ArmKernels
from ingot.targets.arm.lowering import ArmLowering
from ingot.targets.arm.options import GPU_OPTIONS, NPU_OPTIONS, checked_options
from ingot.targets.arm.requirements import COMMON, CONVERTER, VELA
from ingot.targets.arm.runner import ArmRunner
from ingot.targets.arm.vulkan_tools import REQUIREMENTS
from ingot.targets.base import CostModel, Numerics, Setup, Target

# MACs a cycle, as in Vela's names.
SIZES = {"u55": (32, 64, 128, 256), "u65": (256, 512), "u85": (128, 256, 512, 1024, 2048)}
GPU = CostModel({"int8": 1.0, "int16": 2.0, "float": 4.0})
# int16 doubles an NPU's cycles: chosen where int8 cannot represent a value or a recipe asks, not for less noise.
NPU = CostModel({"int8": 1.0, "int16": 2.0, "float": 100.0}, int16_time_budget=0.0)


def _target(device: Device) -> Target:
    return Target(
        name=device.name,
        description=_description(device),
        numerics=_numerics(device),
        kernels=ArmKernels(device),
        cost=GPU if device.is_gpu else NPU,
        lowering=ArmLowering(device),
        runner=ArmRunner(device),
        setup=_setup(device),
    )


def _numerics(device: Device) -> Numerics:
    return Numerics(
        formats=FORMATS,
        weight=WEIGHT,
        runs_float=device.is_gpu and "FP" in device.numbers,
        int4_weights={"int4": INT4},
        packs_int4=not device.is_gpu,  # the VGF converter writes one byte for each int4 weight
        rounding="half_up",
        multiplier_bits={"int16": 15},  # a 48-bit accumulator is multiplied by 16 bits with sign
        lut_entries={"int16": 512},
    )


def _setup(device: Device) -> Setup:
    return Setup(
        requirements=(*COMMON, CONVERTER if device.is_gpu else VELA),
        extras=REQUIREMENTS if device.is_gpu else (),
        options=GPU_OPTIONS if device.is_gpu else NPU_OPTIONS,
        configure=partial(_configured, device),
    )


def _description(device: Device) -> str:
    if device.is_gpu:
        return "Arm GPUs with neural accelerators, through VGF"
    family, size = device.name.removeprefix("ethos-").split("-")
    return f"Arm Ethos-{family.upper()} with {size} MACs a cycle"


def _configured(device: Device, options: Mapping[str, Any]) -> Target:
    return _target(replace(device, **checked_options(device, options)))


TARGETS = (
    _target(Device("vgf")),
    *(_target(Device(f"ethos-{family}-{size}")) for family, sizes in SIZES.items() for size in sizes),
)
