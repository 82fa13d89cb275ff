"""One shard in its process: its batches, its statistics, the files that carry them home."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ingot import api
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.capture.inputs import Batch
from ingot.data.calibration import load_calibration
from ingot.errors import InputError

RANGES, BATCHES = "ranges.json", "batches.pt"


@dataclass(frozen=True)
class Shard:
    """A part of the calibration data, as `--calibrate` takes it, and its number in the whole."""

    source: str
    number: int
    mean: list[float] | None = None
    std: list[float] | None = None

    def record(self, program: Program) -> Ranges:
        return api.record(program, self._batches(program), shard=self.number)

    def _batches(self, program: Program) -> Iterable[Batch]:
        fixed = program.dynamic_shapes is None and not program.others
        how: dict[str, Any] = {"mean": self.mean, "std": self.std, "fixed_shapes": fixed}
        return load_calibration(self.source, program.example_inputs, names=program.input_names, **how)


def shard_files(program: Program, fingerprint: str, shard: Shard) -> dict[str, bytes]:
    """In the process of the shard: `program` was read back from its file."""
    if program.fingerprint != fingerprint:
        why = "read back from its file, the exported program has other names"
        raise InputError("this program cannot be recorded elsewhere", why=why, hint="record without --ray")
    ranges, buffer = shard.record(program), io.BytesIO()
    torch.save([list(b) for b in ranges.cached_batches], buffer)
    return {RANGES: ranges.to_json().encode(), BATCHES: buffer.getvalue()}


def shard_ranges(files: Mapping[str, bytes]) -> Ranges:
    """What `shard_files` wrote."""
    cached = torch.load(io.BytesIO(files[BATCHES]), weights_only=True)
    return replace(Ranges.from_json(files[RANGES]), cached_batches=tuple(tuple(b) for b in cached))
