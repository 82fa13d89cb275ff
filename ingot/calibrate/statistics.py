"""Calibration statistics of a program: per-value statistics and sensitivity, for any target. Saved, loaded, merged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ingot.calibrate.histogram import INFINITY_BIN, Stats, quantile
from ingot.calibrate.sensitivity import Sensitivity
from ingot.core.atomic_file import atomic_write
from ingot.errors import InputError, first_sentence

__all__ = ["Ranges", "Stats", "build_ranges", "mean_sensitivity", "quantile"]

FORMAT, VERSION = "ingot.ranges", 2
NO_GRADIENT = "no sensitivity before ops without a gradient"
_JSON_KEYS = {"constant_inputs": "steady"}  # fields whose key in the file differs
MAX_CACHED_BATCHES, MAX_CACHED_BYTES = 64, 1 << 26  # for values that a rewrite creates


@dataclass(frozen=True)
class Ranges:
    """Statistics of every value over the calibration data, and notes on insufficient data."""

    values: Mapping[str, Stats]
    batches: int
    samples: int  # by the first dimension of the first tensor of each batch
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    constant_inputs: Mapping[str, str] = field(default_factory=dict)  # digests of inputs that are equal in all batches
    sensitivity: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)  # keys: see sensitivity.py
    sensitivity_weight: int = field(default=1, compare=False)  # recordings that estimated it: `merge` weighs by it
    # Not saved: the first batches, and the statistics of values that a rewrite for a target created.
    cached_batches: tuple[tuple[Any, ...], ...] = field(default=(), repr=False, compare=False)
    rewritten: dict[str, Ranges] = field(default_factory=dict, repr=False, compare=False)
    methods: Mapping[str, Ranges] = field(default_factory=dict)  # of the other sizes of a program, by method

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statistics as JSON. Cached batches are not saved."""
        with atomic_write(path) as f:
            f.write(self.to_json().encode())
        return Path(path)

    def to_json(self) -> str:
        """What `save` writes."""
        fields = ("batches", "samples", "fingerprint", "notes", "constant_inputs", "sensitivity", "sensitivity_weight")
        rest = {_JSON_KEYS.get(name, name): getattr(self, name) for name in fields}
        more = {"methods": {n: json.loads(r.to_json()) for n, r in self.methods.items()}} if self.methods else {}
        body = {"format": FORMAT, "version": VERSION, **rest, "values": _to_rows(self.values), **more}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranges:
        """Read statistics written by `save`."""
        try:
            data = Path(path).read_bytes()
        except OSError as e:
            raise _not_ranges(path, str(e)) from e
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: str | bytes, what: str = "the text") -> Ranges:
        """What `to_json` gave; `what` names it in errors."""
        return cls._from_body(_parsed(data, what), what)

    @classmethod
    def _from_body(cls, body: dict[str, Any], what: str) -> Ranges:
        try:
            values = {name: _from_row(row) for name, row in body["values"].items()}
            fields = ("batches", "samples", "fingerprint", "constant_inputs")
            rest = {name: _of_type(body[_JSON_KEYS.get(name, name)], name) for name in fields}
            sensitivity = {k: _sensitivity(g) for k, g in body["sensitivity"].items()}
            notes = tuple(str(n) for n in _of_type(body["notes"], "notes"))
            weight = _of_type(body.get("sensitivity_weight", 1), "sensitivity_weight")
            methods = {str(n): cls._from_body(_checked(b, what), what) for n, b in body.get("methods", {}).items()}
            more: dict[str, Any] = {"sensitivity": sensitivity, "sensitivity_weight": weight, "methods": methods}
            return cls(values, notes=notes, **more, **rest)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            why = f"a field is missing, has the wrong type or an impossible value ({first_sentence(e)})"
            raise _not_ranges(what, why) from e

    def merge(self, other: Ranges) -> Ranges:
        """The statistics over the data of both recordings."""
        if self.fingerprint != other.fingerprint:
            why = f"one has fingerprint '{self.fingerprint}', the other '{other.fingerprint}'"
            raise InputError("the ranges belong to different programs", why=why, hint="record both on the same program")
        values = merged_values(self.values, other.values)
        constant_inputs = {n: d for n, d in self.constant_inputs.items() if other.constant_inputs.get(n) == d}
        weights = [r.sensitivity_weight if r.sensitivity else 0 for r in (self, other)]
        sensitivity = mean_sensitivity([self.sensitivity, other.sensitivity], weights)
        batches, samples = self.batches + other.batches, self.samples + other.samples
        merged = build_ranges(values, batches, samples, self.fingerprint, constant_inputs, sensitivity)
        kept = dict.fromkeys(n for n in (*self.notes, *other.notes) if n.startswith(NO_GRADIENT))
        cached = _within_limits((*self.cached_batches, *other.cached_batches))
        notes, weight = (*merged.notes, *kept), sum(weights) or 1
        methods = _merged_methods(self.methods, other.methods)
        return replace(merged, notes=notes, cached_batches=cached, sensitivity_weight=weight, methods=methods)


def merged_values(a: Mapping[str, Stats], b: Mapping[str, Stats]) -> Mapping[str, Stats]:
    """The statistics of each value over both recordings."""
    return {n: _merge_stats(a.get(n), b.get(n)) for n in {**a, **b}}


def _merge_stats(a: Stats | None, b: Stats | None) -> Stats:
    return a.merge(b) if a and b else (a or b)  # type: ignore[return-value]


def _merged_methods(a: Mapping[str, Ranges], b: Mapping[str, Ranges]) -> Mapping[str, Ranges]:
    both = {n: r.merge(b[n]) for n, r in a.items() if n in b}
    return {**a, **b, **both}


