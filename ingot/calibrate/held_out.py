"""Which batches verify the artefact: validation data, batches held out of the recording, or calibration batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import length_hint

import torch
from torch.utils import _pytree as pytree

from ingot.capture.inputs import Batch, Inputs, call_of, copy_of
from ingot.errors import InputError

LEAST_BATCHES = 16  # with fewer, calibration needs all of them
EVERY = 4  # this batch of each group is held out
MOST_BATCHES = 64  # more verify no better, and an emulator takes seconds for each
MOST_BYTES = 1 << 28  # of copies; a batch beyond is recorded
CALIBRATION_BATCHES = 8  # run again to verify, where none are held out


@dataclass(frozen=True)
class CheckData:
    """The batches that an artefact is verified on, and where they come from."""

    batches: list[Batch]
    source: str  # "validation", "held-out", "calibration" or "example"


def validation_data(batches: Iterable[Batch]) -> CheckData:
    """All of the user's validation data, copied: a loader may reuse its memory."""
    found = [copy_of(b) for b in batches]
    if not found:
        raise InputError("the validation data is empty", why="it has 0 batches", hint="leave it out, or give batches")
    return CheckData(list(found), "validation")


@dataclass
class Split:
    """Calibration batches on their way to the recording: every fourth of 16 or more is held out to verify on.

    A stream does not say how long it is: batches are held back until the 16th arrives, and recorded if it ends before.
    """

    most: int | None = None  # batches to verify on; None: a quarter, or the first few where none are held out
    hold: bool = True
    held: list[Inputs] = field(default_factory=list)
    first: list[Inputs] = field(default_factory=list)  # copies of recorded batches
    count: int = 0

    def recorded(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches to record; copies of those to verify on are kept."""
        hold = self.hold and not 0 < length_hint(batches) < LEAST_BATCHES  # the order of a short list stays
        for batch in batches:
            self.count += 1
            if hold and self.count % EVERY == 0 and self._takes(self.held, batch, self.most or MOST_BATCHES):
                self.held.append(copy_of(batch))
            else:
                yield from self._record(batch)
        if self.count < LEAST_BATCHES:
            waiting, self.held = self.held, []
            for batch in waiting:
                yield from self._record(batch)

    def _record(self, batch: Batch) -> Iterator[Batch]:
        if not self.first or self._takes(self.first, batch, self.most or CALIBRATION_BATCHES):
            self.first.append(copy_of(batch))
        yield batch

    @staticmethod
    def _takes(kept: list[Inputs], batch: Batch, most: int) -> bool:
        return len(kept) < most and _bytes(batch) + sum(map(_bytes, kept)) <= MOST_BYTES

    @property
    def data(self) -> CheckData:
        return CheckData(list(self.held), "held-out") if self.held else CheckData(list(self.first), "calibration")


def _bytes(batch: Batch) -> int:
    leaves = pytree.tree_leaves(call_of(batch))
    return sum(x.numel() * x.element_size() for x in leaves if isinstance(x, torch.Tensor))
