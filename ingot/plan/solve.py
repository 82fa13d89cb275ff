"""The solver: precisions, classes, ranges, storages. Deterministic, blind to argument order and node names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from torch.fx import GraphModule, Node

from ingot.calibrate.statistics import Ranges
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.fx import calls, source_of
from ingot.errors import PlanError
from ingot.plan.constraints import constraints_of
from ingot.plan.explain import decisions
from ingot.plan.fixed_qparams import pin, refuse_conflicts, refuse_idle
from ingot.plan.int4_weights import narrow
from ingot.plan.keep_delegated import stay_inside
from ingot.plan.lut_alignment import suit_knots
from ingot.plan.model import Decision, Plan, QParams, QuantizationPoint
from ingot.plan.noise_model import Noise, heard, mixed
from ingot.plan.pointwise_consumers import readings
from ingot.plan.precision import SILENCE, assign
from ingot.plan.range_estimators import choose
from ingot.plan.requantize_multipliers import suit_factors
from ingot.plan.scale_sharing import entry_sensitivity, share
from ingot.plan.state import Place, Work, activations, value_in
from ingot.plan.user_constraints import user_constraints_of
from ingot.plan.value_ranges import hull
from ingot.plan.zero_points import suit_zeros
from ingot.targets.base import Target

SWITCHED_OFF = "the recipe switches quantization off"


def solve(
    module: GraphModule,
    ranges: Ranges,
    target: Target,
    fingerprint: str,
    rewrites: tuple[str, ...] = (),
    recipe: Recipe | None = None,
) -> Plan:
    """What every slot of `module` is stored as on `target`."""
    recipe = recipe or Recipe()
    return next(solve_each(module, ranges, target, fingerprint, rewrites, recipe, (recipe.range,)))


def solve_each(
    module: GraphModule,
    ranges: Ranges,
    target: Target,
    fingerprint: str,
    rewrites: tuple[str, ...],
    recipe: Recipe,
    methods: Iterable[str],
) -> Iterator[Plan]:
    """The plan once for each range method: the same precisions and shared scales, other ranges."""
    work = _decided(module, ranges, target, recipe)
    notes = (*ranges.notes, *_notes(work))
    for method in methods:
        one = replace(work, method=method, qparams={}, because=dict(work.because), fixed=set(work.fixed))
        for members in one.scale_groups.groups():
            _store(members, one)
        suit_zeros(one)
        suit_knots(one)
        suit_factors(one)
        yield Plan(target.name, fingerprint, tuple(decisions(one)), rewrites, notes=notes)


def unquantized(
    module: GraphModule, target: Target, fingerprint: str, rewrites: tuple[str, ...] = (), why: str = SWITCHED_OFF
) -> Plan:
    """Everything in float, as asked."""
    if not target.numerics.runs_float:
        reason = "it runs integers only: in float nothing would be left to delegate"
        raise PlanError(f"{target.name} takes no float program", why=reason, hint="leave quantize = false out")
    made = tuple(
        Decision(QuantizationPoint(n.name), None, f"float: {why}", source=source_of(n), op=str(n.target))
        for n in calls(module)
    )
    return Plan(target.name, fingerprint, made, rewrites, notes=("nothing is quantized, as the recipe asks",))


def _decided(module: GraphModule, ranges: Ranges, target: Target, recipe: Recipe) -> Work:
    """Precisions, fusions and classes of one scale."""
    facts = constraints_of(module, target, ranges)
    demands = user_constraints_of(facts, recipe.scopes, target)
    work = Work(module, target, recipe, facts, demands, Noise(ranges, facts.effects, facts.mask_fills), recipe.range)
    pin(work)
    stay_inside(work)
    assign(work)
    narrow(work)
    _fuse(work)
    for node in work.precisions:
        if work.is_integer(node):
            _force(node, work)
    refuse_idle(work)
    work.scale_groups.add(work.fixed_qparams)
    refuse_conflicts(work)
    share(work)
    return work


def _fuse(work: Work) -> None:
    """act(f(x)) runs as one kernel if both run in the same precision."""
    # What is to be stored between the two keeps them apart.
    pairs = [(f, a) for f, a in work.facts.fusable.items() if not {(f, None), (a, 0)} & work.fixed_qparams.keys()]
    work.fused = {f: act for f, act in pairs if work.is_integer(f) and work.precisions[f] == work.precisions[act]}
    work.inside = set(work.fused.values())


def _force(node: Node, work: Work) -> None:
    """Create the slots of an integer op; those whose numbers go through untouched are one class."""
    places = [(node, i) for i in activations(node, work)]
    out = [(node, None)] if node not in work.fused and (node, None) not in work.float_points else []
    work.scale_groups.add([*places, *out])
    for i in work.carried(node):
        what = f"{node.name} only {work.facts.effects[node].kind.value} numbers ({source_of(node)})"
        work.scale_groups.union((node, i), (node, None), what)


def _store(members: list[Place], work: Work) -> None:
    """One storage for a class: the one that is given, or the one with the least error where it is read."""
    pinned = next((m for m in members if m in work.fixed_qparams), None)
    if pinned is not None:
        storage, how = work.fixed_qparams[pinned]
        _must_fit(pinned, members, storage, work)
    else:
        storage, how = _measured(members, work)
    if pinned is not None or any(value_in(m) in work.facts.mask_fills for m in members):
        work.fixed.update(members)
    for m in members:
        work.qparams[m] = storage
        work.because[m] = (f"range by {how}" if pinned is None else f"given by {how}", *work.because.get(m, ()))


def _measured(members: list[Place], work: Work) -> tuple[QParams, str]:
    span = hull(work.span(m) for m in members)
    entries = [(m, g) for m in members if (g := entry_sensitivity(m, work)) > 0]
    floored = any(
        value_in(m) in work.facts.mask_fills for m in members
    )  # no measure: what clips it lets a mask's fills in
    method = _method(members, work) if entries and not floored else "minmax"
    points = mixed([(work.noise.points(value_in(m)), g) for m, g in entries or [(members[0], 1.0)]])
    measure = partial(heard, tuple(readings(entries, work))) if entries else None
    return choose(points, span, work.format_of(members[0]), method, measure)


def _method(members: list[Place], work: Work) -> str:
    asked = {str(work.user_constraints.method[m[0]].range) for m in members if m[0] in work.user_constraints.method}
    if len(asked) > 1:
        names = ", ".join(sorted({value_in(m).name for m in members}))
        raise PlanError(
            f"two range methods are asked of one scale: {', '.join(sorted(asked))}", why=f"shared by {names}"
        )
    return asked.pop() if asked else work.method


def _must_fit(pinned: Place, members: list[Place], storage: QParams, work: Work) -> None:
    """A pin inside an op binds the whole class: its type must be one that each op of the class runs in."""
    for node, operand in members:
        precision = work.precisions.get(node, "float")
        can = {work.target.numerics.formats[f].dtype for f in _formats(node, operand, precision, work)}
        if can and storage.dtype not in can:
            raise PlanError(
                f"'{node.name}' runs in {' or '.join(sorted(can))} and is asked to hold {storage.dtype}",
                where=f"{source_of(pinned[0])} and {source_of(node)}",
                why=f"{work.fixed_qparams[pinned][1]} asks for {storage}; {work.reasons.get(node, '')}",
                hint="ask for a type that the op runs in, or for another precision of the op",
            )


def _formats(node: Node, operand: int | None, precision: str, work: Work) -> tuple[str, ...]:
    if precision == "float":
        return ()
    own = work.facts.apart.get(node, {})
    return tuple(f for f in own[operand] if f != "float") if operand in own else (precision,)


def _notes(work: Work) -> Iterator[str]:
    if work.total_noise > SILENCE and any(map(work.is_integer, work.precisions)):
        yield f"predicted SQNR of the outputs: {-10 * math.log10(work.total_noise):.1f} dB"
    yield from _narrowed(work)
    yield from _left_in_float(work)
    yield from _clipped(work)
    for value, span in work.facts.mask_fills.items():
        yield f"{value.name} holds a mask's fills, which have no vote: its range is {span[0]:.4g} … {span[1]:.4g}"


def _narrowed(work: Work) -> Iterator[str]:
    """What came of the wish for narrower weights."""
    if not work.recipe.int4_sqnr_budget_db:
        return
    if not work.target.numerics.int4_weights:
        yield f"{work.target.name} has no narrower weights: int4_sqnr_budget_db does nothing here"
    elif not work.target.numerics.packs_int4:
        yield f"{work.target.name} keeps narrower weights in whole bytes: int4_sqnr_budget_db does nothing here"
    else:
        yield f"{len(work.weights)} ops have narrower weights"


def _clipped(work: Work) -> Iterator[str]:
    """A scale that was asked for may not hold what was measured."""
    for place, (storage, rule) in work.fixed_qparams.items():
        low, high = work.facts.span(value_in(place))
        if low < storage.span[0] - storage.scale or high > storage.span[1] + storage.scale:  # type: ignore[operator]
            held = f"{storage.span[0]:.4g} … {storage.span[1]:.4g}"
            yield f"{rule} holds {held}, and {low:.4g} … {high:.4g} was measured: the rest is clipped"


def _left_in_float(work: Work) -> Iterator[str]:
    """A cast in which weights stay float is a smaller gain than the user expects: say so."""
    weighted = [n for n in work.precisions if weight_axis(n) is not None and not n.meta.get("ingot_float")]
    left = [n for n in weighted if not work.is_integer(n)]
    if left:
        why = work.reasons[left[0]]
        yield f"{len(left)} of {len(weighted)} ops with weights stay float, the first is {left[0].name}: {why}"
    if not any(map(work.is_integer, work.precisions)):
        yield "nothing in this model was quantized"