def batch_bytes(batch: Iterable[Any]) -> int:
    """Bytes of the tensors of a flat batch."""
    return sum(t.numel() * t.element_size() for t in batch if isinstance(t, Tensor))


def _within_limits(batches: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """The first batches that fit, as one recording would have cached them."""
    kept: list[tuple[Any, ...]] = []
    for batch in batches:
        if len(kept) < MAX_CACHED_BATCHES and sum(map(batch_bytes, kept)) + batch_bytes(batch) <= MAX_CACHED_BYTES:
            kept.append(batch)
    return tuple(kept)


def mean_sensitivity(estimates: Sequence[Mapping[str, Any]], weights: Sequence[int] = ()) -> Sensitivity:
    """Mean per key over the probes that contain it, rounded to four digits: it is an estimate."""
    by_key: dict[str, list[tuple[Any, int]]] = {}
    for estimate, weight in zip(estimates, weights or [1] * len(estimates), strict=True):
        for key, sensitivity in estimate.items():
            by_key.setdefault(key, []).append((sensitivity, weight))
    return {key: _mean(*zip(*by_key[key], strict=True)) for key in sorted(by_key)}


def _mean(values: tuple[Any, ...], weights: tuple[int, ...]) -> float | tuple[float, ...]:
    if isinstance(values[0], tuple):
        return tuple(_mean(channel, weights) for channel in zip(*values, strict=True))  # type: ignore[misc]
    return float(f"{sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights):.4g}")


def build_ranges(
    values: Mapping[str, Stats],
    batches: int,
    samples: int,
    fingerprint: str,
    constant_inputs: Mapping[str, str],
    sensitivity: Sensitivity,
    stopped: Collection[str] = (),
) -> Ranges:
    """Ranges with notes on insufficient or suspicious data. `stopped` are ops that gave no gradient."""
    notes = tuple(_notes(values, batches, samples, constant_inputs))
    if stopped:
        notes += (f"{NO_GRADIENT}: {_names(sorted(stopped))}; errors before them count as errors of an output",)
    if not sensitivity:
        notes += ("no sensitivity estimate: the first batch is too large, or no op is differentiable",)
    return Ranges(values, batches, samples, fingerprint, notes, dict(constant_inputs), dict(sensitivity))


def _notes(
    values: Mapping[str, Stats], batches: int, samples: int, constant_inputs: Mapping[str, str]
) -> Iterable[str]:
    """One note per kind of insufficient or suspicious data."""
    if batches == 1:
        yield f"only one batch was recorded (first dimension {samples}): the ranges cover that batch only"
    elif constant_inputs:
        yield f"identical in all {batches} batches, calibration saw no variation: {_names(constant_inputs)}"
    never_finite = [n for n, s in values.items() if s.count and not s.finite]
    if never_finite:
        yield f"never finite, no range: {_names(never_finite)}"
    partly_finite = [n for n, s in values.items() if s.nonfinite and s.finite]
    if partly_finite:
        yield f"some elements are not finite and are excluded from the range: {_names(partly_finite)}"
    constant = [f"{n} ({s.min:g})" for n, s in values.items() if s.finite > 1 and s.min == s.max]
    if constant:
        yield f"constant over all elements and batches: {_names(constant)}"


def _names(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _to_rows(values: Mapping[str, Stats]) -> dict[str, list[Any]]:
    """One row per value: min, max, count, nonfinite, neginf, keys, counts."""
    return {
        n: [s.min, s.max, s.count, s.nonfinite, s.neginf, list(s.histogram), list(s.histogram.values())]
        for n, s in values.items()
    }


def _from_row(row: list[Any]) -> Stats:
    """The planner trusts these numbers: what no recording can give is refused."""
    low, high, count, nonfinite, neginf, keys, counts = row
    whole = [count, nonfinite, neginf, *keys, *counts]
    made = Stats(float(low), float(high), count, nonfinite, neginf, dict(zip(keys, counts, strict=True)))
    possible = (
        all(type(n) is int and abs(n) < 1 << 62 for n in whole)
        and 0 <= neginf <= nonfinite <= count
        and math.isfinite(made.min) and math.isfinite(made.max) and made.min <= made.max
        and all(-INFINITY_BIN <= k < INFINITY_BIN for k in keys)
        and all(n > 0 for n in counts)
        and bool(counts) == bool(made.finite)
    )  # fmt: skip
    if not possible:
        raise ValueError(f"statistics {str(row)[:80]}")
    return made


_TYPES: dict[str, type] = {
    "batches": int, "samples": int, "fingerprint": str, "constant_inputs": dict, "notes": list,
    "sensitivity_weight": int,
}  # fmt: skip


def _of_type(value: Any, name: str) -> Any:
    if type(value) is not _TYPES[name]:
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def _sensitivity(value: Any) -> float | tuple[float, ...]:
    found = tuple(map(float, value)) if isinstance(value, list) else (float(value),)
    if not all(math.isfinite(v) and v >= 0 for v in found):
        raise ValueError(f"sensitivity {str(value)[:80]}")
    return found if isinstance(value, list) else found[0]


def _parsed(data: str | bytes, what: str) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise _not_ranges(what, str(e)) from e
    return _checked(body, what)


def _checked(body: Any, what: str) -> dict[str, Any]:
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _not_ranges(what, "it is JSON with another format")
    if body.get("version") != VERSION:
        raise _not_ranges(what, f"version {body.get('version')}, supported: {VERSION}")
    return body


def _not_ranges(what: str | os.PathLike[str], why: str) -> InputError:
    return InputError(f"{what} is not a ranges file", why=why, hint="record again and save it with Ranges.save")
