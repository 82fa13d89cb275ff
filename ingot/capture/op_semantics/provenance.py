"""Does every output element come from an input element, and does its place depend on the values?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ingot.capture.op_semantics.effect import Kind
from ingot.capture.op_semantics.harness import TensorArgument, Trial
from ingot.capture.op_semantics.tagged_values import encode, shift_of

MOST_CONSTANTS = 16  # at fixed places
MOST_BOUNDS = 4  # at places that depend on the values: more would be a staircase, not a clamp


@dataclass(frozen=True)
class Finding:
    """What was seen on one setup; slots, not yet operands."""

    kind: Kind
    slots: tuple[int, ...] = ()
    constants: tuple[float, ...] = ()
    identity: bool = False
    output: torch.Tensor | None = None  # of CREATES: what is made
    note: str = ""


class Watch:
    """Collects what all runs have in common."""

    def __init__(self, active: Sequence[TensorArgument]):
        self.active = active
        self.first: tuple[torch.Tensor, torch.Tensor] | None = None
        self.same_output = self.same_places = self.identity = True
        self.found: set[int] = set()
        self.seen: dict[float, list[int]] = {}  # constant -> runs

    def see(self, run: int, out: torch.Tensor, places: torch.Tensor) -> bool:
        """False once it is clear that elements are computed."""
        if self.first is None:
            self.first = (out, places)
        self.same_output &= torch.equal(out, self.first[0])
        self.same_places &= torch.equal(places, self.first[1])
        self.identity = self.identity and self._is_identity(places)
        self._note_owners(places)
        return self.same_output if (strange := distinct(out[places < 0])) is None else self._note(run, strange)

    def _note(self, run: int, strange: Iterable[float]) -> bool:
        for value in strange:
            self.seen.setdefault(value, []).append(run)
        return self.same_output or len(self.seen) <= MOST_CONSTANTS

    def _note_owners(self, places: torch.Tensor) -> None:
        start = 0
        for slot in self.active:
            end = start + slot.numel
            if slot.index not in self.found and bool(((places >= start) & (places < end)).any()):
                self.found.add(slot.index)
            start = end

    def _is_identity(self, places: torch.Tensor) -> bool:
        """The output is one slot, in order; which one is known from where its first element came from."""
        if not places.numel() or int(places[0]) < 0:
            return False
        start = int(places[0])
        return torch.equal(places, torch.arange(start, start + places.numel()))


def distinct(values: torch.Tensor) -> list[float] | None:
    """The few distinct numbers among these, or None if they are many (or not numbers)."""
    found: list[float] = []
    while values.numel():
        if len(found) == MOST_CONSTANTS or bool(values[0].isnan()):
            return None
        found.append(values[0].item())
        values = values[values != values[0]]
    return found


def look(trial: Trial, active: Sequence[TensorArgument], held: Sequence[torch.Tensor]) -> Finding | None:
    """MOVES, SELECTS or CREATES; None if elements are computed."""
    watch = Watch(active)
    scales = scales_of(trial)
    for run in range(_runs(sum(s.numel for s in active), len(scales))):
        if not watch.see(run, *_one(trial, active, held, run, scales, 0.0)):
            return None
    if watch.same_output and not watch.found:
        return Finding(Kind.CREATES, output=watch.first[0] if watch.first else None)
    if not watch.found or not _constants_hold(trial, active, held, watch, scales):
        return None
    return _finding(watch)


def _finding(watch: Watch) -> Finding | None:
    if not watch.same_places and len(watch.seen) > MOST_BOUNDS:
        return None
    kind = Kind.MOVES if watch.same_places else Kind.SELECTS
    constants = tuple(sorted(value + 0.0 for value in watch.seen))
    return Finding(kind, tuple(sorted(watch.found)), constants, watch.identity and watch.same_places)


def _one(
    trial: Trial,
    active: Sequence[TensorArgument],
    held: Sequence[torch.Tensor],
    run: int,
    scales: Sequence[float],
    nudge: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One run: the output, and where each of its elements was found."""
    generator = torch.Generator().manual_seed(1000 + run)
    n, scale = sum(s.numel for s in active), scales[run % len(scales)]
    code = encode(n, trial.dtype, scale, shift_of(run // len(scales)) + nudge, generator)
    out = trial.run(placed(code.values, active, held))
    return out, code.find(out)


def placed(flat: torch.Tensor, active: Sequence[TensorArgument], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The held tensors, with the active slots filled from one row of numbers."""
    tensors, parts = list(held), flat.split([s.numel for s in active])
    for slot, part in zip(active, parts, strict=True):
        tensors[slot.index] = part.reshape(slot.shape)
    return tensors


def _constants_hold(
    trial: Trial, active: Sequence[TensorArgument], held: Sequence[torch.Tensor], watch: Watch, scales: Sequence[float]
) -> bool:
    """A number met in one run only may be computed: then it changes when the inputs change a little."""
    for run in {runs[0] for runs in watch.seen.values() if len(runs) == 1}:
        out, places = _one(trial, active, held, run, scales, 0.003)
        again = distinct(out[places < 0]) or []
        if any(runs == [run] and value not in again for value, runs in watch.seen.items()):
            return False
    return True


def scales_of(trial: Trial) -> list[float]:
    """How far the inputs reach: around 1, across 6, and across the node's own numbers (the bounds of a clamp)."""
    args, kwargs = trial.template  # only what stands alone: numbers in lists are sizes
    numbers = [abs(x) for x in (*args, *kwargs.values()) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    usual = [x for x in numbers if 1e-30 < x < 1e15]
    extra = {1.6 * x for x in (min(usual), max(usual))} if usual else set()
    return [1.6, 9.6, *sorted(extra - {1.6, 9.6})]


def _runs(n: int, scales: int) -> int:
    """Few elements see little in one run, so they get more of them."""
    return scales * (1 if n >= 4096 else 2 if n >= 64 else 4 if n >= 8 else 10)
