"""Slots whose storage the user gives: graph inputs and outputs, and operands or results of ops a scope names."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.config.scopes import Scope
from ingot.config.specs import Spec, Specs
from ingot.core.fx import is_float, output_nodes, source_of
from ingot.errors import InputError, PlanError, nearest
from ingot.plan.model import QParams
from ingot.plan.qparams import qparams_for
from ingot.plan.state import Place, Work, value_in
from ingot.plan.user_constraints import matches
from ingot.targets.base import Format


def pin(work: Work) -> None:
    """Fill in work.fixed_qparams; of scopes the narrowest wins, two of one size that differ are a contradiction."""
    narrow: dict[Place, int] = {}
    for place, spec, rule, size in (*_inputs(work), *_outputs(work), *_scoped(work)):
        wanted = qparams_of(spec, place, work)
        known = work.fixed_qparams.setdefault(place, (wanted, rule))
        _on_integers(place[0], work)
        if narrow.setdefault(place, size) == size and known[0] != wanted:
            raise PlanError(
                f"{place[0].name} is asked to be stored in two ways",
                where=source_of(place[0]),
                why=f"{known[1]} asks for {known[0]}; {rule} asks for {wanted}",
                hint="leave one of them out",
            )


def _on_integers(node: Node, work: Work) -> None:
    """Who says how an op stores numbers asks for integers, if it can have them."""
    options = work.facts.options.get(node, {})
    if len(options) > 1:
        work.facts.options[node] = {p: who for p, who in options.items() if p != "float"}


def refuse_idle(work: Work) -> None:
    """A demand that cannot take effect is not passed over: the op is float, or what is pinned is no activation."""
    for place, (storage, rule) in work.fixed_qparams.items():
        if place[0].op == "call_function" and place not in work.scale_groups:
            why = work.reasons.get(place[0], "") if not work.is_integer(place[0]) else "that operand is no activation"
            raise PlanError(
                f"{rule} asks for {storage}, and nothing is stored there", where=source_of(place[0]), why=why
            )


def qparams_of(spec: Spec, place: Place, work: Work) -> QParams:
    """As given; or from the measured range, in the given type."""
    assert spec.qmin is not None
    assert spec.qmax is not None
    if spec.scale is not None:
        return QParams(spec.dtype, spec.scale, spec.zero_point, spec.qmin, spec.qmax)
    form = next((f for f in work.target.numerics.formats.values() if f.dtype == spec.dtype), None)
    if form is None or spec.is_cut:
        form = Format(spec.dtype, spec.qmin, spec.qmax, form.symmetric if form else spec.dtype == "int16")
    return qparams_for(*work.span(place), form)


def _inputs(work: Work) -> Iterator[tuple[Place, Spec, str, int]]:
    nodes = [n for n in work.module.graph.nodes if n.op == "placeholder"]
    for i, spec in _by_position(work.recipe.inputs, [n.name for n in nodes], "input"):
        _must_be_float(nodes[i], "input")
        yield (nodes[i], None), spec, f"input '{nodes[i].name}' of the recipe", 1


def _outputs(work: Work) -> Iterator[tuple[Place, Spec, str, int]]:
    nodes, last = output_nodes(work.module), next(n for n in reversed(work.module.graph.nodes) if n.op == "output")
    for i, spec in _by_position(work.recipe.outputs, [n.name for n in nodes], "output"):
        _must_be_float(nodes[i], "output")
        yield (last, i), spec, f"output {i} of the recipe", 1


def _must_be_float(node: Node, what: str) -> None:
    if not is_float(node):
        raise InputError(f"{what} '{node.name}' holds no float numbers: there is nothing to quantize")


def _by_position(specs: Specs, names: list[str], what: str) -> Iterator[tuple[int, Spec]]:
    """A list must have one entry for each; a table names those it means."""
    listed = [k for k, _ in specs if isinstance(k, int)]
    if listed and len(listed) != len(names):
        raise InputError(f"the recipe has {len(listed)} {what}s, the model has {len(names)}: {', '.join(names)}")
    for k, spec in specs:
        if isinstance(k, str) and k not in names:
            raise InputError(f"the model has no {what} '{k}'", hint=nearest(k, names))
        if spec is not None and not spec.is_float:
            yield (k if isinstance(k, int) else names.index(k)), spec


def _scoped(work: Work) -> Iterator[tuple[Place, Spec, str, int]]:
    nodes = list(work.facts.options)
    asked = [(s, matches(s, nodes)) for s in work.recipe.scopes if s.inputs or s.output]
    for scope, found in sorted(asked, key=lambda a: len(a[1])):
        for node in (n for n in nodes if n in found):
            for place, spec in _asked(node, scope):
                rule = f"the scope {scope}, {'output' if place[1] is None else f'input {place[1]}'}"
                if spec.is_float:
                    _leave_float(place, rule, work)
                else:
                    yield place, spec, rule, len(found)


def _asked(node: Node, scope: Scope) -> Iterator[tuple[Place, Spec]]:
    if scope.output is not None:
        yield (node, None), scope.output
    for i, spec in scope.inputs:
        _must_exist(i, node, scope)
        if spec is not None and isinstance(i, int):
            yield (node, i), spec


def _leave_float(place: Place, rule: str, work: Work) -> None:
    """One side of an op that runs on integers otherwise: only where the backend says that it can."""
    node, operand = place
    if "float" not in work.facts.apart.get(node, {}).get(operand, ()):
        why = "an op of this target reads and gives everything in its own precision"
        hint = "ask for the precision of the op: precision = 'float'"
        raise PlanError(f"{rule} asks for float", where=source_of(node), why=why, hint=hint)
    work.float_points[place] = rule


def _must_exist(operand: str | int, node: Node, scope: Scope) -> None:
    count = len(operands(node))
    if isinstance(operand, str) or operand >= count:
        why = f"{node.name} reads {count} values, by position"
        raise InputError(f"the scope {scope} speaks of operand {operand}", where=source_of(node), why=why)


def refuse_conflicts(work: Work) -> None:
    """Pins of one class must agree: what an op forces between them cannot be undone by a requantize."""
    first: dict[Place, Place] = {}
    for place in work.fixed_qparams:
        if place[0].op in ("placeholder", "output"):
            continue  # on an edge, not inside an op: requantizing there is possible
        other = first.setdefault(work.scale_groups.find(place), place)
        if work.fixed_qparams[other][0] != work.fixed_qparams[place][0]:
            raise _conflict(other, place, work)


def _conflict(a: Place, b: Place, work: Work) -> PlanError:
    ways, path, here = work.scale_groups.ways(a), [], b
    while here != a:
        here, why = ways[here]
        path.append(why)
    (x, rule_x), (y, rule_y) = work.fixed_qparams[a], work.fixed_qparams[b]
    return PlanError(
        f"{value_in(a).name} and {value_in(b).name} must be stored alike, and are asked not to be",
        where=f"{source_of(a[0])} and {source_of(b[0])}",
        why=f"{rule_x} asks for {x}; {rule_y} asks for {y}; between them: {'; '.join(dict.fromkeys(reversed(path)))}",
        hint="ask for the same on both sides, or only on one",
    )
