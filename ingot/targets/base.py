"""What a target is, in seven parts: numerics, kernels, cost, lowering, runner, setup and weight_only.

The planner reads numerics, kernels and cost only. A part that is a protocol has defaults: subclass it and state what
differs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.errors import TargetError

if TYPE_CHECKING:
    from ingot.backends.base import Backend, Shader

    Shaders = Mapping[str, Callable[[bytes], Shader]]  # by backend id: the shader of a payload

Batch = tuple[torch.Tensor, ...]
Files = Mapping[str, bytes]
# Runs one delegate: (payload, arrays by batch, number of outputs) -> arrays by batch.
Executor = Callable[[bytes, list[list[Any]], int], list[list[Any]]]


def digest(payload: bytes) -> str:
    """The key by which the files of a delegate are found again from its payload."""
    return hashlib.sha256(payload).hexdigest()


# ---- numerics and cost: data ----


@dataclass(frozen=True)
class Format:
    """An integer type, its range, and whether its zero point is always 0."""

    dtype: str
    qmin: int
    qmax: int
    symmetric: bool


@dataclass(frozen=True)
class Numerics:
    """How the target stores and computes numbers."""

    formats: Mapping[str, Format]  # of activations, by precision; the first is the default
    weight: Format
    runs_float: bool  # float ops run inside the delegate, beside integer ones
    bias: Literal["float", "int32"] = "int32"  # float: the backend quantizes float biases itself
    int4_weights: Mapping[str, Format] = field(default_factory=dict)  # other weight formats, by name
    packs_int4: bool = True  # two weights a byte in its file; else int4 is used only where a recipe names the op
    rounding: Literal["half_even", "half_up"] = "half_even"
    # Bits of the requantization multiplier, by precision, where they are too few to be exact.
    multiplier_bits: Mapping[str, int] = field(default_factory=dict)
    # Entries of an interpolated lookup table, by precision.
    lut_entries: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CostModel:
    """Relative times: one int8 multiply-accumulate is 1. Only proportions matter."""

    multiply: Mapping[str, float]  # one multiply-accumulate, by precision
    byte: float = 4.0  # one byte read or written
    stored: float = 300.0  # one byte of weights in the file: small files are half of what quantization is for
    op: float = 2_000.0  # one kernel call
    wider_integers: float = 0.05  # share of the time that may be spent on wider integers to halve the noise
    boundary: float = 500_000.0  # one delegate boundary: to the host and back


# ---- kernels: questions about single ops ----


@dataclass(frozen=True)
class Ability:
    """In which precisions a target runs one op inside its delegate (none: on the host), and who says so."""

    runs: frozenset[str]  # of "float" and the names of the target's formats
    because: str
    # Operands (None: the result) that an integer op may store in another format than its precision; "float" is one of
    # them, the first is the default.
    operands: Mapping[int | None, tuple[str, ...]] = field(default_factory=dict)


class Kernels(Protocol):
    """What the backend's kernels can do with an op. The planner asks before anything is lowered."""

    cheap_to_query: bool = False  # `ability` is quick: rewrites are judged by it

    def ability(self, node: Node) -> Ability:
        """In which precisions the op runs in the delegate."""
        ...

    def fuses(self, producer: Node, activation: Node) -> bool:
        """Both run as one kernel with one output scale."""
        return False

    def requantizes(self, node: Node) -> bool:
        """The kernel has an output scale of its own although its op could pass the input's on."""
        return False

    def weight_axis(self, node: Node) -> int | None:
        """Per-channel axis of the op's weight; None: one scale for the whole weight."""
        return weight_axis(node)

    def is_lut(self, node: Node) -> bool:
        """The op is an interpolated lookup table."""
        return False

    def prefers_zero_point_zero(self, node: Node) -> bool | None:
        """Whether a zero point of 0 (True) or another (False) is faster for what the op reads; None: no difference."""
        return None


# ---- lowering ----


@dataclass(frozen=True)
class Refusal:
    """A log message: why the partitioner leaves an op on the host."""

    node: Node
    reason: str


# Ingot listens to loggers of this form while it lowers; other backends' partitioners log there too.
_partitioner_log = logging.getLogger("executorch.ingot.partitioner")


def report_host_op(node: Node, reason: str) -> None:
    """A partitioner calls this for each op that it refuses: `casting.host_ops` then has the reason."""
    _partitioner_log.debug(Refusal(node, reason))


