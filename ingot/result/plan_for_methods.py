"""The plan of a program: of one with several sizes, one for all whose graphs differ in sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.calibrate.branches import untaken_values
from ingot.calibrate.sizes import merged_sizes, structure, with_values_of_alike
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.capture.method_for import MAIN_METHOD, sizes_text
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, source_of
from ingot.errors import PlanError
from ingot.plan.plan_data import Plan
from ingot.result.plan_for_target import plan_for_target, refuse_unplannable, with_rewritten_values, without_untaken
from ingot.rewrite.apply import rewrite_for
from ingot.targets.barred import Bar
from ingot.targets.base import Target
from ingot.targets.registry import find_target


def plan_program(program: Program, ranges: Ranges, target: str, recipe: Recipe, bars: tuple[Bar, ...] = ()) -> Plan:
    if not program.others:
        return plan_for_target(program, ranges, target, recipe, bars)
    backend = find_target(target, recipe.options, recipe.extra_backends)
    refuse_unplannable(program, backend, recipe)
    forms = {n: rewrite_for(p, backend, recipe).program for n, p in program.methods.items()}
    known = _statistics(program, forms, ranges, backend)
    plans, notes = dict[str, Plan](), list[str]()
    for name, form in forms.items():
        alike = next((n for n in plans if _runs_alike(forms[n], form, backend)), None)
        if alike is None:
            plans[name] = plan_for_target(program.methods[name], known[name], target, recipe, bars)
            notes += [_note(name, forms, backend)] if name != MAIN_METHOD else []
        else:
            plans[name] = replace(plans[alike], fingerprint=form.fingerprint)
    return _joined(plans, notes)


def _joined(plans: dict[str, Plan], notes: list[str]) -> Plan:
    main = plans.pop(MAIN_METHOD)
    own = {n: p if replace(p, fingerprint=main.fingerprint) != main else p.fingerprint for n, p in plans.items()}
    return replace(main, methods=own, notes=(*main.notes, *notes))


def _statistics(program: Program, forms: dict[str, Program], ranges: Ranges, target: Target) -> dict[str, Ranges]:
    """Of each method, over the batches of all sizes; then with the values that rewrites created."""
    programs = program.methods
    recorded = {MAIN_METHOD: ranges, **ranges.methods} if ranges.batches else dict(ranges.methods)
    known = merged_sizes(recorded, {n: p.module for n, p in programs.items()})
    for name in (n for n, r in known.items() if not r.batches):
        what = f"no calibration batch has the size {sizes_text(programs[name].example_inputs)}"
        why = "its graph differs from those of the other sizes, so their statistics do not hold for it"
        raise PlanError(what, where=name, why=why, hint="give batches of that size, or leave it out of shapes")
    complete = {n: _complete(programs[n], forms[n], r, target) for n, r in known.items()}
    return with_values_of_alike(known, complete, {n: f.module for n, f in forms.items()})


def _complete(program: Program, form: Program, known: Ranges, target: Target) -> Ranges:
    untaken = untaken_values(program.module.graph.nodes, known.values)
    return with_rewritten_values(form, without_untaken(known, untaken), target, untaken)


# ---- when a plan holds for another size ----


def _runs_alike(a: Program, b: Program, target: Target) -> bool:
    return structure(a.module) == structure(b.module) and next(_differences(a, b, target), None) is None


def _differences(a: Program, b: Program, target: Target) -> Iterator[str]:
    """Ops that the target runs in other precisions at the other size."""
    ask = target.kernels.ability
    for one, other in zip(calls(a.module), calls(b.module), strict=False):
        if ask(one).runs != ask(other).runs:
            yield f"{target.name} runs {other.name} ({source_of(other)}) otherwise at this size"


def _note(name: str, forms: dict[str, Program], target: Target) -> str:
    main, form = forms[MAIN_METHOD], forms[name]
    differs = next(_differences(main, form, target), "") if structure(main.module) == structure(form.module) else ""
    return f"method {name} has a plan of its own: {differs or 'its graph is another one at this size'}"
