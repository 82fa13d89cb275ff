"""What was seen of an artefact so far, and where one may look next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingot.plan.model import Plan
from ingot.verify.check import Evidence, unfaithful
from ingot.verify.localize.intermediate_outputs import Batches, Seen, look, taps
from ingot.verify.metrics import measure

AT_ONCE = 8  # values returned by one lowering: enough to go fast, few enough to leave delegates as they are


@dataclass
class Search:
    """One artefact, looked into a few values at a time."""

    evidence: Evidence
    plan: Plan
    batches: Batches
    seen: dict[str, Seen] = field(default_factory=dict)
    lowerings: int = 0
    delegates: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.taps = taps(self.evidence, self.plan)
        self.nodes = {n.name: n for n in self.evidence.program.module.graph.nodes}
        self.made = {n.name: n for n in self.evidence.quantized.graph.nodes}
        self.order = {name: i for i, name in enumerate(self.nodes)}

    def look(self, names: Sequence[str]) -> None:
        """Lower again with these returned."""
        found = look(self.evidence, self.plan, names, self.batches)
        self.seen |= found.seen
        self.lowerings += 1
        self.delegates.add(found.delegates)

    def strays(self, name: str) -> bool:
        return strays(self.evidence, self.seen[name])

    def before(self, name: str) -> list[str]:
        """The nearest values on the way to it that were seen and from which the graph can go on."""
        return [n for n in self._back(name, self._is_start) if self._is_start(n)]

    def inside(self, name: str) -> list[str]:
        """The values between those and it that were not looked at yet, in graph order."""
        found = [n for n in self._back(name, self._is_start) if n in self.taps and n not in self.seen]
        return sorted(found, key=self.order.__getitem__)

    def _is_start(self, name: str) -> bool:
        return name in self.seen and name in self.taps

    def _back(self, name: str, stop: Callable[[str], bool]) -> set[str]:
        found, waiting = set[str](), [*self.nodes[name].all_input_nodes]
        while waiting:
            node = waiting.pop()
            if node.name not in found:
                found.add(node.name)
                waiting += [] if stop(node.name) else node.all_input_nodes
        return found


def spread(names: Sequence[str], most: int = AT_ONCE) -> list[str]:
    """Evenly over the graph, the last one too."""
    if len(names) <= most:
        return list(names)
    return [names[math.ceil((i + 1) * len(names) / most) - 1] for i in range(most)]


def strays(evidence: Evidence, value: Seen) -> bool:
    """By the bars of verification; or dead or not finite where the graph is alive."""
    to_float, to_graph = measure(value.wanted, value.made), measure(value.graph, value.made)
    graph_db = measure(value.wanted, value.graph).sqnr_db
    return to_graph.fault is not None or unfaithful(evidence.recipe, to_float, to_graph, graph_db) is not None
