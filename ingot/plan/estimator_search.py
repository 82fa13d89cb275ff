"""The search over range estimators: one plan for each runs in simulated quantization, and the best is taken.

No histogram tells how far a range may be clipped: that depends on what later layers make of clipped values. The best
estimator differs from net to net by decibels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import GraphModule

from ingot.plan.compared_parts import noise_by_batch, worst_noise
from ingot.plan.noise_model import elements
from ingot.plan.plan_data import Plan
from ingot.plan.precision import NOISE_EPSILON
from ingot.plan.simulated_quantization import SampleBatch, Simulation

CANDIDATE_ESTIMATORS = ("auto", "mse:4", "minmax", "entropy")
MAX_BATCHES, MIN_BATCHES = 32, 4
ELEMENT_BUDGET = 40_000_000  # of all activations of all batches that are run
MAX_NOISE_RATIO = 0.95  # a quarter of a decibel: a smaller advantage may be chance


@dataclass(frozen=True)
class PlanTrial:
    """A plan with its bias corrections, as it did in simulated quantization."""

    name: str
    plan: Plan
    by_batch: tuple[float, ...]  # noise-to-signal ratio
    worst_noise: float  # of all batches together, of the worst output or group, as the check measures it

    @property
    def noise(self) -> float:
        """By which plans are compared. One or two batches with exceptional errors would decide an arithmetic mean."""
        return math.exp(sum(map(math.log, self.by_batch)) / max(len(self.by_batch), 1))


def best_plan(
    plans: Mapping[str, Plan], module: GraphModule, batches: Sequence[SampleBatch], *, correct_biases: bool
) -> Plan:
    """The plan with the least noise in simulated quantization; the first where no other is clearly better."""
    return with_prediction(best_trial(plans, simulation_of(module, batches), correct_biases=correct_biases))


def simulation_of(module: GraphModule, batches: Sequence[SampleBatch]) -> Simulation:
    """On as many batches as the size of the program allows."""
    return Simulation.of(module, batches[: _affordable_batches(module)])


def best_trial(plans: Mapping[str, Plan], simulation: Simulation, *, correct_biases: bool) -> PlanTrial:
    candidates = [try_plan(name, plan, simulation, correct_biases) for name, plan in plans.items()]
    best, first = min(candidates, key=lambda c: c.noise), candidates[0]
    chosen = best if best.noise < MAX_NOISE_RATIO * first.noise else first
    notes = (*chosen.plan.notes, _note(candidates, chosen, len(simulation.batches)))
    return replace(chosen, plan=replace(chosen.plan, notes=notes))


def with_prediction(trial: PlanTrial) -> Plan:
    """The simulation corrects the noise model, which adds up errors as if they were small and independent."""
    plan = trial.plan
    if plan.predicted.modelled_sqnr_db is None:
        return plan
    sqnr_db = -10 * math.log10(max(trial.worst_noise, NOISE_EPSILON))
    note = f"predicted SQNR of the outputs: {sqnr_db:.1f} dB"
    return replace(plan, predicted=replace(plan.predicted, sqnr_db=sqnr_db), notes=(note, *plan.notes))


def _affordable_batches(module: GraphModule) -> int:
    computed = sum(elements(n) for n in module.graph.nodes if n.op == "call_function")
    return min(max(ELEMENT_BUDGET // max(computed, 1), MIN_BATCHES), MAX_BATCHES)


def try_plan(name: str, plan: Plan, simulation: Simulation, correct_biases: bool) -> PlanTrial:
    correct = correct_biases and len(simulation.batches) >= MIN_BATCHES
    results, found = simulation.run(plan, correct)
    corrections = {node: tuple(c.tolist()) for node, c in found.items() if bool(c.any())}
    by_batch = noise_by_batch(simulation.float_results, results)
    worst = worst_noise(simulation.float_results, results)
    return PlanTrial(name, replace(plan, bias_corrections=corrections), by_batch, worst)


def _note(candidates: list[PlanTrial], chosen: PlanTrial, batches: int) -> str:
    each = ", ".join(f"{c.name} {-10 * math.log10(c.noise):.1f} dB" for c in candidates)
    corrected = len(chosen.plan.bias_corrections)
    return (
        f"range estimator: {chosen.name}; bias correction: {corrected} ops; "
        f"SQNR in simulated quantization on {batches} batches: {each}"
    )
