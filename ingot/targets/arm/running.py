"""The program run whole on this machine: delegates by one of Arm's executors, the rest on the ExecuTorch runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ingot.errors import ArtefactError
from ingot.targets.arm.backend import Device
from ingot.targets.arm.reference import run_tosa
from ingot.targets.base import Files
from ingot.targets.pieces import execute

REFERENCE = "TOSA reference model, on what the compiler was given"


def run(
    device: Device, pte: bytes, batches: Sequence[Any], *, files: Mapping[str, Files], timeout: float = 120, **_: Any
) -> list[list[torch.Tensor]]:
    seconds = timeout * max(1, len(batches))

    def reference(payload: bytes, given: list[list[Any]], outputs: int) -> list[list[Any]]:
        return run_tosa(_tosa(payload, files), given, outputs, seconds)

    backend = "VgfBackend" if device.is_gpu else "EthosUBackend"
    return execute(pte, [tuple(b) for b in batches], {backend: reference}, timeout)


def _tosa(payload: bytes, files: Mapping[str, Files]) -> bytes:
    found = files.get(hashlib.sha256(payload).hexdigest(), {}).get("graph.tosa")
    if found is None:
        why = "the reference model runs what the compiler was given, and this program was not made by that lowering"
        raise ArtefactError("the TOSA of this delegate is not at hand", why=why, hint="lower it again")
    return found
