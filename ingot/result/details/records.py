"""What a report shows in addition to the fields of a casting. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OperandUse:
    """One operand of an op: the value, and the conversion of its qparams on the edge, if any."""

    value: str
    converts: str = ""  # quantize, dequantize or requantize; empty: none


@dataclass(frozen=True)
class Distribution:
    """The calibration statistics of a value: minimum, maximum, histogram; and the range that the plan chose."""

    min: float
    max: float
    count: int
    nonfinite: int
    low: float  # left end of the first bin
    high: float  # right end of the last bin
    bins: tuple[float, ...]  # fractions of the sample
    chosen: tuple[float, float] | None = None  # the real numbers of qmin and qmax


@dataclass(frozen=True)
class GraphNode:
    """One value of the program: its op, where the op runs, its qparams and its SQNR."""

    name: str
    op: str  # input, output, or the called op
    source: str
    module: str
    shape: tuple[int | str, ...]
    dtype: str
    place: int | None  # the number of a delegate, 0 for the host, None if fused into a neighbour
    precision: str
    stored: str
    reads: tuple[OperandUse, ...] = ()
    constants: tuple[str, ...] = ()
    why: str = ""
    spread: Distribution | None = None
    sqnr_db: float | None = None


@dataclass(frozen=True)
class Weight:
    """One constant: its first reader, and its size in the file."""

    name: str
    reader: str
    module: str  # of the reader
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    place: int | None


@dataclass(frozen=True)
class CalibrationSummary:
    """The size of the calibration data, and the values that it covers badly."""

    batches: int
    samples: int
    values: int
    notes: tuple[str, ...] = ()
    suspect_values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names by kind of problem


@dataclass(frozen=True)
class TimedOp:
    """One op of a profiled run, in a delegate or on the host, under the runtime's own name."""

    name: str
    place: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """The profile of one run; `how` says what was measured, or why nothing was."""

    how: str
    seconds: float | None = None
    runs: int = 0
    parts: tuple[TimedOp, ...] = ()


@dataclass(frozen=True)
class Details:
    """All details of a casting; `notes` say what is unknown and why."""

    nodes: tuple[GraphNode, ...] = ()
    weights: tuple[Weight, ...] = ()
    recorded: CalibrationSummary | None = None
    timing: Timing | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
