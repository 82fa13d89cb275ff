"""The first value at which an artefact leaves its quantized graph: a few values at a time, ever closer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ingot.compare import measure
from ingot.localize.tapping import Batches, Look, Seen, look, taps
from ingot.plan.model import Plan
from ingot.verify import Evidence, unfaithful

AT_ONCE = 8  # values returned by one lowering: enough to go fast, few enough to leave delegates as they are


@dataclass
class Search:
    """What was seen so far of one artefact."""

    evidence: Evidence
    plan: Plan
    batches: Batches
    seen: dict[str, Seen] = field(default_factory=dict)
    lowerings: int = 0
    delegates: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.taps = taps(self.evidence, self.plan)
        self.order = {n.name: i for i, n in enumerate(self.evidence.program.module.graph.nodes)}
        self.nodes = {n.name: n for n in self.evidence.program.module.graph.nodes}
        self.made = {n.name: n for n in self.evidence.quantized.graph.nodes}

    def look(self, names: Sequence[str]) -> Look:
        found = look(self.evidence, self.plan, names, self.batches)
        self.seen |= found.seen
        self.lowerings += 1
        self.delegates.add(found.delegates)
        return found

    def strays(self, name: str) -> bool:
        """By the bars of verification; or dead or not finite where the graph is alive."""
        return strays(self.evidence, self.seen[name])

    def first(self, wrong: str) -> str:
        """From a value that is wrong back to one that is wrong although all it reads is right."""
        while unknown := self._between(wrong):
            self.look(spread(unknown))
            bad = [n for n in self.seen if self.strays(n) and n in self._ancestors(wrong)]
            wrong = min([*bad, wrong], key=self.order.__getitem__)
        return wrong

    def parents(self, name: str) -> list[str]:
        """The nearest values before it that can be looked at."""
        return [n for n in self._back(name, lambda n: n in self.taps) if n in self.taps]

    def _between(self, wrong: str) -> list[str]:
        found = self._back(wrong, self.seen.__contains__)
        return sorted((n for n in found if n in self.taps and n not in self.seen), key=self.order.__getitem__)

    def _ancestors(self, name: str) -> set[str]:
        return self._back(name, lambda n: False)

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
    to_float, to_graph = measure(value.wanted, value.made), measure(value.graph, value.made)
    graph_db = measure(value.wanted, value.graph).sqnr_db
    return to_graph.fault is not None or unfaithful(evidence.recipe, to_float, to_graph, graph_db) is not None
