"""The solver: precisions, scale groups, ranges, qparams. Deterministic; argument order and node names do not matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from torch.fx import GraphModule, Node

from ingot.calibrate.statistics import Ranges
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, is_float, source_of
from ingot.errors import PlanError
from ingot.plan.constraints import constraints_of
from ingot.plan.explain import decisions
from ingot.plan.fixed_qparams import fix_qparams, refuse_conflicts, refuse_unused
from ingot.plan.int4_weights import choose_int4_weights
from ingot.plan.integer_only_targets import keep_delegated
from ingot.plan.lut_alignment import align_luts
from ingot.plan.noise_model import NoiseModel, mixture, weighted_errors
from ingot.plan.notes import notes_of
from ingot.plan.plan_data import Decision, Plan, QParams, QuantizationPoint
from ingot.plan.pointwise_consumers import error_terms
from ingot.plan.precision import assign_precisions
from ingot.plan.preferred_zero_points import apply_preferred_zero_points
from ingot.plan.qparams import qparams_for
from ingot.plan.range_estimators import estimate_qparams
from ingot.plan.requantize_multipliers import align_multipliers
from ingot.plan.scale_sharing import rounding_sensitivity, share_scales
from ingot.plan.solver_state import Point, SolverState, quantized_operands, value_at
from ingot.plan.user_constraints import user_constraints_of
from ingot.plan.value_ranges import hull
from ingot.plan.zero_ranges import fit_zero_ranges
from ingot.targets.base import Target

DISABLED = "the recipe disables quantization"


def solve(
    module: GraphModule,
    ranges: Ranges,
    target: Target,
    fingerprint: str,
    rewrites: tuple[str, ...] = (),
    recipe: Recipe | None = None,
) -> Plan:
    """The qparams of every quantization point of `module` on `target`."""
    recipe = recipe or Recipe()
    return next(solve_each(module, ranges, target, fingerprint, rewrites, recipe, (recipe.range,)))


def solve_each(
    module: GraphModule,
    ranges: Ranges,
    target: Target,
    fingerprint: str,
    rewrites: tuple[str, ...],
    recipe: Recipe,
    range_estimators: Iterable[str],
) -> Iterator[Plan]:
    """One plan for each range estimator. Precisions and scale groups are the same in all of them."""
    state = _solve_structure(module, ranges, target, recipe)
    notes = (*ranges.notes, *notes_of(state))
    for estimator in range_estimators:
        one = replace(state, range_estimator=estimator, qparams={}, because=dict(state.because), fixed=set(state.fixed))
        for members in one.scale_groups.groups():
            _set_qparams(members, one)
        fit_zero_ranges(one)
        apply_preferred_zero_points(one)
        align_luts(one)
        align_multipliers(one)
        facts = (target.name, fingerprint, tuple(decisions(one)), rewrites)
        dynamic = tuple(n.name for n in module.graph.nodes if n in one.dynamic)
        yield Plan(*facts, notes=notes, range_estimator=estimator, predicted=state.predicted, dynamic=dynamic)


def unquantized(
    module: GraphModule, target: Target, fingerprint: str, rewrites: tuple[str, ...] = (), why: str = DISABLED
) -> Plan:
    """A plan with every op in float."""
    if not target.numerics.runs_float:
        reason = "it runs integer ops only: nothing could be delegated"
        raise PlanError(f"{target.name} takes no float program", why=reason, hint="remove quantize = false")
    made = tuple(
        Decision(QuantizationPoint(n.name), None, f"float: {why}", source=source_of(n), op=str(n.target))
        for n in calls(module)
    )
    return Plan(target.name, fingerprint, made, rewrites, notes=(f"nothing is quantized: {why}",))


def _solve_structure(module: GraphModule, ranges: Ranges, target: Target, recipe: Recipe) -> SolverState:
    """Everything but the ranges: precisions, weight formats, fusions, scale groups."""
    constraints = constraints_of(module, target, ranges)
    if not recipe.dynamic_activations:
        constraints.dynamic.clear()
    user_constraints = user_constraints_of(constraints, recipe.scopes, target)
    noise = NoiseModel(ranges, constraints.effects, constraints.mask_fills)
    state = SolverState(module, target, recipe, constraints, user_constraints, noise, recipe.range)
    fix_qparams(state)
    keep_delegated(state)
    assign_precisions(state)
    choose_int4_weights(state)
    _fuse(state)
    for node in state.precisions:
        if state.is_integer(node):
            _add_points(node, state)
    refuse_unused(state)
    state.scale_groups.add(state.fixed_qparams)
    refuse_conflicts(state)
    share_scales(state)
    return state


def _fuse(state: SolverState) -> None:
    """act(f(x)) runs as one kernel if both have the same precision and no qparams are given between them."""
    given = state.fixed_qparams.keys()
    pairs = [(f, act) for f, act in state.constraints.fusable.items() if not {(f, None), (act, 0)} & given]
    precisions = state.precisions
    state.fused = {f: act for f, act in pairs if state.is_integer(f) and precisions[f] == precisions[act]}
    state.fused_activations = set(state.fused.values())


def _add_points(node: Node, state: SolverState) -> None:
    """Add the quantization points of an integer op; those that must share a scale become one group."""
    points = [(node, i) for i in quantized_operands(node, state)]
    out = [(node, None)] if node not in state.fused and state.has_result_qparams(node) else []
    state.scale_groups.add([*points, *out])
    for point in points[1:] if not is_float(node) else ():
        why = f"{node.name} compares integers: its operands share one scale ({source_of(node)})"
        state.scale_groups.union(points[0], point, why)
    for i in state.shared_scale_operands(node):
        kind = state.constraints.effects[node].kind.value
        why = f"{node.name} {kind} values: input and output share one scale ({source_of(node)})"
        state.scale_groups.union((node, i), (node, None), why)


def _set_qparams(members: list[Point], state: SolverState) -> None:
    """One set of qparams for a scale group: as given, or by the range estimator."""
    given = next((m for m in members if m in state.fixed_qparams), None)
    if given is not None:
        qparams, rule = state.fixed_qparams[given]
        _check_dtype(given, members, qparams, state)
        how = f"qparams given by {rule}"
    else:
        qparams, estimator = _estimate(members, state)
        how = f"range estimator: {estimator}"
    if given is not None or _has_mask_fills(members, state):
        state.fixed.update(members)
    for m in members:
        state.qparams[m] = qparams
        state.because[m] = (how, *state.because.get(m, ()))


def _has_mask_fills(members: list[Point], state: SolverState) -> bool:
    return any(value_at(m) in state.constraints.mask_fills for m in members)


def _estimate(members: list[Point], state: SolverState) -> tuple[QParams, str]:
    """By the errors of all values that are rounded in the group. With mask fills min-max: their minimum is needed."""
    value_range = hull(state.value_range(m) for m in members)
    rounded = [(m, s) for m in members if (s := rounding_sensitivity(m, state)) > 0]
    estimator = _range_estimator(members, state) if rounded and not _has_mask_fills(members, state) else "minmax"
    distribution = mixture([(state.noise.distribution(value_at(m)), s) for m, s in rounded or [(members[0], 1.0)]])
    errors = partial(weighted_errors, tuple(error_terms(rounded, state))) if rounded else None
    found = estimate_qparams(distribution, value_range, state.format_of(members[0]), estimator, errors)
    return _with_fills(*found, members, state)


def _with_fills(qparams: QParams, estimator: str, members: list[Point], state: SolverState) -> tuple[QParams, str]:
    """A range that covers the fill values of pads: they are not among the values whose rounding was weighed."""
    low, high = qparams.representable_range
    margin = float(qparams.scale) / 2  # type: ignore[arg-type]
    fills = [c for m in members if m[1] is None for c in _fills_of(m[0], margin, state)]
    if not fills or (min(fills) >= low - margin and max(fills) <= high + margin):
        return qparams, estimator
    covered = hull([(low, high), (min(fills), max(fills))])
    return qparams_for(*covered, state.format_of(members[0])), f"{estimator}, widened to the fill value of a pad"


def _fills_of(node: Node, margin: float, state: SolverState) -> list[float]:
    """Constants among the results of this op. The bound of a clamp that nothing reaches is none of them."""
    low, high = state.value_range((node, None))
    effect = state.constraints.effects.get(node)
    return [c for c in (effect.constants if effect else ()) if low - margin <= c <= high + margin]


def _range_estimator(members: list[Point], state: SolverState) -> str:
    by_scope = state.user_constraints.range_estimator
    requested = {str(by_scope[m[0]].range) for m in members if m[0] in by_scope}
    if len(requested) > 1:
        names = ", ".join(sorted({value_at(m).name for m in members}))
        what = f"two range estimators are requested for one scale: {', '.join(sorted(requested))}"
        raise PlanError(what, why=f"shared by {names}", hint="request the same for all of them")
    return requested.pop() if requested else state.range_estimator


def _check_dtype(given: Point, members: list[Point], qparams: QParams, state: SolverState) -> None:
    """Given qparams hold for the whole scale group: each op of it must run in their type."""
    for node, operand in members:
        precision = state.precisions.get(node, "float")
        allowed = {state.target.numerics.formats[f].dtype for f in _formats(node, operand, precision, state)}
        if allowed and qparams.dtype not in allowed:
            raise PlanError(
                f"'{node.name}' runs in {' or '.join(sorted(allowed))}, but {qparams.dtype} is requested",
                where=f"{source_of(given[0])} and {source_of(node)}",
                why=f"{state.fixed_qparams[given][1]} asks for {qparams}; {state.reasons.get(node, '')}",
                hint="ask for a type that the op runs in, or for another precision of the op",
            )


def _formats(node: Node, operand: int | None, precision: str, state: SolverState) -> tuple[str, ...]:
    if precision == "float":
        return ()
    own = state.constraints.operand_formats.get(node, {})
    return tuple(f for f in own[operand] if f != "float") if operand in own else (precision,)
