"""On a target without float, what could run on integers does: float there means the host, and another delegate.

Only a group of ops that does nothing but move numbers between ops of the host may stay with them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.capture.op_semantics import Kind
from ingot.plan.scale_groups import DisjointSets
from ingot.plan.state import Work


def stay_inside(work: Work) -> None:
    """Take float from the options of ops that have another, group by group."""
    if work.target.numerics.runs_float:
        return
    for group in _groups(work):
        if any(work.facts.effects[n].kind is not Kind.MOVES for n in group):
            for node in group:
                work.facts.options[node].pop("float", None)


def _groups(work: Work) -> Iterator[list[Node]]:
    """Ops with a choice, joined by what one makes and another reads."""
    free = [n for n, options in work.facts.options.items() if len(options) > 1]
    groups: DisjointSets[Node] = DisjointSets()
    groups.add(free)
    for node in free:
        for source in node.all_input_nodes:
            if source in groups:
                groups.union(source, node)
    yield from groups.groups()
