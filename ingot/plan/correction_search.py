"""Corrections: changes of the float program, or of a plan, that lower the noise of quantization. Each is judged.

A correction is derived from every other batch and simulated on all of them. It is taken if the noise of the rest, which
it has not seen, falls by more than chance explains, and if what it costs in time is worth it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch.fx import GraphModule

from ingot.calibrate.channel_statistics import record_channels
from ingot.calibrate.statistics import Ranges
from ingot.config.recipe import Recipe
from ingot.plan.channel_factor_choice import (
    Factors,
    choose_factors,
    choose_products,
    measured_weights,
    reading_weights,
    wanted_statistics,
)
from ingot.plan.estimator_search import MIN_BATCHES, PlanTrial, try_plan
from ingot.plan.plan_data import Plan
from ingot.plan.simulated_quantization import SampleBatch, Simulation
from ingot.plan.solver_state import DEFAULT_NOISE_VS_LATENCY
from ingot.rewrite.channel_factors import scaled_module
from ingot.rewrite.scalable_channels import ScalableChannels, scalable_channels

PROMISING = 0.1  # of the plan's noise: what a correction is expected to save before it is tried
MAX_CORRECTED_NOISE = 0.9  # of the noise before, half a decibel
# Student's t for 95 %, one-sided, is 1.645 plus about this over the degrees of freedom.
FEW_BATCHES = 3.0


@dataclass(frozen=True, eq=False)
class Corrected:
    """A program, its statistics, and the best plan for it so far."""

    module: GraphModule
    ranges: Ranges
    trial: PlanTrial
    simulation: Simulation


Replan = Callable[[GraphModule, Ranges, str], tuple[Ranges, Plan]]  # for a changed program and a range estimator


def corrected(start: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """With every correction that the recipe allows and that helps."""
    if len(start.simulation.batches) < MIN_BATCHES:
        return start
    found = _scaled(start, recipe, replan) if recipe.equalize_channels else start
    return _smoothed(found, recipe, replan) if recipe.smooth_inputs else found


def _scaled(before: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """Cross-layer equalization, and smoothing of norm -> linear and linear -> linear."""
    channels = scalable_channels(before.module)
    roots, _ = channels.roots()
    read = {n: roots[c] for n, c in channels.readers.items()}
    factors, saved = choose_factors(channels, *_measured(before, channels, read))
    if saved < PROMISING * before.trial.noise:
        return before
    return _tried(before, factors, {}, recipe, replan)


def _smoothed(before: Corrected, recipe: Recipe, replan: Replan) -> Corrected:
    """Smoothing by products, where no constant can take up the factors."""
    nothing = ScalableChannels()
    read = {n: nothing.new_channels(0) for n in reading_weights(before.module)}
    weights, _ = _measured(before, nothing, read)
    products, saved = choose_products(weights, before.trial.noise)
    if saved < PROMISING * before.trial.noise:
        return before
    return _tried(before, {}, products, recipe, replan)


def _measured(before: Corrected, channels: ScalableChannels, read):  # type: ignore[no-untyped-def]
    nodes = [n for n in reading_weights(before.module) if n in read]
    wanted = wanted_statistics(nodes, channels)
    statistics = record_channels(before.module, deriving(before.simulation.batches), wanted)
    return measured_weights(nodes, read, statistics, before.trial.plan, before.ranges.sensitivity), statistics


def deriving(batches: list[SampleBatch]) -> list[SampleBatch]:
    return batches[::2]


def _tried(before: Corrected, factors: Factors, products: Factors, recipe: Recipe, replan: Replan) -> Corrected:
    module = scaled_module(before.module, factors, products)
    ranges, plan = replan(module, before.ranges, before.trial.name)
    known = before.trial.plan
    plan = replace(plan, channel_factors={**known.channel_factors, **factors}, channel_products={**known.channel_products, **products})
    simulation = Simulation.of(module, before.simulation.batches)
    after = try_plan(before.trial.name, plan, simulation, recipe.correct_biases)
    what = f"{len(factors)} ops" if factors else f"{len(products)} products"
    name = "channel factors in constants" if factors else "channel factors in products"
    if (gain := _gain(before.trial, after, recipe)) is None:
        return before
    notes = (*known.notes, f"{name}: {what}, {gain:+.1f} dB on batches that they were not derived from")
    return Corrected(module, ranges, replace(after, plan=replace(after.plan, notes=notes)), simulation)


def _gain(before: PlanTrial, after: PlanTrial, recipe: Recipe) -> float | None:
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
