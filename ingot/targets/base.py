"""What a target is, in seven parts: numerics, kernels, cost, lowering, runner, setup and weight_only.

The planner reads numerics, kernels and cost. Lowering reads lowering, verification reads runner, the command line reads
setup. Numerics, cost, setup and weight_only are data. Kernels, lowering and runner are protocols: subclass them and
override what differs from the defaults. docs/adding-a-target.md walks through a complete target.
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

    Shaders = Mapping[str, Callable[[bytes], Shader]]  # by backend id: payload -> compute shader

Batch = tuple[torch.Tensor, ...]  # the inputs of one call
Files = Mapping[str, bytes]  # by file name
# Runs one delegate: (payload, input arrays by batch, number of outputs) -> output arrays by batch. An array has the
# shape of its memory layout: N,H,W,C for a channels-last tensor.
Executor = Callable[[bytes, list[list[Any]], int], list[list[Any]]]


def digest(payload: bytes) -> str:
    """The key of a delegate's files: SHA-256 of its payload."""
    return hashlib.sha256(payload).hexdigest()


# ---- numerics and cost: data ----


@dataclass(frozen=True)
class Format:
    """An integer format: real = scale * (integer - zero point)."""

    dtype: str  # as torch names it: "int8", "int16"
    qmin: int
    qmax: int
    symmetric: bool  # the zero point is always 0


@dataclass(frozen=True)
class Numerics:
    """How the backend represents and rounds numbers. The planner chooses within it; verification computes with it."""

    # Formats of activations, by precision ("int8", "int16"). The first is the default. Empty: no integer activations.
    formats: Mapping[str, Format]
    weight: Format
    # The delegate runs float ops as well as integer ops. False: an op that is planned in float runs on the host.
    runs_float: bool
    # "int32": the graph has int32 biases, at input scale * weight scale. "float": it has float biases, and the backend
    # quantizes them.
    bias: Literal["float", "int32"] = "int32"
    int4_weights: Mapping[str, Format] = field(default_factory=dict)  # narrower weight formats, by the recipe's name
    # Two int4 weights share a byte in the file. False: they save nothing, so only a recipe chooses them.
    packs_int4: bool = True
    # The runtime beside the delegate has a kernel that looks up int8 rows of an embedding table.
    int8_embeddings: bool = False
    rounding: Literal["half_even", "half_up"] = "half_even"  # of a requantized sum
    # By precision: bits of the requantization multiplier, where they are so few that results change. Empty: exact.
    multiplier_bits: Mapping[str, int] = field(default_factory=dict)
    # By precision: entries of a lookup table (LUT) with linear interpolation between them. Empty: no such tables.
    lut_entries: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CostModel:
    """Relative times. One int8 multiply-accumulate (MAC) is 1; only proportions matter."""

    multiply: Mapping[str, float]  # one MAC, by precision; with "float"
    byte: float = 4.0  # one byte of an activation, read or written
    weight_byte: float = 300.0  # one byte of weights in the file: file size counts as well as time
    op: float = 2_000.0  # one kernel call
    int16_time_budget: float = 0.05  # fraction of the total time that int16 may cost where it halves the noise
    boundary: float = 500_000.0  # one delegate boundary: to the host and back


# ---- kernels: questions about single ops ----


# A precision: input and result are float, the weight is int8, and the input is quantized at run time, token by token.
DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Ability:
    """In which precisions a backend runs one op inside its delegate."""

    runs: frozenset[str]  # of "float", DYNAMIC and the names in Numerics.formats; empty: the op runs on the host
    because: str  # shown by `ingot why`: for an empty `runs` the reason, else who said so
    # By operand (None: the result): precisions in which an integer op may read or write it, if not the op's own. The
    # first is the default.
    operands: Mapping[int | None, tuple[str, ...]] = field(default_factory=dict)


