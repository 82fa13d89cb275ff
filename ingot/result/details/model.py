"""What a report shows beside a casting's own fields, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Read:
    """One operand: the value that is read, and how its numbers are stored anew on the way, if they are."""

    value: str
    converts: str = ""  # quantize, dequantize or requantize


@dataclass(frozen=True)
class Spread:
    """What was recorded of a value: its ends, how its numbers are spread, and the range that was chosen."""

    min: float
    max: float
    count: int
    nonfinite: int
    low: float  # where the first bin begins
    high: float  # and the last one ends
    bins: tuple[float, ...]  # shares of the sample
    chosen: tuple[float, float] | None = None  # the real numbers that the integers reach


@dataclass(frozen=True)
class Node:
    """One value of the program: what makes it, where that runs, how it is stored and how far it is off."""

    name: str
    op: str  # input, output, or what is called
    source: str
    module: str
    shape: tuple[int | str, ...]
    dtype: str
    place: int | None  # the number of a delegate, 0 for the host, None where it vanished into its neighbours
    precision: str
    stored: str
    reads: tuple[Read, ...] = ()
    constants: tuple[str, ...] = ()
    why: str = ""
    spread: Spread | None = None
    sqnr_db: float | None = None


@dataclass(frozen=True)
class Weight:
    """One constant: who reads it first, and what it takes as it is stored."""

    name: str
    reader: str
    module: str  # where the reader is
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    place: int | None


@dataclass(frozen=True)
class Recorded:
    """What the calibration data showed, and what of it was too little."""

    batches: int
    samples: int
    values: int
    notes: tuple[str, ...] = ()
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by kind, the values


@dataclass(frozen=True)
class Part:
    """One op as it ran: in a delegate or on the host, under the runtime's own name for it."""

    name: str
    place: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Where one run spends its time; `how` says what was measured, or why nothing was."""

    how: str
    seconds: float | None = None
    runs: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Details:
    """All of it; `notes` say what could not be found out."""

    nodes: tuple[Node, ...] = ()
    weights: tuple[Weight, ...] = ()
    recorded: Recorded | None = None
    timing: Timing | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
