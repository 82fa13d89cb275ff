"""Compare one op of the artefact with the same op of the graph, both on the values that the artefact's op read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import output_nodes
from ingot.core.subgraph import extract_subgraph, subgraph_inputs
from ingot.plan.plan_data import QParams
from ingot.quantize.integer_io import quantize_inputs
from ingot.verify.check import run_in_double
from ingot.verify.localize.intermediate_outputs import quantize_nodes
from ingot.verify.localize.observed_values import ArtefactProbe, evenly_spaced
from ingot.verify.metrics import sqnr

TOLERATED_STEPS = 1.5  # integer kernels may differ from the graph by one step, at a tie
FLOAT_KERNEL_DB = 60.0  # float kernels sum in another order; a lower SQNR means another computation


@dataclass(frozen=True)
class IsolatedError:
    """The difference between an op of the artefact and the same op of the graph, on equal inputs."""

    steps: float | None  # None where the value is float
    db: float

    @property
    def differs(self) -> bool:
        return self.db < FLOAT_KERNEL_DB if self.steps is None else self.steps > TOLERATED_STEPS

    def __str__(self) -> str:
        if self.steps is None:
            return f"SQNR {self.db:.1f} dB, threshold {FLOAT_KERNEL_DB:g} dB"
        return f"largest error {self.steps:.0f} steps, tolerance 1"


def most_divergent_op(probe: ArtefactProbe) -> tuple[str, IsolatedError]:
    """The op with the lowest SQNR on the artefact's own inputs; the interval is refined until it is one op.

    Errors upstream and downstream do not count. So an error that shrinks or grows along the graph is found at its op.
    """
    candidates = list(probe.observed)
    while True:
        errors = {n: isolated_error(probe, n) for n in sorted(candidates, key=probe.order.__getitem__)}
        name = min(errors, key=lambda n: errors[n].db)
        between = probe.unobserved_between(name)
        if not between:
            return name, errors[name]
        chosen = evenly_spaced(between)
        probe.observe(chosen)
        candidates = [*chosen, name]


def isolated_error(probe: ArtefactProbe, name: str) -> IsolatedError:
    """The error of one value, computed from the nearest observed values upstream."""
    probe.deadline.need()
    starts = {_start_node(probe, n): n for n in probe.nearest_observed(name)}
    part = extract_subgraph(probe.evidence.quantized, starts, [_end_node(probe, name)])
    wanted = run_in_double(part, _inputs(probe, part, starts), probe.evidence.target)
    sides = [w[0] for w in wanted], probe.observed[name].artefact[: len(wanted)]
    flat = [torch.cat([t.double().reshape(-1) for t in side]) for side in sides]
    return IsolatedError(error_in_steps(probe.plan.qparams(name), *flat), sqnr(*flat))


def error_in_steps(qparams: QParams | None, wanted: torch.Tensor, made: torch.Tensor) -> float | None:
    """The largest difference in units of the scale; None where the value is float."""
    if qparams is None or not isinstance(qparams.scale, float):
        return None
    return round(float((wanted - made).abs().max()) / qparams.scale, 3) if wanted.numel() else 0.0


def _end_node(probe: ArtefactProbe, name: str) -> Node:
    """The node that returns the value: as an extra output, or as an output of the program."""
    if name in probe.observable:
        return probe.observable[name]
    places = [n.name for n in output_nodes(probe.evidence.program.module)]
    return output_nodes(probe.evidence.quantized)[places.index(name)]


def _start_node(probe: ArtefactProbe, name: str) -> Node:
    """Where the subgraph starts: at the quantize, since each reader has its own dequantize."""
    qparams, returned = probe.plan.qparams(name), probe.observable[name]
    if qparams is None:
        return returned
    return next(q for q in quantize_nodes(probe.quantized_nodes[name], qparams) if returned in q.users)


def _inputs(probe: ArtefactProbe, part: GraphModule, starts: dict[Node, str]) -> list[tuple[torch.Tensor, ...]]:
    graph = probe.evidence.quantized
    places = {n: i for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    reads = subgraph_inputs(graph, part)

    def value(node: Node, i: int) -> torch.Tensor:
        if node not in starts:
            return probe.batches[i][places[node]]
        return quantize_inputs([probe.observed[starts[node]].artefact[i]], [probe.plan.qparams(starts[node])])[0]

    # With state only the first batch starts from the state that the graph has.
    count = 1 if probe.evidence.program.state else len(probe.batches)
    return [tuple(value(n, i) for n in reads) for i in range(count)]
