"""Arm's devices: compile spec, partitioner and integer formats of each."""

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
INT4 = Format("int8", -7, 7, symmetric=True)  # the backend recognises 4 bits by these limits

FILL = 1e9  # replaces infinity; large enough for the planner to recognise a mask fill value


@dataclass(frozen=True)
class Device:
    """One accelerator and its options; empty: the default of ExecuTorch's backend."""

    name: str  # vgf, ethos-u55-128 …
    system_config: str = ""
    memory_mode: str = ""
    numbers: str = "INT+FP"  # TOSA profiles, of VGF
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


def tosa_profile(device: Device) -> str:
    """All that ability depends on: the sizes of one family differ only in speed."""
    return str(compile_spec(device).tosa_spec)


@cache
def partitioner_class(device: Device) -> Any:
    """Arm's partitioner with the reasons of its refusals."""
    base = _partitioner_class(device)

    class Reporting(base):  # type: ignore[misc,valid-type]
        reporter: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # It takes these unchecked, as shaders: its grid_sampler returns zeros for most shapes and modes.
            self._custom_partition_ops: set[Any] = set()

        def _create_operator_support(self, containing_program: Any, reporter: Any) -> Any:
            self.reporter = reporter
            return super()._create_operator_support(containing_program, reporter)

        @property
        def refused(self) -> dict[Any, str]:
            return dict(self.reporter._rejected_nodes)

    return Reporting


def _partitioner_class(device: Device) -> Any:
    if device.is_gpu:
        from executorch.backends.arm.vgf import VgfPartitioner

        return VgfPartitioner
    from executorch.backends.arm.ethosu import EthosUPartitioner

    return EthosUPartitioner


def runs_float(device: Device) -> bool:
    return bool(compile_spec(device).tosa_spec.support_float())
