"""The backend's own objects by target name, and how it stores numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

from ingot.targets.base import Format

FORMATS = {
    "int8": Format("int8", -128, 127, symmetric=False),
    "int16": Format("int16", -32767, 32767, symmetric=True),
}
WEIGHT = Format("int8", -127, 127, symmetric=True)


FILL = 1e9  # stands for infinity: the planner must still see that it is no measure of anything


@cache
def compile_spec(target: str) -> Any:
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig, QuantizeInfConfig

    spec = _compile_spec(target)
    spec.set_pass_pipeline_config(ArmPassPipelineConfig(quantize_inf=QuantizeInfConfig(neg_inf=-FILL, pos_inf=FILL)))
    return spec


def _compile_spec(target: str) -> Any:
    if target == "vgf":
        from executorch.backends.arm.vgf import VgfCompileSpec

        return VgfCompileSpec("TOSA-1.0+FP+INT+int16+int4")
    from executorch.backends.arm.ethosu import EthosUCompileSpec

    return EthosUCompileSpec(target)


@cache
def partitioner_class(target: str) -> Any:
    """Arm's partitioner, which keeps what it says of the ops it refuses."""
    base = _partitioner_class(target)

    class Telling(base):  # type: ignore[misc,valid-type]
        reporter: Any

        def _create_operator_support(self, containing_program: Any, reporter: Any) -> Any:
            self.reporter = reporter
            return super()._create_operator_support(containing_program, reporter)

        @property
        def refused(self) -> dict[Any, str]:
            return dict(self.reporter._rejected_nodes)

    return Telling


def _partitioner_class(target: str) -> Any:
    if target == "vgf":
        from executorch.backends.arm.vgf import VgfPartitioner

        return VgfPartitioner
    from executorch.backends.arm.ethosu import EthosUPartitioner

    return EthosUPartitioner


def runs_float(target: str) -> bool:
    return bool(compile_spec(target).tosa_spec.support_float())
