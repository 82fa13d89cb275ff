"""What the calibration run showed: statistics per value and gains per slot, for every target. Saved, loaded, merged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ingot.calibrate.histogram import Stats, quantile
from ingot.calibrate.sensitivity import Sensitivity
from ingot.core.atomic_file import atomic_write
from ingot.errors import InputError

__all__ = ["Ranges", "Stats", "averaged", "finished", "quantile"]

FORMAT, VERSION = "ingot.ranges", 2
KEPT, KEPT_BYTES = 64, 1 << 26  # batches that are kept for another run


@dataclass(frozen=True)
class Ranges:
    """What every value was over the calibration data, and what of it was seen too little."""

    values: Mapping[str, Stats]
    batches: int
    samples: int  # by the first dimension of the first tensor of each batch
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    steady: Mapping[str, str] = field(default_factory=dict)  # digest of each input that was the same in every batch
    sensitivity: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)  # by slot: see gains.py
    # The first batches, for values that only a target's rewriting makes, and what was measured so. In memory only.
    kept: tuple[tuple[Any, ...], ...] = field(default=(), repr=False, compare=False)
    again: dict[str, Ranges] = field(default_factory=dict, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        with atomic_write(path) as f:
            f.write(self.to_json().encode())
        return Path(path)

    def to_json(self) -> str:
        fields = ("batches", "samples", "fingerprint", "notes", "steady", "sensitivity")
        rest = {name: getattr(self, name) for name in fields}
        body = {"format": FORMAT, "version": VERSION, **rest, "values": _packed(self.values)}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranges:
        body = _read(Path(path))
        try:
            values = {name: _unpacked(row) for name, row in body["values"].items()}
            rest = {k: body[k] for k in ("batches", "samples", "fingerprint", "steady")}
            gains = {k: tuple(g) if isinstance(g, list) else float(g) for k, g in body["sensitivity"].items()}
            return cls(values, notes=tuple(body["notes"]), sensitivity=gains, **rest)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise _foreign(Path(path), f"a part is missing or of the wrong kind ({e!r})") from e

    def merge(self, other: Ranges) -> Ranges:
        """Both recordings as if they had been one."""
        if self.fingerprint != other.fingerprint:
            why = f"one has fingerprint '{self.fingerprint}', the other '{other.fingerprint}'"
            raise InputError("these ranges are of different programs", why=why, hint="record both on the same program")
        values = {n: _joined(self.values.get(n), other.values.get(n)) for n in {**self.values, **other.values}}
        steady = {n: d for n, d in self.steady.items() if other.steady.get(n) == d}
        gains = averaged([self.sensitivity, other.sensitivity])
        batches, samples = self.batches + other.batches, self.samples + other.samples
        made = finished(values, batches, samples, self.fingerprint, steady, gains)
        return replace(made, kept=(*self.kept, *other.kept)[:KEPT])


def _joined(a: Stats | None, b: Stats | None) -> Stats:
    return a.merge(b) if a and b else (a or b)  # type: ignore[return-value]


def averaged(gains: Sequence[Mapping[str, Any]]) -> Sensitivity:
    """By slot, over the probes that have it; rounded, since an estimate has no ten digits to store."""
    found: dict[str, list[Any]] = {}
    for one in gains:
        for slot, gain in one.items():
            found.setdefault(slot, []).append(gain)
    return {slot: _mean(found[slot]) for slot in sorted(found)}


def _mean(gains: list[Any]) -> float | tuple[float, ...]:
    if isinstance(gains[0], tuple):
        return tuple(_mean(list(channel)) for channel in zip(*gains, strict=True))  # type: ignore[misc]
    return float(f"{sum(gains) / len(gains):.4g}")


def finished(
    values: Mapping[str, Stats],
    batches: int,
    samples: int,
    fingerprint: str,
    steady: Mapping[str, str],
    gains: Sensitivity,
) -> Ranges:
    notes = tuple(_notes(values, batches, samples, steady))
    if not gains:
        notes += (
            "which errors reach the outputs is not known (the first batch is too big, or nothing is differentiable)",
        )
    return Ranges(values, batches, samples, fingerprint, notes, dict(steady), dict(gains))


def _notes(values: Mapping[str, Stats], batches: int, samples: int, steady: Mapping[str, str]) -> Iterable[str]:
    """What was seen too little of, or looked wrong: one sentence a kind."""
    if batches == 1:
        yield f"only one batch was recorded ({samples} by its first dimension): the ranges are those of that batch"
    elif steady:
        yield f"the same in all {batches} batches, so its variety was not seen: {_names(steady)}"
    never = [n for n, s in values.items() if s.count and not s.finite]
    if never:
        yield f"never finite, so it has no range: {_names(never)}"
    partly = [n for n, s in values.items() if s.nonfinite and s.finite]
    if partly:
        yield f"not finite in some elements, which were left out of its range: {_names(partly)}"
    constant = [f"{n} ({s.min:g})" for n, s in values.items() if s.finite > 1 and s.min == s.max]
    if constant:
        yield f"one and the same number at all times: {_names(constant)}"


def _names(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _packed(values: Mapping[str, Stats]) -> dict[str, list[Any]]:
    """One short row a value: min, max, count, nonfinite, neginf, keys, counts."""
    return {
        n: [s.min, s.max, s.count, s.nonfinite, s.neginf, list(s.histogram), list(s.histogram.values())]
        for n, s in values.items()
    }


def _unpacked(row: list[Any]) -> Stats:
    low, high, count, nonfinite, neginf, keys, counts = row
    return Stats(float(low), float(high), int(count), int(nonfinite), int(neginf), dict(zip(keys, counts, strict=True)))


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise _foreign(path, str(e)) from e
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _foreign(path, "it is JSON of another kind")
    if body.get("version") != VERSION:
        raise _foreign(path, f"it has version {body.get('version')}, this Ingot reads {VERSION}")
    return body


def _foreign(path: Path, why: str) -> InputError:
    return InputError(f"{path} is no file of ranges", why=why, hint="record again and save it with Ranges.save")
