"""Records that describe an artefact: tensors, delegates, host ops and the result of its check. Plain data, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class TensorInfo:
    """One tensor at the boundary of a delegate or of the program; scale and friends are None where it is float."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    layout: str = "contiguous"
    scale: float | None = None
    zero_point: int | None = None
    qmin: int | None = None
    qmax: int | None = None


@dataclass(frozen=True)
class ProgramIO:
    """The inputs and the outputs of the program, in calling order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def to_json(self) -> str:
        """For the application: how to store what it gives, and how to read what it gets."""
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class Delegate:
    """One piece of the program that a backend runs whole."""

    backend: str
    ops: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    kinds: tuple[str, ...] = ()
    digest: str = ""  # of what the backend will load
    size: int = 0  # bytes of that, with the constants that it names
    values: tuple[str, ...] = ()  # of the program, those that are computed in it
    # What its compiler was given, and what it left beside the program.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class HostOp:
    """One op that stayed outside every delegate, and why."""

    op: str
    name: str
    source: str
    reason: str
    hint: str


@dataclass(frozen=True)
class SliceCheck:
    """The slice of an output (a channel, a row, a group of joined channels) that rounding noise explains least."""

    kind: str  # "output", "channel", "axis 2", "group"; "channel in group" if several ops made the output
    index: int
    of: int  # slices of this kind
    group: int  # which of the joined groups, from 0
    values: int  # that were compared
    samples: float  # of these, how many are independent
    noise_ratio: float  # rms of artefact - quantized graph, in units of the rms of quantized graph - float model
    graph_db: float  # SQNR to the quantized graph
    float_db: float  # SQNR to the float model
    chance: float  # that noise alone does this in any slice of the output


@dataclass(frozen=True)
class OutputCheck:
    """How one output of the artefact compares with the float model and with its own quantized graph."""

    name: str
    sqnr_db: float
    max_abs_error: float
    worst_channel_db: float  # the lowest SQNR to the float model of a channel whose signal is above the noise
    faithful_db: float
    problem: str | None = None
    disagrees: bool = False  # the problem: artefact and quantized graph disagree, so quantization is not its cause
    worst: SliceCheck | None = None  # None: no slice differs from the graph by more than its rounding noise
    groups_db: tuple[float, ...] = ()  # SQNR to the float model of each group of joined channels, if there are several


@dataclass(frozen=True)
class Check:
    """What running the artefact showed."""

    executed_on: str
    batches: int
    outputs: tuple[OutputCheck, ...]
    passed: bool
    culprit: str | None = None
    # Which data: "validation", "held-out" (of the calibration data, not recorded), "calibration", "example" inputs, or
    # "given" to verify().
    judged_on: str = "given"
    notes: tuple[str, ...] = ()  # what could not be compared as well as usual
    methods: Mapping[str, Check] = field(default_factory=dict)  # of a program with several sizes: of each method

    @property
    def max_abs_error(self) -> float:
        return max((o.max_abs_error for o in self.outputs), default=0.0)
