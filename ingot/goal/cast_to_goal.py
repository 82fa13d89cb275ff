"""A cast with goals: search the plan, lower it, measure the artefact; go on to the next plan where that falls short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ingot.core.goal_records import GoalResult, GoalValue
from ingot.errors import GoalError
from ingot.goal.measure import GoalMeasure, SimulatedRun, artefact_run
from ingot.goal.search import GoalSearch, PlanCandidate
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting
from ingot.result.lower_and_verify import mismatch_error
from ingot.result.plan_for_target import planned_form
from ingot.result.target_cast import TargetCast
from ingot.targets.base import Target
from ingot.targets.registry import find_target

MOST_ARTEFACTS = 3  # plans that met the goal in simulated quantization and are lowered in turn


def cast_to_goal(work: TargetCast, measure: GoalMeasure) -> Casting:
    """The quickest casting that meets the goals; a GoalError with the nearest one where none does."""
    casting = _GoalCast(work, measure).run()
    if work.on_mismatch == "raise" and casting.goal is not None and not casting.goal.met:
        raise _not_met(casting)
    if work.on_mismatch == "raise" and casting.check is not None and not casting.check.passed:
        raise mismatch_error(casting)
    return casting


@dataclass
class _GoalCast:
    work: TargetCast
    measure: GoalMeasure
    estimator: str | None = None  # the range estimator, chosen with the first plan
    constants: dict[str, dict[Any, Any]] = field(default_factory=dict)  # quantized weights, by the factors on them

    def run(self) -> Casting:
        recipe = self.work.recipe
        target = find_target(self.work.target, recipe.options, recipe.extra_backends)
        with self.work.steps("search") as tick:
            search = GoalSearch(self._plan_at, lambda p: self.measure.values(self._simulated(p, target)), tick)
            candidates = search.run()
        meeting = [c for c in candidates if c.step.met]
        return self._lowered(meeting or [_nearest(candidates)], candidates, search.ended)

    def _simulated(self, plan: Plan, target: Target) -> SimulatedRun:
        form = planned_form(self.work.program, plan, target, self.work.recipe)
        return SimulatedRun(form, plan, self.constants.setdefault(repr(plan.channel_factors), {}))

    def _plan_at(self, price: float) -> Plan:
        recipe = replace(self.work.recipe, noise_vs_latency=price)
        made = self.work.plan(recipe if self.estimator is None else replace(recipe, range=self.estimator))
        self.estimator = self.estimator or made.range_estimator
        return made

    def _lowered(self, chosen: Sequence[PlanCandidate], candidates: Sequence[PlanCandidate], ended: str) -> Casting:
        """In turn, until an artefact meets the goals; else the last."""
        steps = tuple(c.step for c in candidates)
        for candidate in chosen[:MOST_ARTEFACTS]:
            recipe = replace(self.work.recipe, noise_vs_latency=candidate.step.noise_vs_latency)
            casting = replace(self.work, recipe=recipe, on_mismatch="keep").casting(candidate.plan)
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
    if not candidate.step.met:
        return candidate.plan.predicted.noisiest
    return tuple(f"the artefact has {v}; its quantized graph met the goal" for v in values if not v.met)


def _not_met(casting: Casting) -> GoalError:
    goal = casting.goal
    assert goal is not None
    missed = "; ".join(str(v) for v in goal.values if not v.met)
    why = "; ".join([goal.ended, *goal.limits[:3]])
    hint = "lower the bar, calibrate on more data, train with ingot.train, or keep the nearest: on_mismatch='keep'"
    return GoalError(f"the goal is not met: {missed}", casting=casting, why=why, hint=hint)