class Kernels(Protocol):
    """What the backend's kernels can do with an op. Each node is an ATen op of the float program, with its fake value
    in `node.meta["val"]`."""

    # `ability` takes microseconds, so rewrites may be judged by it. False: it takes a compiler run.
    cheap_to_query: bool = False
    # The delegate runs ops that give integers (a comparison, an argmax) on quantized operands.
    integer_results: bool = False

    def ability(self, node: Node) -> Ability:
        """In which precisions the delegate runs the op. Ask the backend's own partitioner: a second list drifts."""
        ...

    def fuses(self, producer: Node, consumer: Node) -> bool:
        """Both run as one kernel with one output scale: nothing is quantized between them."""
        return False

    def requantizes(self, node: Node) -> bool:
        """The kernel of an op that only moves or selects numbers has an output scale of its own.

        False: its input and its output share one scale.
        """
        return False

    def weight_axis(self, node: Node) -> int | None:
        """Axis of the weight with one scale for each channel; None: one scale for the whole weight."""
        return weight_axis(node)

    def is_lut(self, node: Node) -> bool:
        """The kernel interpolates in a lookup table of `Numerics.lut_entries` entries."""
        return False

    def prefers_zero_point_zero(self, node: Node) -> bool | None:
        """The op is faster if its input has zero point 0 (True) or another one (False); None: no difference."""
        return None


# ---- lowering ----


@dataclass(frozen=True)
class Refusal:
    """The log message of `report_host_op`."""

    node: Node
    reason: str


# While a program is lowered, Ingot reads host op reasons from loggers of executorch.*partition*.
_partitioner_log = logging.getLogger("executorch.ingot.partitioner")


def report_host_op(node: Node, reason: str) -> None:
    """A partitioner calls this for each op that it refuses. `casting.host_ops` shows the reason."""
    _partitioner_log.debug(Refusal(node, reason))


class RewriteRule(Protocol):
    """A rewrite of the float program, before planning, that keeps ops inside the delegate."""

    @property
    def name(self) -> str:
        """By this name a recipe disables the rule."""
        ...

    def apply(self, module: GraphModule) -> list[str]:
        """Rewrite in place. Returns where it applied, as `conv2d_1 (net.py:12)`."""
        ...


class Lowering(Protocol):
    """How a quantized program becomes a .pte with delegates."""

    backend_id: str  # as in the .pte: the name of the BackendDetails class
    static_shapes: bool = False  # it compiles for the example's shapes, so dynamic_shapes is refused
    resizes_at_runtime: bool = False  # a delegate takes inputs of any size up to the declared bounds
    contiguous_only: bool = False  # a delegate reads and writes contiguous memory, whatever the program declares
    # An op planned in float runs on integers where it stands between a dequantize and a quantize.
    absorbs_qdq: bool = False
    alignment: int = 128  # bytes, of each data segment in the .pte
    # By op name ("erf"): what to write instead of an op that runs on the host. By scheme ("weights:4w"): why
    # weight_only does not offer it.
    hints: Mapping[str, str] = {}
    extra_backends: tuple[Backend, ...] = ()  # set by ComposedTarget
    barred: Mapping[str, str] = {}  # ops that stay on the host, by name, each with its reason; set by BarredTarget

    def partitioners(self) -> list[Any]:
        """ExecuTorch partitioners, in the order of `to_edge_transform_and_lower`. They may call `report_host_op`."""
        ...

    def rules(self) -> Sequence[RewriteRule]:
        """Rewrites, in order: a rule may leave work for a later one."""
        return ()

    def edge_passes(self) -> list[Any]:
        """Passes over the decomposed program, before it is partitioned."""
        return []

    def context(self) -> AbstractContextManager[Any]:
        """Entered while ExecuTorch lowers, until `finish`: patches, log levels, temporary files of the backend."""
        return nullcontext()

    def finish(self, graph: GraphModule) -> Mapping[str, Files]:
        """Files of each delegate in the partitioned graph (compiler input, compiler report), by `digest`.

        `Runner.run` and `Runner.estimate` read them again.
        """
        return {}

    def audit(self, graph: GraphModule) -> tuple[str, ...]:
        """Notes on the delegates of the partitioned graph: what their payloads do at run time and need not."""
        return ()

    def owned_by_another(self, node: Node) -> bool:
        """An extra backend owns the op. Set by ComposedTarget."""
        return False


