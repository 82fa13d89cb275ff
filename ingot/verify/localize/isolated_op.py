"""One op of the artefact against the same op of the graph, both given what the artefact's op read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import output_nodes
from ingot.core.subgraph import extracted, inputs_of
from ingot.plan.model import QParams
from ingot.quantize.io import quantize_inputs
from ingot.verify.check import run_exactly
from ingot.verify.localize.intermediate_outputs import stored_by
from ingot.verify.localize.search import Search, spread
from ingot.verify.metrics import sqnr

ONE_STEP = 1.5  # integer kernels may differ from the graph by one step, at a tie
FLOAT_KERNEL_DB = 60.0  # float kernels sum in other orders; what is further apart computes something else


@dataclass(frozen=True)
class Alone:
    """How far the two are apart."""

    steps: float | None  # None where the value is float
    db: float

    @property
    def differs(self) -> bool:
        return self.db < FLOAT_KERNEL_DB if self.steps is None else self.steps > ONE_STEP

    def __str__(self) -> str:
        return f"{self.db:.1f} dB apart" if self.steps is None else f"off by up to {self.steps:.0f} steps"


def first_wrong(search: Search) -> tuple[str, Alone]:
    """The value that is furthest from what the graph makes of the artefact's own values before it; ever closer.

    What comes before and after does not count, so an error that shrinks or grows on its way is found where it starts.
    """
    candidates = list(search.seen)
    while True:
        apart = {n: alone(search, n) for n in sorted(candidates, key=search.order.__getitem__)}
        name = min(apart, key=lambda n: apart[n].db)
        inside = search.inside(name)
        if not inside:
            return name, apart[name]
        chosen = spread(inside)
        search.look(chosen)
        candidates = [*chosen, name]


def alone(search: Search, name: str) -> Alone:
    """One value, from the nearest before it that were seen."""
    points = {_point(search, n): n for n in search.before(name)}
    part = extracted(search.evidence.quantized, points, [_end(search, name)])
    wanted = run_exactly(part, _fed(search, part, points), search.evidence.target)
    sides = [w[0] for w in wanted], search.seen[name].made[: len(wanted)]
    flat = [torch.cat([t.double().reshape(-1) for t in side]) for side in sides]
    return Alone(steps(search.plan.qparams(name), *flat), sqnr(*flat))


def steps(storage: QParams | None, wanted: torch.Tensor, made: torch.Tensor) -> float | None:
    """The largest difference in steps of the storage; None where it is float."""
    if storage is None or not isinstance(storage.scale, float):
        return None
    return round(float((wanted - made).abs().max()) / storage.scale, 3) if wanted.numel() else 0.0


def _end(search: Search, name: str) -> Node:
    """The value as it is returned: by a tap, or as an output of the program."""
    if name in search.taps:
        return search.taps[name]
    places = [n.name for n in output_nodes(search.evidence.program.module)]
    return output_nodes(search.evidence.quantized)[places.index(name)]


def _point(search: Search, name: str) -> Node:
    """Where the graph is cut: at the integers, since each reader has a dequantize of its own."""
    storage, tap = search.plan.qparams(name), search.taps[name]
    if storage is None:
        return tap
    return next(q for q in stored_by(search.made[name], storage) if tap in q.users)


def _fed(search: Search, part: GraphModule, points: dict[Node, str]) -> list[tuple[torch.Tensor, ...]]:
    whole = search.evidence.quantized
    places = {n: i for i, n in enumerate(n for n in whole.graph.nodes if n.op == "placeholder")}
    reads = inputs_of(whole, part)

    def value(node: Node, i: int) -> torch.Tensor:
        if node not in points:
            return search.batches[i][places[node]]
        return quantize_inputs([search.seen[points[node]].made[i]], [search.plan.qparams(points[node])])[0]

    # With state only the first batch begins where the graph does.
    count = 1 if search.evidence.program.state else len(search.batches)
    return [tuple(value(n, i) for n in reads) for i in range(count)]
