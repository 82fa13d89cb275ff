"""Delta debugging: the ddmin algorithm of Zeller & Hildebrandt, with a time budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from ingot.core.deadline import Deadline

T = TypeVar("T")


class Budget:
    """Seconds to spend on trials."""

    def __init__(self, seconds: float):
        self.deadline, self.trials = Deadline(seconds), 0

    def spend(self) -> None:
        """Call before each trial."""
        self.deadline.need()
        self.trials += 1


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A 1-minimal failing subset: no single item can be removed. `items` itself must fail."""
    pieces = 2
    while len(items) > 1:
        chunks = _split(items, pieces)
        complements = [[i for other in chunks if other is not c for i in other] for c in chunks] if pieces > 2 else []
        found = next((part for part in (*chunks, *complements) if fails(part)), None)
        if found is None and pieces >= len(items):
            break
        pieces = min(len(items), pieces * 2) if found is None else 2 if found in chunks else max(pieces - 1, 2)
        items = items if found is None else found
    return items


def _split(items: Sequence[T], pieces: int) -> list[Sequence[T]]:
    ends = [round(i * len(items) / pieces) for i in range(pieces + 1)]
    return [items[a:b] for a, b in pairwise(ends) if b > a]
