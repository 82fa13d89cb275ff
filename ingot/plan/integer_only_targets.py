"""On a target without float kernels, ops that can run on integers do: a float op would split the delegate.

The exception is a group of ops that only moves values between host ops: it may stay on the host with them. The recipe
key `float_on_host` leaves the choice to the price of noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ingot.capture.op_semantics import Kind
from ingot.plan.scale_groups import DisjointSets
from ingot.plan.solver_state import SolverState


def keep_delegated(state: SolverState) -> None:
    """Remove float from the options of ops that can run on integers, group by group."""
    if state.target.numerics.runs_float or state.recipe.float_on_host:
        return
    for group in _connected_groups(state):
        if any(state.constraints.effects[n].kind is not Kind.MOVES for n in group):
            for node in group:
                state.constraints.options[node].pop("float", None)


def _connected_groups(state: SolverState) -> Iterator[list[Node]]:
    """Connected components of the ops that have a choice."""
    free = [n for n, options in state.constraints.options.items() if len(options) > 1]
    groups: DisjointSets[Node] = DisjointSets()
    groups.add(free)
    for node in free:
        for source in node.all_input_nodes:
            if source in groups:
                groups.union(source, node)
    yield from groups.groups()
