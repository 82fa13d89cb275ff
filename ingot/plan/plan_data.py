"""The plan as plain data: the qparams of every quantization point, and the reason for each."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from ingot.config.validation import parsed
from ingot.core.channel_factors import ChannelFactors
from ingot.errors import InputError, PlanError, first_sentence, nearest

VERSION = 1


def as_float32(scale: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """The scale (or the scales of all channels) rounded to float32."""
    rounded = struct.unpack(f"{len(s)}f", struct.pack(f"{len(s)}f", *s)) if (s := _as_tuple(scale)) else ()
    return rounded if isinstance(scale, tuple) else rounded[0]


def _as_tuple(scale: float | tuple[float, ...]) -> tuple[float, ...]:
    return scale if isinstance(scale, tuple) else (scale,)


@dataclass(frozen=True)
class QParams:
    """real = scale * (quantized - zero_point); per channel, scale and zero_point are tuples along `axis`."""

    dtype: str
    scale: float | tuple[float, ...]
    zero_point: int | tuple[int, ...]
    qmin: int
    qmax: int
    axis: int | None = None

    def __post_init__(self) -> None:
        """Runtimes hold scales as float32. A bias scale is the product of two such scales and stays exact."""
        if self.dtype != "int32":
            object.__setattr__(self, "scale", as_float32(self.scale))

    @property
    def representable_range(self) -> tuple[float, float]:
        """The real values of qmin and qmax; per-tensor qparams only."""
        assert isinstance(self.scale, float)
        assert isinstance(self.zero_point, int)
        return (self.qmin - self.zero_point) * self.scale, (self.qmax - self.zero_point) * self.scale

    def __str__(self) -> str:
        if isinstance(self.scale, tuple):  # by what it has: a file can hold several scales and no axis
            return f"{self.dtype} per channel (axis {self.axis}, {len(self.scale)} scales)"
        return f"{self.dtype}, scale {self.scale:.6g}, zero point {self.zero_point}"


@dataclass(frozen=True, order=True)
class QuantizationPoint:
    """Where a value may be quantized: at the result of `node` (operand None), or at one of its operands."""

    node: str
    operand: int | None = None

    def __str__(self) -> str:
        return self.node if self.operand is None else f"{self.node}[{self.operand}]"


@dataclass(frozen=True)
class Decision:
    """One quantization point: its qparams (None: float), the rule that decided, and the reasons."""

    point: QuantizationPoint
    qparams: QParams | None
    rule: str
    because: tuple[str, ...] = ()
    reads: str | None = None  # at an operand: the name of the value that is read
    source: str = "?"
    op: str = ""
    fixed: bool = False  # given by the recipe, or excludes mask fill values: QAT must not change it


@dataclass(frozen=True)
class Prediction:
    """What the cost and the noise model expect of a plan."""

    time: float = 0.0  # in the units of the target's cost model, conversions included
    sqnr_db: float | None = None  # of the outputs; None: no noise. As simulated, where that was possible
    modelled_sqnr_db: float | None = None  # by the noise model, which compares precisions before anything is simulated
    precisions: Mapping[str, int] = field(default_factory=dict)  # how many ops run in each
    noisiest: tuple[str, ...] = ()  # the ops that add most noise to the outputs, with their share


@dataclass(frozen=True)
class Plan:
    """The decisions for one program on one target, as data: to read, compare, edit and lower."""

    target: str
    fingerprint: str
    decisions: tuple[Decision, ...]
    rewrites: tuple[str, ...] = ()
    version: int = VERSION
    notes: tuple[str, ...] = field(default=())
    # Added to the bias of an op, by channel.
    bias_corrections: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    channel_factors: ChannelFactors = field(default_factory=ChannelFactors)  # cross-layer equalization, SmoothQuant
    # GPTQ: by op, the codes of its weight, where they are not the nearest ones (rounded_weights.py reads them).
    rounded_weights: Mapping[str, str] = field(default_factory=dict)
    dynamic: tuple[str, ...] = ()  # ops that quantize operand 0 at run time, token by token, to int8
    channels_last: tuple[str, ...] = ()  # inputs and outputs in channels-last memory format (NHWC)
    integer_io: bool = True  # the caller passes quantized inputs and outputs as integers; False: the program converts
    settings: Mapping[str, Any] = field(default_factory=dict)  # recipe settings that lowering needs
    range_estimator: str = "auto"  # where no scope names another
    predicted: Prediction = field(default_factory=Prediction)
    # Of a program with several sizes, for each further method: the fingerprint of its program, which has this plan
    # too; or a plan of its own.
    methods: Mapping[str, str | Plan] = field(default_factory=dict)

    def for_method(self, name: str) -> Plan:
        found = self.methods[name]
        return found if isinstance(found, Plan) else replace(self, fingerprint=found, methods={})

    @cached_property
    def by_point(self) -> dict[QuantizationPoint, Decision]:
        return {d.point: d for d in self.decisions}

    @cached_property
    def _by_node(self) -> dict[str, list[Decision]]:
        return _grouped((d.point.node, d) for d in self.decisions)

    @cached_property
    def _by_value_read(self) -> dict[str, list[Decision]]:
        return _grouped((d.reads, d) for d in self.decisions if d.reads is not None)

    def decision(self, node: str, operand: int | None = None) -> Decision | None:
        return self.by_point.get(QuantizationPoint(node, operand))

    def qparams(self, node: str, operand: int | None = None) -> QParams | None:
        decision = self.decision(node, operand)
        return decision.qparams if decision else None

    def knows(self, name: str) -> bool:
        return name in self._by_node or name in self._by_value_read

    def why(self, name: str) -> str:
        """Everything that was decided about a value: at its producer and at each consumer."""
        made, read = self._by_node.get(name, ()), self._by_value_read.get(name, ())
        if not self.knows(name):
            known = {d.point.node for d in self.decisions}
            raise PlanError(f"the plan has no value '{name}'", hint=nearest(name, known))
        lines = [line for d in made for line in _lines(d)] + self._bias_correction(name) + self._channel_factors(name)
        consumers = [line for d in read for line in _lines(d)]
        return "\n".join(lines + ([f"consumers ({len(read)}):"] + ["  " + c for c in consumers] if read else []))

    def _bias_correction(self, name: str) -> list[str]:
        largest = max(map(abs, self.bias_corrections.get(name, ())), default=0.0)
        return [f"    bias correction up to {largest:.3g} (mean quantization error per channel)"] if largest else []

    def _channel_factors(self, name: str) -> list[str]:
        how = {
            "constants": "in constants",
            "inputs": "by a product before weights",
            "results": "up to a product after it",
        }
        found = self.channel_factors.of(name).items()
        return [f"    its channels are divided by {min(f):.3g} … {max(f):.3g}, {how[where]}" for where, f in found]

    def diff(self, other: Plan) -> str:
        """What differs, one line each: qparams, corrections, memory formats. Empty for equal plans."""
        qparams = [f"{point}: {mine} -> {theirs}" for point, mine, theirs in self.differences(other)]
        names = {*self.bias_corrections, *other.bias_corrections}
        corrected = sorted(n for n in names if self.bias_corrections.get(n) != other.bias_corrections.get(n))
        rounded = {*self.rounded_weights.items()} ^ {*other.rounded_weights.items()}
        formats = sorted({*self.channels_last} ^ {*other.channels_last})
        dynamic = sorted({*self.dynamic} ^ {*other.dynamic})
        names = {n for p in (self, other) for f in asdict(p.channel_factors).values() for n in f}
        scaled = sorted(n for n in names if self.channel_factors.of(n) != other.channel_factors.of(n))
        return "\n".join(
            [
                *qparams,
                *(f"{name}: different bias correction" for name in corrected),
                *(f"{name}: different channel factors" for name in scaled),
                *(f"{name}: different rounding of the weight" for name in sorted({n for n, _ in rounded})),
                *(f"{name}: different memory format" for name in formats),
                *(f"{name}: quantizes its input at run time in one of them" for name in dynamic),
            ]
        )

    def differences(self, other: Plan) -> list[tuple[str, str, str]]:
        """The quantization points whose qparams differ: name, qparams here, qparams there."""
        points = sorted(self.by_point.keys() | other.by_point.keys(), key=str)
        pairs = [(p, self.by_point.get(p), other.by_point.get(p)) for p in points if self._differs(p, other)]
        return [(str(p), _qparams_text(mine), _qparams_text(theirs)) for p, mine, theirs in pairs]

    def _differs(self, point: QuantizationPoint, other: Plan) -> bool:
        mine, theirs = self.by_point.get(point), other.by_point.get(point)
        return (mine is None) != (theirs is None) or getattr(mine, "qparams", None) != getattr(theirs, "qparams", None)

    def to_json(self) -> str:
        data = asdict(self)
        return json.dumps(data if self.methods else {k: v for k, v in data.items() if k != "methods"}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """A plan that `to_json` wrote; every field is validated."""
        try:
            data = json.loads(text)
            version = data.get("version") if isinstance(data, dict) else None
            if version is not None and version != VERSION:
                raise InputError(f"the plan has version {version}, this Ingot reads {VERSION}")
            return parsed(cls, data, "the plan")
        except (ValueError, OverflowError, struct.error, RecursionError) as e:
            raise InputError("not an Ingot plan", why=f"{type(e).__name__}: {first_sentence(e)}") from e

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.decisions)


def _grouped(pairs: Iterable[tuple[str, Decision]]) -> dict[str, list[Decision]]:
    found: dict[str, list[Decision]] = {}
    for name, decision in pairs:
        found.setdefault(name, []).append(decision)
    return found


def _lines(d: Decision) -> Iterator[str]:
    yield f"{d.point} ({d.op}, {d.source}): {_qparams_text(d)} — {d.rule}"
    yield from (f"    {b}" for b in d.because)


def _qparams_text(d: Decision | None) -> str:
    return "absent" if d is None else str(d.qparams) if d.qparams else "float"
