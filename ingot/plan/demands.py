"""What the user asks of parts of the model: scopes matched to ops, the narrowest wins, contradictions named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch.fx import Node

from ingot.errors import InputError, PlanError, nearest
from ingot.graph import source_of
from ingot.plan.relations import Relations
from ingot.recipe import Scope
from ingot.targets.base import Target


@dataclass
class Demands:
    """By op: the scope that speaks for its precision, and the one that speaks for its range."""

    precision: dict[Node, Scope] = field(default_factory=dict)
    method: dict[Node, Scope] = field(default_factory=dict)


def demanded(found: Relations, scopes: Sequence[Scope], target: Target) -> Demands:
    """Match the scopes, and leave each op only the precision that was asked for it."""
    nodes = list(found.options)
    matched = {scope: matches(scope, nodes) for scope in scopes}
    demands = Demands()
    for node in nodes:
        mine = [s for s in scopes if node in matched[s]]
        _settle(node, [s for s in mine if s.precision], demands.precision, matched)
        _settle(node, [s for s in mine if s.range], demands.method, matched)
    for node, scope in demands.precision.items():
        _restrict(node, scope, found, target)
    return demands


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
    found = {n for n in nodes if any(fnmatchcase(name, pattern) for name in names_of(n)[kind])}
    if not found:
        known = {name for n in nodes for name in names_of(n)[kind]}
        raise InputError(f"the scope {scope} matches nothing in this model", hint=nearest(pattern, known))
    return found


def _settle(node: Node, scopes: Sequence[Scope], into: dict[Node, Scope], matched: dict[Scope, set[Node]]) -> None:
    """The scope that matches fewest ops wins; two of one size that ask for different things are a contradiction."""
    for scope in sorted(scopes, key=lambda s: (len(matched[s]), str(s))):
        first = into.setdefault(node, scope)
        same = (first.precision, first.range) == (scope.precision, scope.range)
        if not same and len(matched[first]) == len(matched[scope]):
            raise PlanError(
                f"two scopes ask for different things at '{node.name}'",
                where=source_of(node),
                why=f"{first} asks for {_wish(first)}, {scope} asks for {_wish(scope)}, and neither is narrower",
                hint="name the value itself, or leave one of them out",
            )


def _wish(scope: Scope) -> str:
    return " and ".join(w for w in (scope.precision, scope.range and f"range {scope.range}") if w)


def _restrict(node: Node, scope: Scope, found: Relations, target: Target) -> None:
    """An op that only creates or is folded away takes any demand; another that cannot meet it is refused."""
    options, wish = found.options[node], str(scope.precision)
    if wish in options:
        found.options[node] = {wish: f"demanded by the recipe: {scope}"}
    elif list(_needs(scope, node)):
        why = found.barred.get(node) or next(iter(set(options.values())))
        raise PlanError(
            f"'{node.name}' cannot run in {wish} on {target.name}, as the scope {scope} asks",
            where=source_of(node),
            why=f"{why}; what it can be here: {', '.join(sorted(options))}",
            hint="ask for another precision, or narrow the scope",
        )


def _needs(scope: Scope, node: Node) -> Iterator[str]:
    """A scope over a whole module asks for what can be had; one that names the op or the value means exactly it."""
    yield from (k for k in ("op", "name") if k in scope.chosen)
