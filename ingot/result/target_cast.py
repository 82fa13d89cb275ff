"""A recorded program on its way to one target: plan, quantize, lower, execute, judge."""

from __future__ import annotations

from dataclasses import dataclass

from ingot.calibrate.held_out import CheckData
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.config.recipe import Recipe
from ingot.core.progress import Steps
from ingot.plan.plan_data import Plan
from ingot.result.casting import Casting
from ingot.result.lower_and_verify import QuantizedProgram, judged
from ingot.result.plan_for_methods import plan_program
from ingot.result.plan_for_target import quantize_by_plan
from ingot.result.recovery.recover import lowered_and_checked
from ingot.targets.barred import Bar


@dataclass(frozen=True)
class TargetCast:
    target: str
    program: Program
    ranges: Ranges
    recipe: Recipe
    data: CheckData
    steps: Steps
    on_mismatch: str

    def casting(self, planned: Plan | None = None) -> Casting:
        """By the plan that is given, or by one of its own; where the backend fails on ops, it is planned again."""

        def make(settings: Recipe, bars: tuple[Bar, ...]) -> QuantizedProgram:
            made = planned
            if made is None or bars or settings != self.recipe:
                with self.steps("plan"):
                    made = self.plan(settings, bars)
            return quantize_by_plan(self.program, made, settings, self.steps)

        casting, check = lowered_and_checked(make, self.recipe, self.data.batches, self.steps, self.on_mismatch)
        return judged(casting, check, self.data, self.steps, self.on_mismatch, self.ranges)

    def plan(self, recipe: Recipe, bars: tuple[Bar, ...] = ()) -> Plan:
        return plan_program(self.program, self.ranges, self.target, recipe, bars)
