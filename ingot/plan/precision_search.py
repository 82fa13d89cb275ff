"""More precision where a plan misses the threshold of the check in simulated quantization.

The noise model adds up small errors, and the default price of noise is that of a net on which int8 works. Where the
simulation shows that the check would refuse the plan, the price is raised until it would not: the quickest plan with
enough precision, not a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ingot.config.recipe import Recipe
from ingot.errors import PlanError
from ingot.plan.correction_search import Corrected
from ingot.plan.estimator_search import PlanTrial, try_plan
from ingot.plan.plan_data import Plan
from ingot.plan.precision import NOISE_EPSILON
from ingot.plan.solver_state import DEFAULT_NOISE_VS_LATENCY

MARGIN_DB = 3.0  # over the threshold: unseen batches have more noise than those of the calibration
FACTOR = 4.0  # between prices on the way up
HIGHEST_PRICE = 2.0**6
HALVINGS = 2  # of the last interval, in octaves

PlanAt = Callable[[float, bool], Plan]  # for a price of noise; with float on the host, where the target has none


@dataclass(frozen=True)
class _Priced:
    price: float
    trial: PlanTrial


def with_enough_precision(
    found: Corrected, recipe: Recipe, plan_at: PlanAt, runs_float: bool, solved: Plan
) -> Corrected:
    """The plan that was found where it passes, or where the recipe gives the price; else the quickest that passes.

    On a target without float kernels inside the delegate; with ops in float on the host where the check would refuse
    the plan even without a reserve. `solved` is the plan before corrections: its notes do not hold for another one.
    """
    if recipe.noise_vs_latency is not None or _passes(found.trial, recipe):
        return found
    start = _Priced(DEFAULT_NOISE_VS_LATENCY, found.trial)
    tried = list[PlanTrial]()  # many prices give one plan

    def at(on_host: bool, price: float) -> _Priced | None:
        try:
            plan = plan_at(price, on_host)
        except PlanError:  # the recipe asks for int4 weights of an op, say, that runs in int16 at this price
            return None
        same = next((t for t in tried if t.plan.predicted == plan.predicted), None)
        if same is None:
            tried.append(try_plan(found.trial.name, plan, found.simulation, recipe.correct_biases))
        return _Priced(price, same or tried[-1])

    to_host = not (runs_float or recipe.float_on_host) and _sqnr_db(found.trial) < recipe.min_sqnr_db
    for on_host in (False, True)[: 1 + to_host]:
        chosen = _quickest_that_passes(start, recipe, partial(at, on_host))
        if chosen is not None:
            searched = found.trial.plan.notes[len(solved.notes) :]
            notes = (*chosen.trial.plan.notes, *searched, _note(start, chosen, recipe, on_host))
            return replace(found, trial=replace(chosen.trial, plan=replace(chosen.trial.plan, notes=notes)))
    return found


def _quickest_that_passes(start: _Priced, recipe: Recipe, at: Callable[[float], _Priced | None]) -> _Priced | None:
    """Prices rise until a plan passes; then the interval below it is halved. None where no quantized plan passes."""
    misses, passes = start, None
    for price in _prices(start.price):
        tried = at(price)
        if tried is None:
            continue
        if not _is_quantized(tried.trial.plan):
            return None  # what a float program would give, the recipe asks for by `quantize = false`
        if _passes(tried.trial, recipe):
            passes = tried
            break
        misses = tried
    for _ in range(HALVINGS if passes else 0):
        assert passes is not None
        tried = at(math.sqrt(misses.price * passes.price))
        if tried is None:
            break
        misses, passes = (misses, tried) if _passes(tried.trial, recipe) else (tried, passes)
    return passes


def _prices(start: float) -> Iterator[float]:
    price = start * FACTOR
    while price <= HIGHEST_PRICE:
        yield price
        price *= FACTOR


def _is_quantized(plan: Plan) -> bool:
    return any(precision != "float" and count for precision, count in plan.predicted.precisions.items())


def _passes(trial: PlanTrial, recipe: Recipe) -> bool:
    return _sqnr_db(trial) >= recipe.min_sqnr_db + MARGIN_DB


def _sqnr_db(trial: PlanTrial) -> float:
    return -10 * math.log10(max(trial.worst_noise, NOISE_EPSILON))


def _note(start: _Priced, chosen: _Priced, recipe: Recipe, on_host: bool) -> str:
    before, after = start.trial.plan.predicted, chosen.trial.plan.predicted
    slower = after.time / max(before.time, NOISE_EPSILON) - 1
    used = ", ".join(f"{count} ops in {name}" for name, count in sorted(after.precisions.items()))
    price = f"noise_vs_latency = {chosen.price:.2g}" + " with float_on_host" * on_host
    return (
        f"more precision: {_sqnr_db(start.trial):.1f} dB in simulated quantization is less than the check asks for "
        f"({recipe.min_sqnr_db:g} dB and {MARGIN_DB:g} in reserve); {price} gives "
        f"{_sqnr_db(chosen.trial):.1f} dB for {slower:+.0%} of the estimated time: {used}"
    )
