"""The plan as plain data: what every value is stored as, at its producer and at each reader, and why."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ingot.errors import InputError, PlanError, nearest

VERSION = 1


def as_float32(scale: float | tuple[float, ...]) -> float | tuple[float, ...]:
    rounded = struct.unpack(f"{len(s)}f", struct.pack(f"{len(s)}f", *s)) if (s := _as_tuple(scale)) else ()
    return rounded if isinstance(scale, tuple) else rounded[0]


def _as_tuple(scale: float | tuple[float, ...]) -> tuple[float, ...]:
    return scale if isinstance(scale, tuple) else (scale,)


@dataclass(frozen=True)
class QParams:
    """real = scale * (stored - zero_point); tuples where each channel along `axis` has its own."""

    dtype: str
    scale: float | tuple[float, ...]
    zero_point: int | tuple[int, ...]
    qmin: int
    qmax: int
    axis: int | None = None

    def __post_init__(self) -> None:
        """Scales are float32 numbers, as every runtime has them; those of a bias are products of two and stay exact."""
        if self.dtype != "int32":
            object.__setattr__(self, "scale", as_float32(self.scale))

    @property
    def span(self) -> tuple[float, float]:
        """The real numbers that the integers reach; for one scale only."""
        assert isinstance(self.scale, float)
        assert isinstance(self.zero_point, int)
        return (self.qmin - self.zero_point) * self.scale, (self.qmax - self.zero_point) * self.scale

    def __str__(self) -> str:
        if self.axis is None:
            return f"{self.dtype}, scale {self.scale:.6g}, zero point {self.zero_point}"
        return f"{self.dtype} per channel (axis {self.axis}, {len(self.scale)} scales)"  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class QuantizationPoint:
    """A place where numbers are stored: what `node` puts out, or what it reads as its operand number `operand`."""

    node: str
    operand: int | None = None

    def __str__(self) -> str:
        return self.node if self.operand is None else f"{self.node}[{self.operand}]"


@dataclass(frozen=True)
class Decision:
    """One slot: float (storage None) or integers, the rule that decided and its reasons."""

    point: QuantizationPoint
    qparams: QParams | None
    rule: str
    because: tuple[str, ...] = ()
    reads: str | None = None  # for an operand: the value that is read
    source: str = "?"
    op: str = ""
    fixed: bool = False  # asked for, or cut at a mask's fills: training must not move it


@dataclass(frozen=True)
class Plan:
    """Decisions for every slot of one program on one target. Can be read, compared, edited and replayed."""

    target: str
    fingerprint: str
    decisions: tuple[Decision, ...]
    rewrites: tuple[str, ...] = ()
    version: int = VERSION
    notes: tuple[str, ...] = field(default=())
    bias_corrections: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict
    )  # what the bias of an op gains, by channel
    channels_last: tuple[str, ...] = ()  # inputs and outputs that lie in memory as N, H, W, C
    integer_io: bool = True  # inputs and outputs that are stored are the caller's to convert; else the program does it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, without which it cannot be carried out

    @cached_property
    def by_point(self) -> dict[QuantizationPoint, Decision]:
        return {d.point: d for d in self.decisions}

    @cached_property
    def _made(self) -> dict[str, list[Decision]]:
        return _grouped((d.point.node, d) for d in self.decisions)

    @cached_property
    def _read(self) -> dict[str, list[Decision]]:
        return _grouped((d.reads, d) for d in self.decisions if d.reads is not None)

    def decision(self, node: str, operand: int | None = None) -> Decision | None:
        return self.by_point.get(QuantizationPoint(node, operand))

    def qparams(self, node: str, operand: int | None = None) -> QParams | None:
        decision = self.decision(node, operand)
        return decision.qparams if decision else None

    def knows(self, name: str) -> bool:
        return name in self._made or name in self._read

    def why(self, name: str) -> str:
        """Everything that was decided about a value: as it is made, and as each reader takes it."""
        made, read = self._made.get(name, ()), self._read.get(name, ())
        if not self.knows(name):
            known = {d.point.node for d in self.decisions}
            raise PlanError(f"the plan has no value '{name}'", hint=nearest(name, known))
        lines = [line for d in made for line in _lines(d)] + self._shifted(name)
        readers = [line for d in read for line in _lines(d)]
        return "\n".join(lines + ([f"read by ({len(read)}):"] + ["  " + r for r in readers] if read else []))

    def _shifted(self, name: str) -> list[str]:
        most = max(map(abs, self.bias_corrections.get(name, ())), default=0.0)
        return [f"    its bias moves by up to {most:.3g}: the mean error of each channel, taken back"] if most else []

    def diff(self, other: Plan) -> str:
        """The slots and biases that differ, one line each; empty when the plans store everything alike."""
        stored = [f"{slot}: {mine} -> {theirs}" for slot, mine, theirs in self.differences(other)]
        moved = sorted(
            n
            for n in {*self.bias_corrections, *other.bias_corrections}
            if self.bias_corrections.get(n) != other.bias_corrections.get(n)
        )
        turned = sorted({*self.channels_last} ^ {*other.channels_last})
        told = [
            *(f"{name}: its bias moves otherwise" for name in moved),
            *(f"{name}: another layout" for name in turned),
        ]
        return "\n".join([*stored, *told])

    def differences(self, other: Plan) -> list[tuple[str, str, str]]:
        """The slots that are stored otherwise: their names, what is stored here and what there."""
        slots = sorted(self.by_point.keys() | other.by_point.keys(), key=str)
        pairs = [(s, self.by_point.get(s), other.by_point.get(s)) for s in slots if self._differs(s, other)]
        return [(str(s), _stored(mine), _stored(theirs)) for s, mine, theirs in pairs]

    def _differs(self, point: QuantizationPoint, other: Plan) -> bool:
        mine, theirs = self.by_point.get(point), other.by_point.get(point)
        return (mine is None) != (theirs is None) or getattr(mine, "qparams", None) != getattr(theirs, "qparams", None)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise InputError(f"the plan has version {data['version']}, this Ingot reads {VERSION}")
            decisions = tuple(_decision(d) for d in data.pop("decisions"))
            lists: dict[str, Any] = {k: tuple(data.pop(k)) for k in ("rewrites", "notes")}
            bias_corrections = {name: tuple(map(float, s)) for name, s in data.pop("bias_corrections", {}).items()}
            last = tuple(map(str, data.pop("channels_last", ())))
            return cls(decisions=decisions, bias_corrections=bias_corrections, channels_last=last, **lists, **data)
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as e:
            raise InputError("this is not a plan of Ingot", why=f"{type(e).__name__}: {e}") from e

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)


def _grouped(pairs: Iterable[tuple[str, Decision]]) -> dict[str, list[Decision]]:
    found: dict[str, list[Decision]] = {}
    for name, decision in pairs:
        found.setdefault(name, []).append(decision)
    return found


def _lines(d: Decision) -> Iterator[str]:
    what = str(d.qparams) if d.qparams else "float"
    yield f"{d.point} ({d.op}, {d.source}): {what} — {d.rule}"
    yield from (f"    {b}" for b in d.because)


def _stored(d: Decision | None) -> str:
    return "absent" if d is None else str(d.qparams) if d.qparams else "float"


def _decision(data: dict[str, Any]) -> Decision:
    storage = data.pop("qparams")
    slot, because = QuantizationPoint(**data.pop("point")), tuple(data.pop("because"))
    return Decision(point=slot, because=because, qparams=_storage(storage) if storage else None, **data)


def _storage(data: dict[str, Any]) -> QParams:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return QParams(**fields)
