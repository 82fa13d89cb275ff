"""Is every output element an input element, and does its position depend on the values?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ingot.capture.op_semantics.effect import Kind
from ingot.capture.op_semantics.harness import Probe, TensorArgument
from ingot.capture.op_semantics.tagged_values import shift_of, tag_values

MAX_CONSTANTS = 16  # at fixed positions
MAX_CLAMP_BOUNDS = 4  # at positions that depend on the values: more constants mean a step function, not a clamp


@dataclass(frozen=True)
class ProbeResult:
    """The result of one probe. Operands are given as indices of float arguments."""

    kind: Kind
    float_args: tuple[int, ...] = ()
    constants: tuple[float, ...] = ()
    identity: bool = False
    output: torch.Tensor | None = None  # the result, for CREATES
    note: str = ""


class _Provenance:
    """Collects what all runs have in common."""

    def __init__(self, active: Sequence[TensorArgument]):
        self.active = active
        self.first: tuple[torch.Tensor, torch.Tensor] | None = None
        self.same_output = self.same_positions = self.identity = True
        self.sources: set[int] = set()
        self.constants: dict[float, list[int]] = {}  # value -> runs

    def update(self, run: int, out: torch.Tensor, positions: torch.Tensor) -> bool:
        """Add one run. Returns False as soon as output elements are known to be computed."""
        if self.first is None:
            self.first = (out, positions)
        self.same_output &= torch.equal(out, self.first[0])
        self.same_positions &= torch.equal(positions, self.first[1])
        self.identity = self.identity and self._is_identity(positions)
        self._note_sources(positions)
        constants = _distinct(out[positions < 0])
        return self.same_output if constants is None else self._note_constants(run, constants)

    def _note_constants(self, run: int, constants: Iterable[float]) -> bool:
        for value in constants:
            self.constants.setdefault(value, []).append(run)
        return self.same_output or len(self.constants) <= MAX_CONSTANTS

    def _note_sources(self, positions: torch.Tensor) -> None:
        start = 0
        for arg in self.active:
            end = start + arg.numel
            if arg.index not in self.sources and bool(((positions >= start) & (positions < end)).any()):
                self.sources.add(arg.index)
            start = end

    def _is_identity(self, positions: torch.Tensor) -> bool:
        """The output is one float argument in order; its first element determines which one."""
        if not positions.numel() or int(positions[0]) < 0:
            return False
        start = int(positions[0])
        return torch.equal(positions, torch.arange(start, start + positions.numel()))


def _distinct(values: torch.Tensor) -> list[float] | None:
    """The distinct values, or None if there are more than MAX_CONSTANTS or one is NaN."""
    found: list[float] = []
    while values.numel():
        if len(found) == MAX_CONSTANTS or bool(values[0].isnan()):
            return None
        found.append(values[0].item())
        values = values[values != values[0]]
    return found


def trace_provenance(
    probe: Probe, active: Sequence[TensorArgument], fixed: Sequence[torch.Tensor]
) -> ProbeResult | None:
    """MOVES, SELECTS or CREATES. None if elements are computed."""
    provenance = _Provenance(active)
    scales = _input_scales(probe)
    for run in range(_runs(sum(s.numel for s in active), len(scales))):
        if not provenance.update(run, *_run_tagged(probe, active, fixed, run, scales, 0.0)):
            return None
    if provenance.same_output and not provenance.sources:
        return ProbeResult(Kind.CREATES, output=provenance.first[0] if provenance.first else None)
    if not provenance.sources or not _constants_hold(probe, active, fixed, provenance, scales):
        return None
    return _result(provenance)


def _result(provenance: _Provenance) -> ProbeResult | None:
    if not provenance.same_positions and len(provenance.constants) > MAX_CLAMP_BOUNDS:
        return None
    kind = Kind.MOVES if provenance.same_positions else Kind.SELECTS
    constants = tuple(sorted(value + 0.0 for value in provenance.constants))
    return ProbeResult(
        kind, tuple(sorted(provenance.sources)), constants, provenance.identity and provenance.same_positions
    )


def _run_tagged(
    probe: Probe,
    active: Sequence[TensorArgument],
    fixed: Sequence[torch.Tensor],
    run: int,
    scales: Sequence[float],
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One run on tagged values: the output, and the input position of each of its elements."""
    generator = torch.Generator().manual_seed(1000 + run)
    n, scale = sum(s.numel for s in active), scales[run % len(scales)]
    tagged = tag_values(n, probe.dtype, scale, shift_of(run // len(scales)) + offset, generator)
    out = probe.run(fill_inputs(tagged.values, active, fixed))
    return out, tagged.positions_of(out)


def fill_inputs(
    flat: torch.Tensor, active: Sequence[TensorArgument], fixed: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The fixed tensors, with the active arguments replaced by consecutive values of `flat`."""
    tensors, parts = list(fixed), flat.split([s.numel for s in active])
    for arg, part in zip(active, parts, strict=True):
        tensors[arg.index] = part.reshape(arg.shape)
    return tensors


def _constants_hold(
    probe: Probe,
    active: Sequence[TensorArgument],
    fixed: Sequence[torch.Tensor],
    provenance: _Provenance,
    scales: Sequence[float],
) -> bool:
    """A value of a single run may be computed rather than constant. Then it changes with slightly different inputs."""
    for run in {runs[0] for runs in provenance.constants.values() if len(runs) == 1}:
        out, positions = _run_tagged(probe, active, fixed, run, scales, 0.003)
        repeated = _distinct(out[positions < 0]) or []
        if any(runs == [run] and value not in repeated for value, runs in provenance.constants.items()):
            return False
    return True


def _input_scales(probe: Probe) -> list[float]:
    """Input magnitudes: around 1, beyond 6, and beyond the scalar arguments of the node (the bounds of a clamp)."""
    args, kwargs = probe.template  # top-level numbers only: numbers in lists are sizes
    numbers = [abs(x) for x in (*args, *kwargs.values()) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    usual = [x for x in numbers if 1e-30 < x < 1e15]
    extra = {1.6 * x for x in (min(usual), max(usual))} if usual else set()
    return [1.6, 9.6, *sorted(extra - {1.6, 9.6})]


def _runs(n: int, scales: int) -> int:
    """Number of runs. Few elements cover little in one run, so they get more runs."""
    return scales * (1 if n >= 4096 else 2 if n >= 64 else 4 if n >= 8 else 10)
