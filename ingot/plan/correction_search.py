"""Corrections: changes of the float program, or of a plan, that lower the noise of quantization. Each is judged.

A correction is derived from every other batch and simulated on all of them. It is taken if the noise of the rest, which
it has not seen, falls by more than chance explains, and if what it costs in time is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import GraphModule, Node

from ingot.calibrate.channel_statistics import ChannelStatistics, record_channels
from ingot.calibrate.second_moments import record_second_moments
from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics import operands
from ingot.config.recipe import Recipe
from ingot.core.channel_factors import ChannelFactors
from ingot.errors import first_sentence
from ingot.plan.channel_factor_choice import (
    choose_factors,
    choose_input_products,
    choose_result_products,
    clamped_axes,
)
from ingot.plan.estimator_search import PlanTrial, try_plan
from ingot.plan.plan_data import Plan
from ingot.plan.scaled_noise import (
    Noisy,
    input_axes,
    measured_values,
    measured_weights,
    product_axes,
    reading_weights,
    stored_axes,
    with_importance,
    written_channels,
)
from ingot.plan.simulated_quantization import SampleBatch, Simulation
from ingot.plan.solver_state import DEFAULT_NOISE_VS_LATENCY
from ingot.plan.weight_correction import roundable, with_rounded_weights
from ingot.rewrite.channel_factors import scaled_module
from ingot.rewrite.scalable_channels import scalable_channels

LEAST_BATCHES = 6  # half of them judge
PROMISING = 1 / 3  # of the plan's noise: what a correction is expected to save before it is tried
MAX_CORRECTED_NOISE = 0.9  # of the noise before, half a decibel
# Student's t for 95 %, one-sided, is 1.645 plus about this over the degrees of freedom.
FEW_BATCHES = 3.0
ON_OTHERS = "on batches that they were not derived from"
MAX_ROUNDS = 3  # of products: where the noise of the largest is gone, others are worth one


@dataclass(frozen=True, eq=False)
class Corrected:
    """A program, its statistics, and the best plan for it so far."""

    base: GraphModule  # without factors
    module: GraphModule
    ranges: Ranges
    trial: PlanTrial
    simulation: Simulation
    statistics: dict[Node, ChannelStatistics] = field(default_factory=dict)

    def statistics_of(self, axes: Mapping[Node, int]) -> Mapping[Node, ChannelStatistics]:
        """Of channels along these axes, on the batches that corrections are derived from; recorded once."""
        missing = {value: axis for value, axis in axes.items() if value not in self.statistics}
        if missing:
            self.statistics.update(record_channels(self.module, self.deriving, missing))
        return self.statistics

    @property
    def deriving(self) -> Sequence[SampleBatch]:
        """The batches that corrections are derived from; the others judge them."""
        return self.simulation.batches[::2]


Replan = Callable[[GraphModule, Ranges, str], tuple[Ranges, Plan]]  # for a changed program and a range estimator
Correction = Callable[[Corrected, Recipe, Replan], Corrected]


def corrected(start: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """With every correction that the recipe allows and that helps."""
    if len(start.simulation.batches) < LEAST_BATCHES:
        return start
    found = _attempt("equalization", _scaled, start, recipe, replan) if recipe.equalize_channels else start
    for _ in range(MAX_ROUNDS if recipe.smooth_inputs else 0):
        before, found = found, _attempt("smoothing", _smoothed, found, recipe, replan)
        if found is before or found.module is before.module:
            break
    return _attempt("GPTQ", _rounded, found, recipe, replan)


def _attempt(name: str, correct: Correction, before: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """The plan is right without the correction, so one that fails costs a note."""
    try:
        return correct(before, recipe, replan)
    except Exception as e:
        plan = before.trial.plan
        notes = (*plan.notes, f"{name}: not tried, it fails: {type(e).__name__}: {first_sentence(e)}")
        return replace(before, trial=replace(before.trial, plan=replace(plan, notes=notes)))


def _rounded(before: Corrected, recipe: Recipe, _: Replan) -> Corrected:
    """GPTQ, and clipping of each row of a weight."""
    plan = before.trial.plan
    nodes = roundable(before.module, plan, recipe.round_weights)
    if not nodes:
        return before
    moments = record_second_moments(before.module, before.deriving, nodes)
    rounded = with_rounded_weights(plan, before.module, moments)
    after = try_plan(before.trial.name, rounded, before.simulation, recipe.correct_biases)
    if (gain := gain_on_judging_batches(before.trial, after, recipe)) is None:
        return before
    notes = (*plan.notes, f"weights of {len(nodes)} ops rounded by GPTQ: {gain:+.1f} dB {ON_OTHERS}")
    return replace(before, trial=replace(after, plan=replace(after.plan, notes=notes)))


def _scaled(before: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """Cross-layer equalization, and smoothing of norm -> linear and linear -> linear."""
    plan, sensitivity, channels = before.trial.plan, before.ranges.sensitivity, scalable_channels(before.module)
    roots, free = channels.roots()
    read = {n: roots[c] for n, c in channels.readers.items() if bool(free[c].any())}
    stored = {v: roots[c] for v, c in channels.values.items() if bool(free[c].any())}
    nodes = [n for n in reading_weights(before.module) if n in read]
    products = product_axes(before.module, plan) if recipe.smooth_inputs else {}  # in one run
    wanted = {**stored_axes(stored, plan), **clamped_axes(channels), **input_axes(nodes), **products}
    statistics = before.statistics_of(wanted)
    weights = measured_weights(nodes, read, statistics, plan, sensitivity)
    values = with_importance(measured_values(stored, statistics, plan, sensitivity), weights, len(roots))
    noisy: list[Noisy] = [*weights, *values]
    factors, saved = choose_factors(channels, noisy, statistics)
    expected = sum(m.noise(torch.ones(len(roots))) for m in noisy)
    return _tried(before, ChannelFactors(constants=factors), saved, expected, recipe, replan)


def _smoothed(before: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """Smoothing by products, where no constant can take up the factors."""
    plan, sensitivity, noise = before.trial.plan, before.ranges.sensitivity, before.trial.noise
    nodes = reading_weights(before.module)
    statistics = before.statistics_of(product_axes(before.module, plan))
    written = stored_axes(written_channels(before.module), plan)
    weights = measured_weights(nodes, {n: torch.zeros(0) for n in nodes}, statistics, plan, sensitivity)
    values = measured_values({v: torch.zeros(0) for v in written}, statistics, plan, sensitivity)
    # Products of products are not replayed, and none has two sets of factors.
    names = {n.name for n in before.base.graph.nodes} - {*plan.channel_factors.inputs, *plan.channel_factors.results}
    read = [w for w in weights if operands(w.node)[0].name in names]
    inputs, less = choose_input_products(read, plan.dynamic, noise)
    results, less_stored = choose_result_products([v for v in values if v.node.name in names], noise)
    return _tried(before, ChannelFactors(inputs=inputs, results=results), less + less_stored, noise, recipe, replan)


def _tried(
    before: Corrected, factors: ChannelFactors, saved: float, expected: float, recipe: Recipe, replan: Replan
) -> Corrected:
    """With the factors, if they promise to save much of the noise, and keep the promise."""
    known = before.trial.plan
    if saved < PROMISING * max(before.trial.noise, expected):
        return before
    module = scaled_module(before.base, known.channel_factors | factors)
    ranges, plan = replan(module, before.ranges, before.trial.name)
    plan = replace(plan, channel_factors=known.channel_factors | factors)
    simulation = Simulation.of(module, before.simulation.batches)
    after = try_plan(before.trial.name, plan, simulation, recipe.correct_biases)
    if (gain := gain_on_judging_batches(before.trial, after, recipe)) is None:
        return before
    notes = (*known.notes, f"{_described(factors)}: {gain:+.1f} dB {ON_OTHERS}")
    return Corrected(before.base, module, ranges, replace(after, plan=replace(after.plan, notes=notes)), simulation)


def _described(factors: ChannelFactors) -> str:
    if factors.constants:
        return f"channel factors in the constants of {len(factors.constants)} ops"
    return f"channel factors in {len(factors.inputs) + len(factors.results)} products"


def gain_on_judging_batches(before: PlanTrial, after: PlanTrial, recipe: Recipe) -> float | None:
    """In dB on the batches that were kept to judge; None where it may be chance, or is not worth its time."""
    pairs = list(zip(before.by_batch, after.by_batch, strict=True))[1::2]
    falls = [math.log(b / a) for b, a in pairs]
    mean, count = sum(falls) / len(falls), len(falls)
    error = math.sqrt(sum((f - mean) ** 2 for f in falls) / (count - 1) / count) if count > 1 else math.inf
    sure = mean - (1.645 + FEW_BATCHES / max(count - 1, 1)) * error > 0
    price = DEFAULT_NOISE_VS_LATENCY if recipe.noise_vs_latency is None else recipe.noise_vs_latency
    slower = after.plan.predicted.time / max(before.plan.predicted.time, 1e-12) - 1
    if not sure or mean < -math.log(MAX_CORRECTED_NOISE) or slower > price * mean / math.log(2) + 1e-6:
        return None
    return 10 * mean / math.log(10)
