"""Exact minimisation of a binary pairwise energy by a minimum s-t cut (Kolmogorov and Zabih, 2004).

Each node takes one of two precisions. Nodes whose unary costs dominate all their pairwise costs are assigned first,
until none is left. The rest falls into small connected components, each with a cut of its own. That keeps the time
about linear in the size of the graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.fx import Node

Pair = tuple[str, str]
SOURCE, SINK = "first", "second"


@dataclass
class PairwiseEnergy:
    """unary[n]: costs of the first and the second choice; pairwise[a, b]: cost if a takes the first, b the second."""

    choices: dict[Node, Pair] = field(default_factory=dict)
    unary: dict[Node, list[float]] = field(default_factory=dict)
    pairwise: dict[tuple[Node, Node], float] = field(default_factory=dict)

    def add_node(self, node: Node, costs: dict[str, float], choices: Pair) -> None:
        self.choices[node] = choices
        self.unary[node] = [costs[choices[0]], costs[choices[1]]]

    def add_edge(self, a: Node, b: Node, of_a: Pair, of_b: Pair, cost: Callable[[str, str], float]) -> None:
        """A pairwise cost between two free nodes; next to a fixed node it is a unary cost of the other."""
        free_a, free_b = of_a[0] != of_a[1], of_b[0] != of_b[1]
        if free_a and free_b:
            self._add_pairwise(a, b, [[cost(x, y) for y in of_b] for x in of_a])
        elif free_a:
            self._add_unary(a, [cost(x, of_b[0]) for x in of_a])
        elif free_b:
            self._add_unary(b, [cost(of_a[0], y) for y in of_b])

    def _add_unary(self, node: Node, costs: list[float]) -> None:
        self.unary[node] = [c + d for c, d in zip(self.unary[node], costs, strict=True)]

    def _add_pairwise(self, a: Node, b: Node, c: list[list[float]]) -> None:
        """Submodular costs c[x][y] (c00 + c11 <= c01 + c10) as unary costs and one non-negative pairwise cost."""
        self._add_unary(a, [0.0, c[1][0] - c[0][0]])
        self._add_unary(b, [c[0][0], c[0][0] + c[1][1] - c[1][0]])
        self.pairwise[a, b] = self.pairwise.get((a, b), 0.0) + max(c[0][1] + c[1][0] - c[0][0] - c[1][1], 0.0)


Neighbours = dict[Node, dict[Node, None]]
Assignment = dict[Node, int]  # 0: the first choice, 1: the second


def minimize(energy: PairwiseEnergy) -> dict[Node, str]:
    """The optimal precision of every free node."""
    free = {n for n, (a, b) in energy.choices.items() if a != b}
    neighbours = _neighbours(energy, free)
    assigned = _assign_dominated(energy, neighbours)
    for component in _components(free - assigned.keys(), neighbours):
        assigned |= _cut(component, energy, neighbours, assigned)
    return {n: energy.choices[n][choice] for n, choice in assigned.items()}


def _neighbours(energy: PairwiseEnergy, free: set[Node]) -> Neighbours:
    neighbours: Neighbours = {n: {} for n in energy.choices if n in free}
    for a, b in energy.pairwise:
        neighbours[a][b] = neighbours[b][a] = None
    return neighbours


def _assign_dominated(energy: PairwiseEnergy, neighbours: Neighbours) -> Assignment:
    """Nodes whose choice is optimal whatever their unassigned neighbours take."""
    assigned: Assignment = {}
    queue = deque(neighbours)
    while queue:
        node = queue.popleft()
        if node in assigned:
            continue
        first, second = _unary_costs(node, energy, neighbours, assigned)
        unassigned = [m for m in neighbours[node] if m not in assigned]
        if second - first >= sum(energy.pairwise.get((node, m), 0.0) for m in unassigned):
            assigned[node] = 0
        elif first - second >= sum(energy.pairwise.get((m, node), 0.0) for m in unassigned):
            assigned[node] = 1
        if node in assigned:
            queue.extend(unassigned)
    return assigned


def _unary_costs(node: Node, energy: PairwiseEnergy, neighbours: Neighbours, assigned: Assignment) -> list[float]:
    """Unary costs plus the pairwise costs towards assigned neighbours."""
    first, second = energy.unary[node]
    for m in neighbours[node]:
        if assigned.get(m) == 1:
            first += energy.pairwise.get((node, m), 0.0)
        elif assigned.get(m) == 0:
            second += energy.pairwise.get((m, node), 0.0)
    return [first, second]


def _components(nodes: set[Node], neighbours: Neighbours) -> list[list[Node]]:
    """Connected components of the unassigned nodes."""
    components, seen = [], set[Node]()
    for start in (n for n in neighbours if n in nodes):
        if start in seen:
            continue
        component, queue = [], deque([start])
        seen.add(start)
        while queue:
            component.append(node := queue.popleft())
            fresh = [m for m in neighbours[node] if m in nodes and m not in seen]
            seen.update(fresh)
            queue.extend(fresh)
        components.append(component)
    return components


def _cut(component: list[Node], energy: PairwiseEnergy, neighbours: Neighbours, assigned: Assignment) -> Assignment:
    """Nodes on the source side take their first choice; cutting a node from the source costs its second."""
    import networkx

    graph, number = networkx.DiGraph(), {n: i for i, n in enumerate(component)}
    for n in component:
        first, second = _unary_costs(n, energy, neighbours, assigned)
        base = min(first, second)
        graph.add_edge(SOURCE, number[n], capacity=second - base)
        graph.add_edge(number[n], SINK, capacity=first - base)
        for m in neighbours[n]:
            if m in number:
                graph.add_edge(number[n], number[m], capacity=energy.pairwise.get((n, m), 0.0))
    _, (source_side, _) = networkx.minimum_cut(graph, SOURCE, SINK)
    return {n: 0 if number[n] in source_side else 1 for n in component}