# ---- runner ----


class Estimate(Protocol):
    """What a compiler reports about one delegate: cycles, bytes, segments."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ...


class Runner(Protocol):
    """Executes a .pte on this machine: on the device, on a simulator or on a reference model."""

    writes_scenarios: bool = False  # `write_scenario` is implemented

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
        """The outputs of each batch. `ingot.runtime.segmented_run.run_segmented` runs a backend with an `Executor`.

        `files`: what `Lowering.finish` returned. `timeout`: seconds for one batch. `fresh`: mutable buffers are reset
        before each batch. `extra`: executors of other backends in the program, by backend id.
        """
        ...

    def executed_on(self) -> str:
        """What ran the program, for `check.executed_on`. A simulator says that it is one."""
        ...

    def warm_up(self) -> None:
        """Called before lowering: start processes that the first run would wait for."""
        return None

    def trace(self, pte: bytes, batch: Batch, runs: int) -> bytes | None:
        """An ETDump of `runs` runs; None: no profiler."""
        return None

    def event_handles(self, payload: bytes, events: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """By event of a trace, in the order of one run: debug handles of the ops that it stands for.

        `payload`: what the backend loads. Empty: its events are not matched with ops.
        """
        return {}

    def estimate(self, files: Files) -> Estimate | None:
        """The compiler's estimate for one delegate, from its files; None: no estimate."""
        return None

    def write_scenario(
        self, folder: Path, pte: bytes, batches: Sequence[Sequence[np.ndarray]], shaders: Shaders | None = None
    ) -> None:
        """Write the program and its inputs as a scenario of Arm's scenario-runner.

        `batches`: input arrays in the shape of their memory layout. `shaders`: for delegates of other backends.
        """
        raise TargetError("this target writes no scenarios", hint="target='vgf'")


# ---- setup and weight-only ----


@dataclass(frozen=True)
class Requirement:
    """A package or program that a target needs, and the command that installs it."""

    name: str
    found: Callable[[], str | None]  # its version or path; None: not installed
    install: str


@dataclass(frozen=True)
class Setup:
    """What must be installed, and which options a recipe may set."""

    requirements: tuple[Requirement, ...] = ()
    extras: tuple[Requirement, ...] = ()  # optional: verification on a better executor, estimates
    options: Mapping[str, str] = field(default_factory=dict)  # name -> what it sets, for `ingot targets`
    # Checked options (all names are in `options`) -> the target with these set. Invalid values: InputError.
    configure: Callable[[Mapping[str, Any]], Target] | None = None


@dataclass(frozen=True)
class WeightOnly:
    """Which schemes of `ingot.cast(..., weights=)` the backend runs correctly, as verified by executing artefacts."""

    schemes: tuple[str, ...] = ()  # "4w", "8w": float activations; "8da4w", "8da8w": dynamic int8 activations
    bits: tuple[int, ...] = (4, 8)  # of embedding and head
    # A norm and its weight are one kernel: where rotation folds that weight into the next linear, it leaves ones.
    fused_norm_gains: bool = False


@dataclass(frozen=True)
class Target:
    """One backend for which Ingot plans, lowers and verifies."""

    name: str  # as in `target="..."`
    description: str  # one line for `ingot targets`
    numerics: Numerics
    kernels: Kernels
    cost: CostModel
    lowering: Lowering
    runner: Runner
    setup: Setup = Setup()
    weight_only: WeightOnly = WeightOnly()
