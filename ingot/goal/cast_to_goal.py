"""A cast with goals: search the plan, lower it, measure the artefact; go on to the next plan where that falls short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ingot.capture.export import Program
from ingot.core.goal_records import GoalResult, GoalValue
from ingot.core.progress import Steps
from ingot.errors import GoalError
from ingot.goal.measure import GoalMeasure, SimulatedRun, artefact_run
from ingot.goal.search import PlanCandidate, GoalSearch
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting

MOST_ARTEFACTS = 3  # plans that met the goal in simulated quantization and are lowered in turn


@dataclass(frozen=True)
class GoalCast:
    """What a cast for one target needs to search: a plan and a casting for each price of noise."""

    measure: GoalMeasure
    form: Program  # rewritten for the target
    plan_at: Callable[[float], Plan]
    cast_at: Callable[[float], Casting]
    steps: Steps
    on_mismatch: str

    def run(self) -> Casting:
        """The quickest casting that meets the goals; a GoalError with the nearest one where none does."""
        with self.steps("search") as tick:
            constants: dict[object, object] = {}
            search = GoalSearch(self.plan_at, lambda p: self._simulated(p, constants), tick)
            candidates = search.run()
        meeting = [c for c in candidates if c.step.met]
        casting = self._lowered(meeting or [_nearest(candidates)], candidates, search.ended)
        assert casting.goal is not None
        if not casting.goal.met and self.on_mismatch == "raise":
            raise _not_met(casting)
        return casting

    def _simulated(self, plan: Plan, constants: dict) -> tuple[GoalValue, ...]:  # type: ignore[type-arg]
        return self.measure.values(SimulatedRun(self.form, plan, constants))

    def _lowered(self, chosen: Sequence[PlanCandidate], candidates: Sequence[PlanCandidate], ended: str) -> Casting:
        """In turn, until an artefact meets the goals; else the last."""
        steps = tuple(c.step for c in candidates)
        for candidate in chosen[:MOST_ARTEFACTS]:
            casting = self.cast_at(candidate.step.noise_vs_latency)
            values = self.measure.values(artefact_run(casting.pte, casting.needed_evidence))
            met = all(v.met for v in values)
            limits = () if met else _limits(candidate, values)
            casting = replace(casting, goal=GoalResult(values, steps, ended, limits))
            if met:
                break
        return casting


def _nearest(candidates: Sequence[PlanCandidate]) -> PlanCandidate:
    """By the goal that is missed most, in units of the distance from the float model to the bar."""
    return min(candidates, key=lambda c: max(map(_shortfall, c.step.values)))


def _shortfall(value: GoalValue) -> float:
    missing = (value.bar - value.value) if value.higher_is_better else (value.value - value.bar)
    return missing / max(abs(value.float_value - value.bar), 1e-12)


def _limits(candidate: PlanCandidate, values: Sequence[GoalValue]) -> tuple[str, ...]:
    graph = [v for v in candidate.step.values if not v.met]
    short = (
        [f"the artefact has {v}, its quantized graph met the goal" for v in values if not v.met] if not graph else []
    )
    return (*short, *candidate.plan.predicted.noisiest)


def _not_met(casting: Casting) -> GoalError:
    goal = casting.goal
    assert goal is not None
    missed = "; ".join(str(v) for v in goal.values if not v.met)
    why = "; ".join([goal.ended, *goal.limits[:3]])
    hint = "lower the bar, calibrate on more data, train with ingot.train, or keep the nearest: on_mismatch='keep'"
    return GoalError(f"the goal is not met: {missed}", casting=casting, why=why, hint=hint)
