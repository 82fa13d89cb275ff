"""Which values of an artefact were observed so far, and which to observe next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ingot.core.deadline import Deadline, OutOfTime
from ingot.errors import ArtefactError
from ingot.plan.plan_data import Plan
from ingot.verify.check import Evidence
from ingot.verify.judge_output import Compared, disagreement_with_graph
from ingot.verify.localize.intermediate_outputs import (
    Batches,
    ObservedValue,
    observable_values,
    run_with_intermediates,
)

VALUES_PER_LOWERING = 8  # enough to converge fast, few enough not to change the delegates


@dataclass
class ArtefactProbe:
    """One artefact, observed a few values at a time."""

    evidence: Evidence
    plan: Plan
    batches: Batches
    deadline: Deadline
    lowering_seconds: float = 0.0  # about, for one lowering
    on_lowering: Callable[[int], None] = lambda _: None
    observed: dict[str, ObservedValue] = field(default_factory=dict)
    lowerings: int = 0
    delegates: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.observable = observable_values(self.evidence, self.plan)
        self.nodes = {n.name: n for n in self.evidence.program.module.graph.nodes}
        self.quantized_nodes = {n.name: n for n in self.evidence.quantized.graph.nodes}
        self.order = {name: i for i, name in enumerate(self.nodes)}

    def observe(self, names: Sequence[str]) -> None:
        """Lower again with these values as extra outputs."""
        self.deadline.need(self.lowering_seconds)
        self.on_lowering(self.lowerings + 1)
        start = time.monotonic()
        with within(self.deadline):
            run = run_with_intermediates(self.limited, self.plan, names, self.batches)
        self.lowering_seconds = time.monotonic() - start
        self.observed |= run.observed
        self.lowerings += 1
        self.delegates.add(run.delegates)

    @property
    def limited(self) -> Evidence:
        return limited(self.evidence, self.deadline, len(self.batches))

    def diverges(self, name: str) -> bool:
        return diverges_from_graph(self.observed[name])

    def nearest_observed(self, name: str) -> list[str]:
        """The nearest observed values upstream from which the graph can be resumed."""
        return [n for n in self._upstream(name, self._can_resume) if self._can_resume(n)]

    def unobserved_between(self, name: str) -> list[str]:
        """The values between those and `name` that can still be observed, in graph order."""
        upstream = self._upstream(name, self._can_resume)
        found = [n for n in upstream if n in self.observable and n not in self.observed]
        return sorted(found, key=self.order.__getitem__)

    def _can_resume(self, name: str) -> bool:
        return name in self.observed and name in self.observable

    def _upstream(self, name: str, stop: Callable[[str], bool]) -> set[str]:
        found, waiting = set[str](), [*self.nodes[name].all_input_nodes]
        while waiting:
            node = waiting.pop()
            if node.name not in found:
                found.add(node.name)
                waiting += [] if stop(node.name) else node.all_input_nodes
        return found


def limited(evidence: Evidence, deadline: Deadline, batches: int) -> Evidence:
    """With a timeout for each batch that ends all of them at the deadline."""
    seconds = min(evidence.recipe.run_timeout, max(deadline.left, 0.1) / batches)
    return replace(evidence, recipe=replace(evidence.recipe, run_timeout=seconds))


@contextmanager
def within(deadline: Deadline) -> Iterator[None]:
    """A run that the deadline ended is no error of the artefact."""
    try:
        yield
    except ArtefactError as e:
        if deadline.passed:
            raise OutOfTime from e
        raise


def evenly_spaced(names: Sequence[str], most: int = VALUES_PER_LOWERING) -> list[str]:
    """At most `most` names, evenly spaced over the graph; the last one is always among them."""
    if len(names) <= most:
        return list(names)
    return [names[math.ceil((i + 1) * len(names) / most) - 1] for i in range(most)]


def diverges_from_graph(value: ObservedValue) -> bool:
    """As verification finds it; or dead or non-finite where the graph is not."""
    return disagreement_with_graph(Compared(value.reference, value.quantized, value.artefact)) is not None
