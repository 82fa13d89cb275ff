"""Runs Arm programs on this machine: delegates on an executor of Arm's, host ops on the ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ingot.errors import ArtefactError
from ingot.runtime.segmented_run import run_segmented
from ingot.targets.arm.device import Device
from ingot.targets.arm.performance import read_performance
from ingot.targets.arm.scenario_export import export_scenario
from ingot.targets.arm.tosa_reference import run_tosa
from ingot.targets.arm.vgf_contents import vgf_contents
from ingot.targets.arm.vulkan_tools import REQUIREMENTS
from ingot.targets.base import Batch, Estimate, Executor, Files, Runner, digest

REFERENCE, RUNNER = "reference-model", "scenario-runner"
EXECUTED_ON = {
    REFERENCE: "TOSA reference model, on what the compiler was given",
    RUNNER: "scenario-runner on the ML emulation layers, the .vgf itself, in a child process",
}


def executor_name(device: Device) -> str:
    """scenario-runner where it is installed, unless the option run_on says otherwise."""
    installed = device.is_gpu and all(r.found() for r in REQUIREMENTS)
    return device.run_on or (RUNNER if installed else REFERENCE)


@dataclass(frozen=True)
class ArmRunner(Runner):
    device: Device

    @property
    def writes_scenarios(self) -> bool:  # type: ignore[override]
        return self.device.is_gpu

    def run(
        self,
        pte: bytes,
        batches: Sequence[Batch],
        *,
        files: Mapping[str, Files],
        timeout: float = 120,
        method: str = "forward",
        fresh: bool = True,
        extra: Mapping[str, Executor] | None = None,
    ) -> list[list[torch.Tensor]]:
        seconds = timeout * max(1, len(batches))
        executor = _vgf_executor(seconds) if executor_name(self.device) == RUNNER else _tosa_executor(files, seconds)
        backend = "VgfBackend" if self.device.is_gpu else "EthosUBackend"
        return run_segmented(pte, [tuple(b) for b in batches], {backend: executor, **(extra or {})}, timeout, method)

    def executed_on(self) -> str:
        return EXECUTED_ON[executor_name(self.device)]

    def estimate(self, files: Files) -> Estimate | None:
        return vgf_contents(files) if self.device.is_gpu else read_performance(self.device.name, files)

    def write_scenario(
        self, folder: Path, pte: bytes, batches: Sequence[Sequence[np.ndarray]], shaders: Any = None
    ) -> None:
        export_scenario(folder, pte, batches, shaders)


def _vgf_executor(seconds: float) -> Executor:
    from ingot.targets.arm.scenario_runner import run_vgf

    return lambda payload, given, outputs: run_vgf(payload, given, outputs, seconds)


def _tosa_executor(files: Mapping[str, Files], seconds: float) -> Executor:
    return lambda payload, given, outputs: run_tosa(_tosa(payload, files), given, outputs, seconds)


def _tosa(payload: bytes, files: Mapping[str, Files]) -> bytes:
    found = files.get(digest(payload), {}).get("graph.tosa")
    if found is None:
        why = "the reference model runs the TOSA from lowering, and this program comes from elsewhere"
        raise ArtefactError("the TOSA graph of this delegate is missing", why=why, hint="lower the model again")
    return found
