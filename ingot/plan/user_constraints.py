"""What the user asks of parts of the model: scopes matched to ops, the narrowest wins, contradictions named."""

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
from ingot.targets.base import Target


@dataclass
class UserConstraints:
    """By op: the scopes that speak for its precision, for its range and for its weights."""

    precision: dict[Node, Scope] = field(default_factory=dict)
    method: dict[Node, Scope] = field(default_factory=dict)
    weights: dict[Node, Scope] = field(default_factory=dict)


def user_constraints_of(found: Constraints, scopes: Sequence[Scope], target: Target) -> UserConstraints:
    """Match the scopes, and leave each op only the precision that was asked for it."""
    nodes = list(found.options)
    matched = {scope: matches(scope, nodes) for scope in scopes}
    demands = UserConstraints()
    for node in nodes:
        mine = [s for s in scopes if node in matched[s]]
        _settle(node, "precision", [s for s in mine if s.precision], demands.precision, matched)
        _settle(node, "range", [s for s in mine if s.range], demands.method, matched)
        _settle(node, "weights", [s for s in mine if s.weights], demands.weights, matched)
    _refuse_weights(demands, target)
    for scope in dict.fromkeys(demands.precision.values()):
        _restrict(scope, [n for n, s in demands.precision.items() if s is scope], found, target)
    return demands


def _refuse_weights(demands: UserConstraints, target: Target) -> None:
    for node, scope in demands.weights.items():
        if scope.weights not in ("int8", *target.numerics.int4_weights):
            what, why = f"{target.name} has no {scope.weights} weights", f"asked by the scope {scope}"
            raise PlanError(what, where=source_of(node), why=why, hint=f"weights = '{WEIGHTS[0]}'")


def names_of(node: Node) -> dict[str, list[str]]:
    """How a user may call an op: by the op, the types and paths of the modules around it, the value's own name."""
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


def matches(scope: Scope, nodes: Sequence[Node]) -> set[Node]:
    ((kind, pattern),) = scope.chosen.items()
    if kind == "feeds":
        return _feeding(scope, nodes)
    found = {n for n in nodes if any(fnmatchcase(name, pattern) for name in names_of(n)[kind])}
    if not found:
        known = {name for n in nodes for name in names_of(n)[kind]}
        raise InputError(f"the scope {scope} matches nothing in this model", hint=nearest(pattern, known))
    return found


def _feeding(scope: Scope, nodes: Sequence[Node]) -> set[Node]:
    """The ops all of whose ways out lead into that operand: what somebody else reads too is not only its business."""
    pattern, _, operand = str(scope.feeds).rpartition(":")
    readers = matches(Scope(op=pattern, precision="float"), nodes)
    found: set[Node] = set()
    for node in reversed(nodes[0].graph.nodes):
        if (
            node.op == "call_function"
            and node.users
            and all(_leads(node, u, readers, int(operand), found) for u in node.users)
        ):
            found.add(node)
    if not found & set(nodes):
        raise InputError(f"the scope {scope} matches nothing in this model", why="no op reaches that operand alone")
    return found & set(nodes)


def _leads(node: Node, user: Node, readers: set[Node], operand: int, found: set[Node]) -> bool:
    places = [i for i, n in enumerate(operands(user)) if n is node]
    return user in found or (user in readers and places == [operand])


def _settle(
    node: Node, what: str, scopes: Sequence[Scope], into: dict[Node, Scope], matched: dict[Scope, set[Node]]
) -> None:
    """The scope that matches fewest ops wins; two of one size that ask for different things are a contradiction."""
    for scope in sorted(scopes, key=lambda s: (len(matched[s]), str(s))):
        first = into.setdefault(node, scope)
        wish, other = getattr(first, what), getattr(scope, what)
        if wish != other and len(matched[first]) == len(matched[scope]):
            raise PlanError(
                f"two scopes ask for different things at '{node.name}'",
                where=source_of(node),
                why=f"{first} asks for {wish}, {scope} asks for {other}, and neither is narrower",
                hint="name the value itself, or leave one of them out",
            )


def _restrict(scope: Scope, nodes: list[Node], found: Constraints, target: Target) -> None:
    """Leave the ops what was asked. A scope over a module asks for what can be had; one that names ops means all."""
    able = [n for n in nodes if scope.precision in found.options[n]]
    unable = [n for n in nodes if n not in able and found.options[n] and not _only_creates(n, found)]
    if unable and (not able or ({"op", "name"} & scope.chosen.keys() and scope.chosen.get("op") != "*")):
        raise _impossible(unable[0], scope, found, target)
    for node in able:
        found.options[node] = {str(scope.precision): f"demanded by the recipe: {scope}"}


def _only_creates(node: Node, found: Constraints) -> bool:
    return found.effects[node].kind is Kind.CREATES


def _impossible(node: Node, scope: Scope, found: Constraints, target: Target) -> PlanError:
    options = found.options[node]
    why = found.barred.get(node) or "; ".join(dict.fromkeys(options.values()))
    return PlanError(
        f"'{node.name}' cannot run in {scope.precision} on {target.name}, as the scope {scope} asks",
        where=source_of(node),
        why=f"{why}; what it can be here: {', '.join(sorted(options))}",
        hint="ask for another precision, or narrow the scope",
    )
