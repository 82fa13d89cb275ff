"""Which values a batch needs: where(p, a, b) with one predicate for all elements needs a or b, not both.

Values of the branch that a batch does not take are computed, but not recorded: they may be far from what the branch
sees in use. A branch that no batch takes has no statistics and stays float.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import is_float_op, value_name, value_of

Needs = frozenset[tuple[Node, bool]]  # predicates, and the value that each must have
ALWAYS: Needs = frozenset()


def needs_of(nodes: Iterable[Node]) -> dict[Node, Needs]:
    """The predicates that every reader of a value depends on. Values that are always needed are left out."""
    found = dict[Node, Needs]()
    for node in reversed(list(nodes)):
        readers = [_needed_by(user, node, found.get(user, ALWAYS)) for user in node.users]
        if readers and (common := frozenset.intersection(*readers)):
            found[node] = common
    return found


def untaken_values(nodes: Iterable[Node], recorded: Container[str]) -> frozenset[str]:
    """Values of branches that no batch took, and choices between one of them and another: no range is known."""
    nodes = list(nodes)
    missing = {n for n in needs_of(nodes) if is_float_op(n) and value_name(n) not in recorded}
    choices = {n for n in nodes if _chooses(n) and not missing.isdisjoint(n.args[1:])}  # type: ignore[arg-type]
    return frozenset(map(value_name, missing | choices))


def _needed_by(user: Node, node: Node, own: Needs) -> Needs:
    if not _chooses(user):
        return own
    predicate, a, b = user.args
    sides = [side for side, value in ((True, a), (False, b)) if value is node]
    only = predicate is not node and len(sides) == 1
    return own | {(predicate, sides[0])} if only else own  # type: ignore[arg-type]


def _chooses(node: Node) -> bool:
    if node.target is not torch.ops.aten.where.self or not isinstance(node.args[0], Node):
        return False
    val = value_of(node.args[0])
    return isinstance(val, torch.Tensor) and val.dim() == 0


def is_needed(needs: Needs, values: Mapping[Node, Any]) -> bool:
    return all(bool(values[predicate]) == side for predicate, side in needs if predicate in values)
