"""What Ingot asks of a target: how it stores numbers, what it does with an op, how its program is made and run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

Batch = tuple[torch.Tensor, ...]
Files = Mapping[str, bytes]


def digest(payload: bytes) -> str:
    """The name by which a delegate's files are found again from what its backend loads."""
    return hashlib.sha256(payload).hexdigest()


@dataclass(frozen=True)
class Format:
    """How a kind of number may be stored: an integer type, its range, and whether zero is in the middle."""

    dtype: str
    qmin: int
    qmax: int
    symmetric: bool


@dataclass(frozen=True)
class Ability:
    """In which precisions a target runs one op inside its delegate (none: the host must), and who says so."""

    runs: frozenset[str]  # of "float" and the names of the target's formats
    because: str
    # What an op on integers may store otherwise than its precision says: by operand (None: the result) the formats it
    # takes there, "float" among them, the first is the usual one.
    operands: Mapping[int | None, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prices:
    """Relative times: one multiply-add of int8 numbers is 1. Only their proportions matter."""

    multiply: Mapping[str, float]  # one multiply-add, by precision
    byte: float = 4.0  # one byte read or written
    stored: float = 300.0  # one byte of weights in the file: small files are half of what quantization is for
    op: float = 2_000.0  # one kernel call
    widening: float = 0.05  # what halving the noise is worth if paid with wider integers, as a share of the time
    hop: float = 500_000.0  # into another delegate or to the host, and back


@dataclass(frozen=True)
class Requirement:
    """A package or program the target needs, and the line that installs it."""

    name: str
    found: Callable[[], str | None]  # the version or path, None when missing
    install: str


@dataclass(frozen=True)
class Target:
    """One backend: rows and questions for the planner, verbs for lowering and running."""

    name: str
    backend: str
    description: str
    requirements: tuple[Requirement, ...]
    formats: Mapping[str, Format]  # how activations may be stored, by precision; the first is the default
    weight: Format
    ability: Callable[[Node], Ability]
    fuses: Callable[[Node, Node], bool]  # (producer, activation): they run as one op with one output scale
    rescales: Callable[[Node], bool]  # a kernel that could carry its input's scale has an output scale of its own
    float_inside: bool  # the backend runs float beside integers, so a value without a range costs no hop
    float_bias: bool  # the backend makes int32 biases itself from float constants in the graph
    weight_axis: Callable[[Node], int | None]  # per-channel axis of an op's weight, None = one scale for all
    rules: Callable[[], Sequence[Any]]  # rewrites that keep ops inside the delegate
    partitioners: Callable[[], list[Any]]
    run: Callable[..., list[list[torch.Tensor]]]
    executed_on: Callable[[], str]
    prices: Prices
    extras: tuple[Requirement, ...] = ()  # what it can do without, and what they are good for is in their names
    narrow_weights: Mapping[str, Format] = field(default_factory=dict)  # other forms of weights it takes, by name
    weight_schemes: tuple[str, ...] = ()  # of ingot.weights, those whose artefacts were seen to be right
    weight_bits: tuple[int, ...] = (4, 8)  # of a weight, in the schemes that it takes
    # Bits of the factor by which sums of products become results, by precision, where those are too few to be exact.
    factor_bits: Mapping[str, int] = field(default_factory=dict)
    # Over all integers, those between which functions are interpolated, by precision.
    knots: Mapping[str, int] = field(default_factory=dict)
    interpolates: Callable[[Node], bool] = lambda node: False  # those functions
    # Whether what an op reads has better a zero point of zero (True) or another (False), where that costs time.
    zero_at_zero: Callable[[Node], bool | None] = lambda node: None
    gains_in_norms: bool = False  # a norm and its gains are one kernel: gains of one stay
    narrow_saves: bool = True  # in its file; else narrow weights are taken only where a recipe names the op
    answers_at_once: bool = False  # asking its ability costs nothing to speak of, so rewrites can be weighed by it
    ties_up: bool = False  # a number in the middle between two steps goes to the upper one, not to the even one
    fixed_shapes: bool = False  # it compiles for the shapes of the example
    resizes: bool = False  # its delegate looks at the sizes of what it is given, whatever it was compiled for
    alignment: int = 128  # of each piece of data in the file
    hints: dict[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)  # what a recipe may set, and what for
    configured: Callable[[Mapping[str, Any]], Target] | None = None  # the same target with options set
    get_ready: Callable[[], None] = lambda: None  # begins what a run would wait for, while it is still lowered
    lowering: Callable[[], AbstractContextManager[Any]] = nullcontext  # in force while the backend lowers
    # Sees the partitioned graph before it is written: takes aside, by the digest of a delegate's payload, the files
    # that its compiler was given or left, and tidies up.
    finish: Callable[[Any], Mapping[str, Files]] = lambda graph: {}
    trace: Callable[[bytes, Batch, int], bytes] | None = None  # some runs of a program under the runtime's profiler
    performance: Callable[[Files], Any] = lambda files: None  # what the compiler estimates of one delegate
    # (folder, program, inputs as they lie in memory by batch, shaders of other backends): a scenario to run elsewhere.
    scenario: Callable[..., Any] | None = None
    beside: tuple[Any, ...] = ()  # other backends, and which ops are theirs
    owns: Callable[[Node], bool] = lambda node: False
