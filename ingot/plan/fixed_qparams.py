"""Quantization points whose qparams the user gives: graph inputs and outputs, operands and results named by a scope."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.config.scopes import Scope
from ingot.config.tensor_specs import Spec, Specs
from ingot.core.fx import is_float, output_nodes, source_of, value_of
from ingot.errors import InputError, PlanError, nearest
from ingot.plan.plan_data import QParams
from ingot.plan.qparams import qparams_for
from ingot.plan.solver_state import Point, SolverState, value_at
from ingot.plan.user_constraints import matching_ops
from ingot.targets.base import Format

Request = tuple[Point, Spec, str, int]  # point, wanted spec, who asks, number of ops that the scope matches


def fix_qparams(state: SolverState) -> None:
    """Fill in state.fixed_qparams. The most specific scope wins; two equally specific ones must agree."""
    specificity: dict[Point, int] = {}
    for point, spec, rule, size in (*_inputs(state), *_outputs(state), *_scoped(state)):
        wanted = _qparams_of(spec, point, state)
        known = state.fixed_qparams.setdefault(point, (wanted, rule))
        _require_integers(point[0], state)
        if specificity.setdefault(point, size) == size and known[0] != wanted:
            raise PlanError(
                f"two different qparams are requested for {point[0].name}",
                where=source_of(point[0]),
                why=f"{known[1]} asks for {known[0]}; {rule} asks for {wanted}",
                hint="remove one of the two requests",
            )


def _require_integers(node: Node, state: SolverState) -> None:
    """Qparams for an op are a request for integers, if it can run on them."""
    options = state.constraints.options.get(node, {})
    if len(options) > 1:
        state.constraints.options[node] = {p: who for p, who in options.items() if p != "float"}


def refuse_unused(state: SolverState) -> None:
    """A request without effect is an error: the op runs in float, or the operand is not an activation."""
    for point, (qparams, rule) in state.fixed_qparams.items():
        if point[0].op == "call_function" and point not in state.scale_groups:
            integer = state.is_integer(point[0])
            why = "that operand is not an activation" if integer else state.reasons.get(point[0], "")
            what = f"{rule} asks for {qparams}, but nothing is quantized there"
            raise PlanError(what, where=source_of(point[0]), why=why)


def _qparams_of(spec: Spec, point: Point, state: SolverState) -> QParams:
    """As given; without a scale, from the measured range in the given type."""
    assert spec.qmin is not None
    assert spec.qmax is not None
    if spec.scale is not None:
        return QParams(spec.dtype, spec.scale, spec.zero_point, spec.qmin, spec.qmax)
    form = next((f for f in state.target.numerics.formats.values() if f.dtype == spec.dtype), None)
    if form is None or spec.is_cut:
        form = Format(spec.dtype, spec.qmin, spec.qmax, form.symmetric if form else spec.dtype == "int16")
    return qparams_for(*state.value_range(point), form)


def _inputs(state: SolverState) -> Iterator[Request]:
    nodes = [n for n in state.module.graph.nodes if n.op == "placeholder"]
    for i, spec in _by_position(state.recipe.inputs, [n.name for n in nodes], "input"):
        _must_be_float(nodes[i], "input")
        yield (nodes[i], None), spec, f"input '{nodes[i].name}' of the recipe", 1


def _outputs(state: SolverState) -> Iterator[Request]:
    nodes, last = output_nodes(state.module), next(n for n in reversed(state.module.graph.nodes) if n.op == "output")
    for i, spec in _by_position(state.recipe.outputs, [n.name for n in nodes], "output"):
        _must_be_float(nodes[i], "output")
        yield (last, i), spec, f"output {i} of the recipe", 1


def _must_be_float(node: Node, what: str) -> None:
    if not is_float(node):
        raise InputError(f"{what} '{node.name}' is not floating point: it cannot be quantized")
    if (dtype := value_of(node).dtype) is not torch.float32:
        name = str(dtype).removeprefix("torch.")
        raise InputError(
            f"{what} '{node.name}' is {name}: it cannot be quantized",
            why="the quantize and dequantize ops compute in float32",
            hint=f"make it float32 in the model, or remove the spec of this {what}",
        )


def _by_position(specs: Specs, names: list[str], what: str) -> Iterator[tuple[int, Spec]]:
    """A list has one entry for each input (or output); a table names some of them."""
    listed = [k for k, _ in specs if isinstance(k, int)]
    if listed and len(listed) != len(names):
        raise InputError(f"the recipe has {len(listed)} {what}s, the model has {len(names)}: {', '.join(names)}")
    for k, spec in specs:
        if isinstance(k, str) and k not in names:
            raise InputError(f"the model has no {what} '{k}'", hint=nearest(k, names))
        if spec is not None and not spec.is_float:
            yield (k if isinstance(k, int) else names.index(k)), spec


def _scoped(state: SolverState) -> Iterator[Request]:
    nodes = list(state.constraints.options)
    matched = [(s, matching_ops(s, nodes)) for s in state.recipe.scopes if s.inputs or s.output]
    for scope, found in sorted(matched, key=lambda m: len(m[1])):
        for node in (n for n in nodes if n in found):
            for point, spec in _points_of(node, scope):
                rule = f"the scope {scope}, {'output' if point[1] is None else f'input {point[1]}'}"
                if spec.is_float:
                    _require_float(point, rule, state)
                else:
                    yield point, spec, rule, len(found)


def _points_of(node: Node, scope: Scope) -> Iterator[tuple[Point, Spec]]:
    if scope.output is not None:
        yield (node, None), scope.output
    for i, spec in scope.inputs:
        _must_exist(i, node, scope)
        if spec is not None and isinstance(i, int):
            yield (node, i), spec


def _require_float(point: Point, rule: str, state: SolverState) -> None:
    """A float operand or result of an integer op: only where the target has such a kernel."""
    node, operand = point
    if "float" not in state.constraints.operand_formats.get(node, {}).get(operand, ()):
        why = "this target needs all operands and results of an op in one precision"
        hint = "ask for the precision of the op: precision = 'float'"
        raise PlanError(f"{rule} asks for float", where=source_of(node), why=why, hint=hint)
    state.float_points[point] = rule


def _must_exist(operand: str | int, node: Node, scope: Scope) -> None:
    count = len(operands(node))
    if isinstance(operand, str) or operand >= count:
        why = f"{node.name} has {count} operands, named by position"
        raise InputError(f"the scope {scope} names operand {operand}", where=source_of(node), why=why)


def refuse_conflicts(state: SolverState) -> None:
    """Given qparams in one scale group must agree: inside an op no requantize can separate them."""
    first: dict[Point, Point] = {}
    for point in state.fixed_qparams:
        if point[0].op in ("placeholder", "output"):
            continue  # on an edge: a requantize is possible there
        other = first.setdefault(state.scale_groups.find(point), point)
        if state.fixed_qparams[other][0] != state.fixed_qparams[point][0]:
            raise _conflict(other, point, state)


def _conflict(a: Point, b: Point, state: SolverState) -> PlanError:
    paths, steps, here = state.scale_groups.paths_to(a), [], b
    while here != a:
        here, why = paths[here]
        steps.append(why)
    links = "; ".join(dict.fromkeys(reversed(steps)))
    (x, rule_x), (y, rule_y) = state.fixed_qparams[a], state.fixed_qparams[b]
    return PlanError(
        f"{value_at(a).name} and {value_at(b).name} share one scale, but different qparams are requested",
        where=f"{source_of(a[0])} and {source_of(b[0])}",
        why=f"{rule_x} asks for {x}; {rule_y} asks for {y}; they are linked: {links}",
        hint="request the same qparams for both, or for one of them only",
    )
