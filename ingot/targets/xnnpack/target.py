"""The XNNPACK target: Arm and x86 CPUs."""

from __future__ import annotations

from ingot.targets.base import CostModel, Format, Numerics, Setup, Target, WeightOnly
from ingot.targets.requirements import EXECUTORCH
from ingot.targets.xnnpack.kernels import XnnpackKernels
from ingot.targets.xnnpack.lowering import XnnpackLowering
from ingot.targets.xnnpack.runner import XnnpackRunner

XNNPACK = Target(
    name="xnnpack",
    description="Arm and x86 CPUs through XNNPACK, in the executorch wheel",
    numerics=Numerics(
        formats={"int8": Format("int8", -128, 127, symmetric=False)},
        weight=Format("int8", -127, 127, symmetric=True),
        runs_float=True,
        bias="float",
        int8_embeddings=True,
    ),
    kernels=XnnpackKernels(),
    cost=CostModel({"int8": 1.0, "dynamic": 1.0, "float": 3.0}),
    lowering=XnnpackLowering(),
    runner=XnnpackRunner(),
    setup=Setup(EXECUTORCH),
    weight_only=WeightOnly(("8da4w", "8da8w")),
)
