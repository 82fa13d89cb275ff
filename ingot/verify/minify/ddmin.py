"""Delta debugging: the smallest part of a list that still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """The budget is spent; what was found before holds."""


class Budget:
    """Seconds to spend on trials."""

    def __init__(self, seconds: float):
        self.end, self.trials = time.monotonic() + seconds, 0

    def spend(self) -> None:
        """Before each trial."""
        if time.monotonic() > self.end:
            raise OutOfTime
        self.trials += 1


def smallest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A part that fails and from which nothing can be left out alone. The whole is known to fail."""
    pieces = 2
    while len(items) > 1:
        chunks = _split(items, pieces)
        rests = [[i for other in chunks if other is not c for i in other] for c in chunks] if pieces > 2 else []
        found = next((part for part in (*chunks, *rests) if fails(part)), None)
        if found is None and pieces >= len(items):
            break
        pieces = min(len(items), pieces * 2) if found is None else 2 if found in chunks else max(pieces - 1, 2)
        items = items if found is None else found
    return items


def _split(items: Sequence[T], pieces: int) -> list[Sequence[T]]:
    ends = [round(i * len(items) / pieces) for i in range(pieces + 1)]
    return [items[a:b] for a, b in pairwise(ends) if b > a]
