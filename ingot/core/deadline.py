"""A time limit that is passed down: long work stops between its steps."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The time is up; what was found so far remains valid."""


class Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float):
        self.seconds, self.end = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0

    def need(self, seconds: float = 0.0) -> None:
        """Call before a step that takes about `seconds`; OutOfTime where they are not left."""
        if self.left <= seconds:
            raise OutOfTime
