"""The outcome of each case, and of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["passed", "failed", "not applicable"]


@dataclass(frozen=True)
class CaseOutcome:
    """What one case showed; `said` is the error, or why it does not apply."""

    category: str
    name: str
    verdict: Verdict
    said: str = ""

    def __str__(self) -> str:
        return f"{self.verdict:14}  {self.category}: {self.name}{f': {self.said}' if self.said else ''}"


@dataclass(frozen=True)
class ConformanceReport:
    """All outcomes of a target."""

    target: str
    executed_on: str
    outcomes: tuple[CaseOutcome, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[CaseOutcome, ...]:
        return tuple(o for o in self.outcomes if o.verdict == "failed")

    @property
    def failed_categories(self) -> frozenset[str]:
        return frozenset(o.category for o in self.failures)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count = len(self.failures)
        verdict = "conforms" if not count else f"does not conform: {count} of {len(self.outcomes)} cases fail"
        yield f"{self.target} {verdict}; executed on {self.executed_on}"
        yield from map(str, self.outcomes)
