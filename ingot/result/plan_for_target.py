"""Plan a program for one target, and quantize it by its plan: rewritten for the target, without barred ops."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch.fx import GraphModule

from ingot.calibrate.branches import untaken_values
from ingot.calibrate.recorder import record_rewritten_values
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, restore_state
from ingot.capture.method_for import MAIN_METHOD
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe, RecipeLike, recipe_from
from ingot.core.fx import calls, value_name
from ingot.core.progress import Steps
from ingot.errors import PlanError
from ingot.lower.edge import MethodGraph
from ingot.plan.correction_search import Corrected, corrected
from ingot.plan.embedding_tables import with_embedding_tables
from ingot.plan.estimator_search import CANDIDATE_ESTIMATORS, best_trial, simulation_of, with_prediction
from ingot.plan.plan_data import Plan
from ingot.plan.precision_search import with_enough_precision
from ingot.plan.preferred_cost import preferred_cost
from ingot.plan.simulated_quantization import can_simulate
from ingot.plan.solve import solve, solve_each, unquantized
from ingot.plan.validate import validate, with_bias_qparams
from ingot.quantize.memory_format import channels_last_names, with_channels_last_inputs
from ingot.quantize.pt2e import quantize
from ingot.result.lower_and_verify import QuantizedProgram
from ingot.rewrite.apply import rewrite_for
from ingot.rewrite.channel_factors import with_channel_factors
from ingot.targets.barred import Bar, host_bars, with_bars
from ingot.targets.base import Target
from ingot.targets.registry import find_target

Facts = tuple[GraphModule, Ranges, Target, str, tuple[str, ...], Recipe]  # what `solve` takes


def plan_for_target(
    program: Program, ranges: Ranges, target: str, settings: Recipe, bars: tuple[Bar, ...] = ()
) -> Plan:
    """The plan of one size of a program."""
    backend = find_target(target, settings.options, settings.extra_backends)
    refuse_unplannable(program, backend, settings)
    form = rewrite_for(program, backend, settings)
    barred = with_bars(backend, (*bars, *host_bars(settings.host_ops, form.program.module)))
    barred = replace(barred, cost=preferred_cost(barred.cost, settings.prefer))
    untaken = untaken_values(program.module.graph.nodes, ranges.values)
    made = _planned(form.program, without_untaken(ranges, untaken), barred, form.rewrites, settings, untaken)
    made = with_embedding_tables(made, form.program.module, settings, barred)
    images = channels_last_names(settings.channels_last, form.program.module)
    return replace(made, channels_last=images, integer_io=settings.integer_io, settings=settings.remembered)


def refuse_unplannable(program: Program, target: Target, recipe: Recipe) -> None:
    if target.lowering.static_shapes and program.dynamic_shapes is not None:
        why = f"{target.name} compiles for fixed shapes, and these were declared dynamic"
        hint = "shapes=[…] instead of dynamic_shapes: the file gets a method for each size of the list"
        raise PlanError("dynamic shapes cannot be cast for this target", why=why, hint=hint)
    if recipe.quantize and not target.numerics.formats:
        hint = "weights='4w' (or another scheme that it offers), or quantize = false in a recipe"
        what = f"{target.name} is not offered with integer activations"
        raise PlanError(what, why="none were seen to be right here", hint=hint)


def without_untaken(ranges: Ranges, untaken: frozenset[str]) -> Ranges:
    if not untaken:
        return ranges
    note = f"{len(untaken)} values stay float: no calibration batch took the branch of a condition that computes them"
    values = {name: stats for name, stats in ranges.values.items() if name not in untaken}
    return replace(ranges, values=values, notes=(*ranges.notes, note))


def _planned(
    form: Program, ranges: Ranges, target: Target, rewrites: tuple[str, ...], recipe: Recipe, untaken: frozenset[str]
) -> Plan:
    """Every range estimator is tried on some batches, unless the recipe names one or the program has state."""
    module, state = form.module, form.state
    if not recipe.quantize:
        return unquantized(module, target, form.fingerprint, rewrites)
    ranges = with_rewritten_values(form, ranges, target, untaken)
    facts = (module, ranges, target, form.fingerprint, rewrites, recipe)
    if state or not can_simulate(module, ranges.cached_batches):
        return solve(*facts)
    estimators = CANDIDATE_ESTIMATORS if recipe.range == "auto" else (recipe.range,)
    plans = dict(zip(estimators, solve_each(*facts, estimators), strict=True))

    # What stays float for want of statistics does so with factors, too: else plans would differ in more than these.
    unrecorded = frozenset(map(value_name, calls(module))) - ranges.values.keys()

    def replan(changed: GraphModule, known: Ranges, estimator: str) -> tuple[Ranges, Plan]:
        more = record_rewritten_values(changed, known, lambda: None, untaken | unrecorded)
        more = replace(more, notes=known.notes)
        return more, solve(changed, more, *facts[2:5], replace(recipe, range=estimator))

    with torch.no_grad():
        simulation = simulation_of(module, ranges.cached_batches)
        trial = best_trial(plans, simulation, correct_biases=recipe.correct_biases)
        found = corrected(Corrected(module, module, ranges, trial, simulation), recipe, replan)
        at = partial(_plan_at, found, facts)
        runs_float, solved = target.numerics.runs_float, plans[trial.name]
        return with_prediction(with_enough_precision(found, recipe, at, runs_float, solved).trial)


def _plan_at(found: Corrected, facts: Facts, price: float, float_on_host: bool) -> Plan:
    """For the corrected program, at another price of noise."""
    on_host = facts[5].float_on_host or float_on_host
    recipe = replace(facts[5], range=found.trial.name, noise_vs_latency=price, float_on_host=on_host)
    plan = solve(found.module, found.ranges, *facts[2:5], recipe)
    return replace(plan, channel_factors=found.trial.plan.channel_factors)


def with_rewritten_values(form: Program, ranges: Ranges, target: Target, untaken: frozenset[str]) -> Ranges:
    """Where the plan needs them."""
    if target.numerics.runs_float and not _has_new_weighted_op(form.module, ranges):
        return ranges
    return record_rewritten_values(form.module, ranges, lambda: restore_state(form.module, form.state), untaken)


def _has_new_weighted_op(module: GraphModule, ranges: Ranges) -> bool:
    """A rewrite made a product with a weight whose result nobody recorded: without statistics it would stay float."""
    weighted = (n for n in calls(module) if weight_axis(n) is not None and not n.meta.get("ingot_float"))
    return any(value_name(n) not in ranges.values for n in weighted)


def quantize_by_plan(program: Program, plan: Plan, recipe: Recipe, steps: Steps) -> QuantizedProgram:
    """Each method rewritten as it was for its plan, checked against that, and quantized."""
    if program.others.keys() != plan.methods.keys():
        hint = "plan this program first"
        raise PlanError("this plan was made for other sizes", why=_methods_text(program, plan), hint=hint)
    main, target = _quantized(program, plan, recipe, steps)
    others = {n: _quantized(p, plan.for_method(n), recipe, steps)[0] for n, p in program.others.items()}
    return QuantizedProgram(program, main.program, main.quantized, main.plan, target, recipe, others)


def _methods_text(program: Program, plan: Plan) -> str:
    asked, known = (", ".join([MAIN_METHOD, *m]) for m in (program.others, plan.methods))
    return f"it has the methods {known}; the program has {asked}"


def _quantized(program: Program, plan: Plan, recipe: Recipe, steps: Steps) -> tuple[MethodGraph, Target]:
    main = find_target(plan.target, recipe.options, recipe.extra_backends)
    form = planned_form(program, plan, main, recipe)
    target = with_bars(main, host_bars(recipe.host_ops, form.module))
    validate(plan, form.module, target)
    plan, form = with_bias_qparams(plan, form.module), with_channels_last_inputs(form, plan.channels_last)
    with steps("quantize"):
        quantized = quantize(form.module, plan, float_bias=target.numerics.bias == "float")
    return MethodGraph(form, quantized, plan), target


def planned_form(program: Program, plan: Plan, target: Target, recipe: Recipe) -> Program:
    """The program that the plan is for: rewritten for the target, with the plan's channel factors."""
    form = rewrite_for(program, target, recipe).program
    must_match(plan, form)
    return with_channel_factors(form, plan.channel_factors)


def recipe_of_plan(plan: Plan, recipe: RecipeLike) -> Recipe:
    """The recipe that is given, or what the plan keeps of its own."""
    remembered = {k: v for k, v in plan.settings.items() if k != "weights"}
    return recipe_from(remembered if recipe is None else recipe)


def must_match(plan: Plan, program: Program) -> None:
    """A PlanError where the plan is of another program, or cannot be replayed."""
    if "weights" in plan.settings:
        why = f"its weights are {plan.settings['weights']}, and a plan does not hold the data they are rounded with"
        raise PlanError("this plan cannot be lowered again", why=why, hint="cast the model again with weights=…")
    if plan.fingerprint != program.fingerprint:
        raise PlanError("this plan was made for another program", hint="plan this program first")
