"""The program run whole on this machine: delegates by one of Arm's executors, the rest on the ExecuTorch runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.runtime.segments import Executor, execute
from ingot.targets.arm.device import Device
from ingot.targets.arm.tosa_reference import run_tosa
from ingot.targets.arm.vulkan_tools import REQUIREMENTS
from ingot.targets.base import Files, digest

REFERENCE, RUNNER = "reference-model", "scenario-runner"
SAID = {
    REFERENCE: "TOSA reference model, on what the compiler was given",
    RUNNER: "scenario-runner on the ML emulation layers, the .vgf itself, in a child process",
}


def executor_of(device: Device) -> str:
    """The .vgf itself where that can be run, unless the user says otherwise."""
    able = device.is_gpu and all(r.found() for r in REQUIREMENTS)
    return device.run_on or (RUNNER if able else REFERENCE)


def executed_on(device: Device) -> str:
    return SAID[executor_of(device)]


def run(
    device: Device,
    pte: bytes,
    batches: Sequence[Any],
    *,
    files: Mapping[str, Files],
    timeout: float = 120,
    beside: Mapping[str, Executor] | None = None,
    **_: Any,
) -> list[list[torch.Tensor]]:
    seconds = timeout * max(1, len(batches))
    executor = _real(seconds) if executor_of(device) == RUNNER else _reference(files, seconds)
    backend = "VgfBackend" if device.is_gpu else "EthosUBackend"
    return execute(pte, [tuple(b) for b in batches], {backend: executor, **(beside or {})}, timeout)


def _real(seconds: float) -> Executor:
    from ingot.targets.arm.scenario_runner import run_vgf

    return lambda payload, given, outputs: run_vgf(payload, given, outputs, seconds)


def _reference(files: Mapping[str, Files], seconds: float) -> Executor:
    return lambda payload, given, outputs: run_tosa(_tosa(payload, files), given, outputs, seconds)


def _tosa(payload: bytes, files: Mapping[str, Files]) -> bytes:
    found = files.get(digest(payload), {}).get("graph.tosa")
    if found is None:
        why = "the reference model runs what the compiler was given, and this program was not made by that lowering"
        raise ArtefactError("the TOSA of this delegate is not at hand", why=why, hint="lower it again")
    return found
