"""The least of a sum of costs over two precisions a node: exact, by a minimum cut.

Nodes whose own preference outweighs everything their neighbours could say are settled first, again and again; what is
left falls into small parts, each cut by itself. That keeps the time about linear in the size of the graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.fx import Node

Pair = tuple[str, str]
S, T = "integer", "other"


@dataclass
class Energy:
    """own[n] = (cost of the first label, of the second); push[(a, b)] = cost of a having the first and b the second."""

    precisions: dict[Node, Pair] = field(default_factory=dict)
    own: dict[Node, list[float]] = field(default_factory=dict)
    push: dict[tuple[Node, Node], float] = field(default_factory=dict)

    def add(self, node: Node, costs: dict[str, float], precisions: Pair) -> None:
        self.precisions[node] = precisions
        self.own[node] = [costs[precisions[0]], costs[precisions[1]]]

    def edge(self, a: Node, b: Node, la: Pair, lb: Pair, cost: Callable[[str, str], float]) -> None:
        """Between two free nodes the cost is split into its parts; next to a settled one it is that of the other."""
        free_a, free_b = la[0] != la[1], lb[0] != lb[1]
        if free_a and free_b:
            self._both(a, b, [[cost(x, y) for y in lb] for x in la])
        elif free_a:
            self._own(a, [cost(x, lb[0]) for x in la])
        elif free_b:
            self._own(b, [cost(la[0], y) for y in lb])

    def _own(self, node: Node, costs: list[float]) -> None:
        self.own[node] = [c + d for c, d in zip(self.own[node], costs, strict=True)]

    def _both(self, a: Node, b: Node, c: list[list[float]]) -> None:
        """c[x][y] with c00 + c11 <= c01 + c10 (alike is never dearer) as own costs and one push."""
        self._own(a, [0.0, c[1][0] - c[0][0]])
        self._own(b, [c[0][0], c[0][0] + c[1][1] - c[1][0]])
        self.push[a, b] = self.push.get((a, b), 0.0) + max(c[0][1] + c[1][0] - c[0][0] - c[1][1], 0.0)


def least(energy: Energy) -> dict[Node, str]:
    """The precision of every node that has a choice."""
    free = {n for n, (a, b) in energy.precisions.items() if a != b}
    near = _neighbours(energy, free)
    sides = _settled(energy, free, near)
    for part in _parts(free - sides.keys(), near):
        sides |= _cut(part, energy, near, sides)
    return {n: energy.precisions[n][side] for n, side in sides.items()}


def _neighbours(energy: Energy, free: set[Node]) -> dict[Node, dict[Node, None]]:
    near: dict[Node, dict[Node, None]] = {n: {} for n in energy.precisions if n in free}
    for a, b in energy.push:
        near[a][b] = near[b][a] = None
    return near


def _settled(energy: Energy, free: set[Node], near: dict[Node, dict[Node, None]]) -> dict[Node, int]:
    """Nodes that no choice of the undecided neighbours could sway."""
    sides: dict[Node, int] = {}
    waiting = deque(near)
    while waiting:
        node = waiting.popleft()
        if node in sides:
            continue
        first, second = _costs(node, energy, near, sides)
        open_ = [m for m in near[node] if m not in sides]
        if second - first >= sum(energy.push.get((node, m), 0.0) for m in open_):
            sides[node] = 0
        elif first - second >= sum(energy.push.get((m, node), 0.0) for m in open_):
            sides[node] = 1
        if node in sides:
            waiting.extend(open_)
    return sides


def _costs(node: Node, energy: Energy, near: dict[Node, dict[Node, None]], sides: dict[Node, int]) -> list[float]:
    """Own costs, with those towards neighbours that are settled."""
    first, second = energy.own[node]
    for m in near[node]:
        if sides.get(m) == 1:
            first += energy.push.get((node, m), 0.0)
        elif sides.get(m) == 0:
            second += energy.push.get((m, node), 0.0)
    return [first, second]


def _parts(left: set[Node], near: dict[Node, dict[Node, None]]) -> list[list[Node]]:
    """The undecided nodes, by connection."""
    parts, seen = [], set[Node]()
    for start in (n for n in near if n in left):
        if start in seen:
            continue
        part, waiting = [], deque([start])
        seen.add(start)
        while waiting:
            part.append(node := waiting.popleft())
            fresh = [m for m in near[node] if m in left and m not in seen]
            seen.update(fresh)
            waiting.extend(fresh)
        parts.append(part)
    return parts


def _cut(
    part: list[Node], energy: Energy, near: dict[Node, dict[Node, None]], sides: dict[Node, int]
) -> dict[Node, int]:
    """The first precision is the side of the source: who is cut from it pays the second precision's cost."""
    import networkx

    graph, number = networkx.DiGraph(), {n: i for i, n in enumerate(part)}
    for n in part:
        first, second = _costs(n, energy, near, sides)
        base = min(first, second)
        graph.add_edge(S, number[n], capacity=second - base)
        graph.add_edge(number[n], T, capacity=first - base)
        for m in near[n]:
            if m in number:
                graph.add_edge(number[n], number[m], capacity=energy.push.get((n, m), 0.0))
    _, (source, _) = networkx.minimum_cut(graph, S, T)
    return {n: 0 if number[n] in source else 1 for n in part}