class RewriteRule(Protocol):
    """A rewrite of the program that keeps ops inside the delegate."""

    @property
    def name(self) -> str: ...

    def apply(self, module: GraphModule) -> list[str]:
        """Rewrite everywhere; the places, in the user's terms."""
        ...


class Lowering(Protocol):
    """How a quantized program becomes a delegate."""

    backend_id: str  # as a program names it
    static_shapes: bool = False  # it compiles for the shapes of the example
    resizes_at_runtime: bool = False  # its delegate reads the sizes of its inputs at each call
    alignment: int = 128  # bytes, of each segment in the file
    hints: Mapping[str, str] = {}  # by op: what a person would write instead
    extra_backends: tuple[Backend, ...] = ()

    def partitioners(self) -> list[Any]:
        """ExecuTorch partitioners, in order."""
        ...

    def rules(self) -> Sequence[RewriteRule]:
        """Rewrites that keep ops inside the delegate, in order."""
        return ()

    def context(self) -> AbstractContextManager[Any]:
        """In force while the backend lowers."""
        return nullcontext()

    def finish(self, graph: GraphModule) -> Mapping[str, Files]:
        """Called on the partitioned graph: files of each delegate (compiler inputs, reports) by digest."""
        return {}

    def owned_by_another(self, node: Node) -> bool:
        """One of the extra backends owns the op."""
        return False


# ---- runner ----


class Estimate(Protocol):
    """What a compiler says of one delegate."""

    def to_dict(self) -> dict[str, Any]: ...


class Runner(Protocol):
    """Executes a program on this machine."""

    writes_scenarios: bool = False

    def run(
        self,
        pte: bytes,
        batches: Sequence[Batch],
        *,
        files: Mapping[str, Files],
        timeout: float,
        method: str = "forward",
        fresh: bool = True,
        extra: Mapping[str, Executor] | None = None,
    ) -> list[list[torch.Tensor]]:
        """Outputs by batch. `fresh`: mutable buffers start anew for each batch. `extra` runs other backends."""
        ...

    def executed_on(self) -> str:
        """What ran the program, in words: honest about simulators."""
        ...

    def warm_up(self) -> None:
        """Start what a run would wait for, while the program is still lowered."""
        return None

    def trace(self, pte: bytes, batch: Batch, runs: int) -> bytes | None:
        """An ETDump of some runs; None: no profiler here."""
        return None

    def estimate(self, files: Files) -> Estimate | None:
        """What the compiler says of one delegate's performance, from its files; None: nothing."""
        return None

    def write_scenario(
        self, folder: Path, pte: bytes, batches: Sequence[Sequence[np.ndarray]], shaders: Shaders | None = None
    ) -> None:
        """Write the program for Arm's scenario-runner, if `writes_scenarios`.

        `batches` are inputs as they lie in memory; `shaders` make the delegates of other backends.
        """
        raise TargetError("this target has no scenarios", hint="target='vgf'")


# ---- setup and weight-only ----


@dataclass(frozen=True)
class Requirement:
    """A package or program that a target needs, and the command that installs it."""

    name: str
    found: Callable[[], str | None]  # the version or path, None when missing
    install: str


@dataclass(frozen=True)
class Setup:
    """What must be installed, and what a recipe may configure."""

    requirements: tuple[Requirement, ...] = ()
    extras: tuple[Requirement, ...] = ()  # optional; their names say what they are for
    options: Mapping[str, str] = field(default_factory=dict)  # what a recipe may set, and what for
    configure: Callable[[Mapping[str, Any]], Target] | None = None  # the same target with options set


@dataclass(frozen=True)
class WeightOnly:
    """Weight-only and dynamic-activation schemes whose artefacts were seen to be right."""

    schemes: tuple[str, ...] = ()
    bits: tuple[int, ...] = (4, 8)
    fused_norm_gains: bool = False  # a norm and its gain are one kernel: the gain is not folded into the next weight


@dataclass(frozen=True)
class Target:
    """One backend that Ingot casts for."""

    name: str
    description: str
    numerics: Numerics
    kernels: Kernels
    cost: CostModel
    lowering: Lowering
    runner: Runner
    setup: Setup = Setup()
    weight_only: WeightOnly = WeightOnly()
