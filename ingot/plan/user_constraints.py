"""What the recipe asks of single ops: scopes are matched, the most specific wins, contradictions are errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch.fx import Node

from ingot.capture.op_semantics import Kind, operands
from ingot.config.scopes import WEIGHTS, Scope
from ingot.core.fx import source_of
from ingot.errors import InputError, PlanError, nearest
from ingot.plan.constraints import Constraints
from ingot.targets.base import DYNAMIC, Target


@dataclass
class UserConstraints:
    """For each op the scope that sets its precision, its range estimator and the format of its weight."""

    precision: dict[Node, Scope] = field(default_factory=dict)
    range_estimator: dict[Node, Scope] = field(default_factory=dict)
    weights: dict[Node, Scope] = field(default_factory=dict)
    dynamic: set[Node] = field(default_factory=set)  # ops that must quantize their input at run time


def user_constraints_of(found: Constraints, scopes: Sequence[Scope], target: Target) -> UserConstraints:
    """Match the scopes, and restrict each op to the precision that is requested for it."""
    nodes = list(found.options)
    matched = {scope: matching_ops(scope, nodes) for scope in scopes}
    asked = UserConstraints()
    for node in nodes:
        mine = [s for s in scopes if node in matched[s]]
        _resolve(node, "precision", [s for s in mine if s.precision], asked.precision, matched)
        _resolve(node, "range", [s for s in mine if s.range], asked.range_estimator, matched)
        _resolve(node, "weights", [s for s in mine if s.weights], asked.weights, matched)
    _refuse_weights(asked, target)
    for scope in dict.fromkeys(asked.precision.values()):
        _restrict(scope, [n for n, s in asked.precision.items() if s is scope], found, target)
    asked.dynamic = {n for n, s in asked.precision.items() if s.precision == DYNAMIC and n in found.dynamic}
    return asked


def _refuse_weights(asked: UserConstraints, target: Target) -> None:
    for node, scope in asked.weights.items():
        if scope.weights not in ("int8", *target.numerics.int4_weights):
            what, why = f"{target.name} has no {scope.weights} weights", f"requested by the scope {scope}"
            raise PlanError(what, where=source_of(node), why=why, hint=f"use weights = '{WEIGHTS[0]}' in that scope")


def _names(node: Node) -> dict[str, list[str]]:
    """The names by which a scope may match an op: op, types and paths of the modules around it, name of the value."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    types = [_type_name(kind) for _, kind in stack]
    packet = getattr(node.target, "_overloadpacket", None)
    op = getattr(packet, "__name__", None) or str(node.target)
    return {
        "op": [op, f"aten.{op}", str(node.target)],
        "type": [*types, *(t.rpartition(".")[2] for t in types)],
        "path": [path for path, _ in stack if path],
        "name": [node.name],
    }


def _type_name(kind: object) -> str:
    return kind if isinstance(kind, str) else f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', kind)}"


def matching_ops(scope: Scope, nodes: Sequence[Node]) -> set[Node]:
    """The ops that a scope matches; an error if there are none."""
    ((kind, pattern),) = scope.chosen.items()
    if kind == "feeds":
        return _feeding(scope, nodes)
    found = {n for n in nodes if any(fnmatchcase(name, pattern) for name in _names(n)[kind])}
    if not found:
        known = {name for n in nodes for name in _names(n)[kind]}
        raise InputError(f"the scope {scope} matches nothing in this model", hint=nearest(pattern, known))
    return found


def _feeding(scope: Scope, nodes: Sequence[Node]) -> set[Node]:
    """Ops whose every path to a graph output passes through that operand."""
    pattern, _, operand = str(scope.feeds).rpartition(":")
    consumers = matching_ops(Scope(op=pattern, precision="float"), nodes)
    found: set[Node] = set()
    for node in reversed(nodes[0].graph.nodes):
        used = node.op == "call_function" and node.users
        if used and all(_leads_to(node, u, consumers, int(operand), found) for u in node.users):
            found.add(node)
    if not found & set(nodes):
        raise InputError(
            f"the scope {scope} matches nothing in this model",
            why="every op that feeds this operand is also used elsewhere",
        )
    return found & set(nodes)


def _leads_to(node: Node, user: Node, consumers: set[Node], operand: int, found: set[Node]) -> bool:
    positions = [i for i, n in enumerate(operands(user)) if n is node]
    return user in found or (user in consumers and positions == [operand])


def _resolve(
    node: Node, what: str, scopes: Sequence[Scope], into: dict[Node, Scope], matched: dict[Scope, set[Node]]
) -> None:
    """The scope that matches the fewest ops wins; two that match equally many must agree."""
    for scope in sorted(scopes, key=lambda s: (len(matched[s]), str(s))):
        first = into.setdefault(node, scope)
        wanted, other = getattr(first, what), getattr(scope, what)
        if wanted != other and len(matched[first]) == len(matched[scope]):
            raise PlanError(
                f"two scopes contradict each other at '{node.name}'",
                where=source_of(node),
                why=f"{first} asks for {wanted}, {scope} asks for {other}; both match {len(matched[scope])} ops",
                hint="use a more specific scope (name = …), or remove one of them",
            )


def _restrict(scope: Scope, nodes: list[Node], found: Constraints, target: Target) -> None:
    """Drop all other options. A module scope applies where it is possible; a scope that names ops must apply to all."""
    able = [n for n in nodes if scope.precision in found.options[n] or _may_be_dynamic(n, scope, found)]
    unable = [n for n in nodes if n not in able and found.options[n] and not _creates(n, found)]
    if unable and (not able or ({"op", "name"} & scope.chosen.keys() and scope.chosen.get("op") != "*")):
        raise _impossible(unable[0], scope, found, target)
    for node in able:
        why = f"requested by the recipe: {scope}"
        found.options[node] = {"float" if scope.precision == DYNAMIC else str(scope.precision): why}
        if scope.precision == DYNAMIC:
            found.dynamic[node] = why
        else:
            found.dynamic.pop(node, None)


def _may_be_dynamic(node: Node, scope: Scope, found: Constraints) -> bool:
    return scope.precision == DYNAMIC and node in found.dynamic


def _creates(node: Node, found: Constraints) -> bool:
    return found.effects[node].kind is Kind.CREATES


def _impossible(node: Node, scope: Scope, found: Constraints, target: Target) -> PlanError:
    options = found.options[node]
    integers = (why for precision, why in options.items() if precision != "float")
    why = found.float_only.get(node) or "; ".join(dict.fromkeys(integers))
    return PlanError(
        f"'{node.name}' cannot run in {scope.precision} on {target.name}, which the scope {scope} asks for",
        where=source_of(node),
        why=f"{why}; possible here: {', '.join(sorted(options))}",
        hint="ask for another precision, or use a more specific scope",
    )
