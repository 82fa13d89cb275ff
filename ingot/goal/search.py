"""The quickest plan that meets the goals: a bisection of the price of noise, `noise_vs_latency`.

Each price gives the plan that is optimal for it: the higher the price, the slower and the more exact. So plans lie on
the front of time against noise, and the first one on it that meets the goals is wanted. A plan that was seen before is
not measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ingot.core.goal_records import GoalValue, SearchStep
from ingot.plan.plan_data import Plan

CHEAPEST, LOWEST, HIGHEST = 0.0, 2.0**-10, 2.0**6  # prices: noise is free; the range of the bisection
FINEST_OCTAVES = 0.25  # between two prices
MOST_RUNS = 20

Values = tuple[GoalValue, ...]
Signature = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class PlanCandidate:
    """A plan and its step of the search."""

    plan: Plan
    step: SearchStep


@dataclass
class GoalSearch:
    """Bisects the price of noise. `plan_at` plans for a price, `measure` runs a plan over the data of the goals."""

    plan_at: Callable[[float], Plan]
    measure: Callable[[Plan], Values]
    on_run: Callable[[int, int | None], None] = lambda done, total: None
    found: dict[Signature, PlanCandidate] = field(default_factory=dict)
    ended: str = ""

    def run(self) -> list[PlanCandidate]:
        """All plans that were measured, the quickest first."""
        first = self._at(CHEAPEST)
        if first.step.met:
            self.ended = "the quickest plan meets the goal"
        elif not (best := self._at(HIGHEST)).step.met:
            self.ended = "the most exact plan does not meet the goal"
        else:
            self._bisect(first, best)
        base = min(c.plan.predicted.time for c in self.found.values()) or 1.0
        scaled = [replace(c, step=replace(c.step, estimated_time=c.plan.predicted.time / base)) for c in self._all]
        return sorted(scaled, key=lambda c: c.step.estimated_time)

    @property
    def _all(self) -> Sequence[PlanCandidate]:
        return list(self.found.values())

    def _bisect(self, fails: PlanCandidate, meets: PlanCandidate) -> None:
        low, high = math.log2(LOWEST), math.log2(HIGHEST)
        while high - low > FINEST_OCTAVES and len(self.found) < MOST_RUNS:
            middle = (low + high) / 2
            candidate = self._at(2.0**middle)
            low, high = (low, middle) if candidate.step.met else (middle, high)
            fails, meets = (fails, candidate) if candidate.step.met else (candidate, meets)
            if candidate.step.met and candidate.plan.predicted.time <= fails.plan.predicted.time:
                break
        between = "after the most runs" if len(self.found) >= MOST_RUNS else "between the last two prices of noise"
        self.ended = f"no quicker plan meets the goal {between}"

    def _at(self, price: float) -> PlanCandidate:
        plan = self.plan_at(price)
        key = _signature(plan)
        if key not in self.found:
            values = self.measure(plan)
            step = SearchStep(price, plan.predicted.time, dict(plan.predicted.precisions), values)
            self.found[key] = PlanCandidate(plan, step)
            self.on_run(len(self.found), None)
        return self.found[key]


def _signature(plan: Plan) -> Signature:
    """Which value has which type; scales follow from that."""
    return frozenset((str(d.point), d.qparams.dtype if d.qparams else "float") for d in plan.decisions)
