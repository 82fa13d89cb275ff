"""The backend's own objects by target name, and how it stores numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ingot.targets.base import Format

FORMATS = {
    "int8": Format("int8", -128, 127, symmetric=False),
    "int16": Format("int16", -32768, 32767, symmetric=True),
}
WEIGHT = Format("int8", -127, 127, symmetric=True)
INT4 = Format("int8", -7, 7, symmetric=True)  # by these limits the backend knows four bits

FILL = 1e9  # stands for infinity: the planner must still see that it is no measure of anything


@dataclass(frozen=True)
class Device:
    """One accelerator and how it is set up; what is empty is as ExecuTorch's backend has it."""

    name: str  # vgf, ethos-u55-128 …
    system_config: str = ""
    memory_mode: str = ""
    numbers: str = "INT+FP"  # of VGF: the profiles of TOSA
    run_on: str = ""

    @property
    def is_gpu(self) -> bool:
        return self.name == "vgf"


@cache
def compile_spec(device: Device) -> Any:
    from executorch.backends.arm.common.pipeline_config import ArmPassPipelineConfig, QuantizeInfConfig

    spec = _gpu_spec(device) if device.is_gpu else _npu_spec(device)
    spec.set_pass_pipeline_config(ArmPassPipelineConfig(quantize_inf=QuantizeInfConfig(neg_inf=-FILL, pos_inf=FILL)))
    return spec


def _gpu_spec(device: Device) -> Any:
    from executorch.backends.arm.vgf import VgfCompileSpec

    return VgfCompileSpec(f"TOSA-1.0+{device.numbers}+int16+int4")


def _npu_spec(device: Device) -> Any:
    from executorch.backends.arm.ethosu import EthosUCompileSpec

    config, mode = device.system_config or None, device.memory_mode or None
    return EthosUCompileSpec(device.name, config, mode, extra_flags=["--verbose-performance"])


def profile(device: Device) -> str:
    """What its ability depends on: sizes of one family differ in speed only."""
    return str(compile_spec(device).tosa_spec)


@cache
def partitioner_class(device: Device) -> Any:
    """Arm's partitioner, which keeps what it says of the ops it refuses."""
    base = _partitioner_class(device)

    class Telling(base):  # type: ignore[misc,valid-type]
        reporter: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # Taken blindly as shaders: grid_sampler is all zeros there for most channel counts, batches and modes.
            self._custom_partition_ops: set[Any] = set()

        def _create_operator_support(self, containing_program: Any, reporter: Any) -> Any:
            self.reporter = reporter
            return super()._create_operator_support(containing_program, reporter)

        @property
        def refused(self) -> dict[Any, str]:
            return dict(self.reporter._rejected_nodes)

    return Telling


def _partitioner_class(device: Device) -> Any:
    if device.is_gpu:
        from executorch.backends.arm.vgf import VgfPartitioner

        return VgfPartitioner
    from executorch.backends.arm.ethosu import EthosUPartitioner

    return EthosUPartitioner


def runs_float(device: Device) -> bool:
    return bool(compile_spec(device).tosa_spec.support_float())
