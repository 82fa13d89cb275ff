"""A cheaper way to the op on which a backend fails: lower a part of the graph by itself, then half of it, and so on.

All these parts together cost about two lowerings of the whole. A failure that needs the rest of the graph is not found
this way; the search does not rely on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

from ingot.core.deadline import Deadline
from ingot.core.fx import is_call, value_of
from ingot.core.progress import Silent, Steps
from ingot.core.subgraph import extract_subgraph, subgraph_inputs
from ingot.errors import ArtefactError, LowerError
from ingot.plan.plan_data import Plan
from ingot.result.lower_and_verify import QuantizedProgram, lowered
from ingot.result.recovery.failure import BackendFailure, Candidate, backend_failure
from ingot.verify.check import run_artefact
from ingot.verify.minify.variant import values_of

Inputs = tuple[torch.Tensor, ...]
FEWEST = 8  # ops; with fewer the whole program is quick to lower


@dataclass
class PartSearch:
    """`seconds`: how long the search may take; `batch`: flat inputs of the program."""

    work: QuantizedProgram
    batch: Inputs
    seconds: float
    on_trial: Callable[[], None] = lambda: None
    trials: int = 0

    def narrow(self, candidates: Sequence[Candidate], failure: BackendFailure) -> Sequence[Candidate]:
        """The smallest run of consecutive ops that was seen to fail alike; empty: no half does."""
        deadline, order = Deadline(self.seconds), {n.name: i for i, n in enumerate(self.work.form.module.graph.nodes)}
        current: Sequence[Candidate] = sorted(candidates, key=lambda c: order[c.name])
        if len(current) < FEWEST or self.work.form.state or self.work.others:
            return ()
        found: Sequence[Candidate] = ()
        while len(current) > 1 and not deadline.passed:
            halves = current[: len(current) // 2], current[len(current) // 2 :]
            bad = next((h for h in halves if self._fails_alike(h, failure)), None)
            if bad is None:
                break
            found = current = bad
        return found

    def _fails_alike(self, some: Sequence[Candidate], failure: BackendFailure) -> bool:
        self.trials += 1
        self.on_trial()
        names = {c.name for c in some}
        with suppress(_NoPart):
            part, inputs = part_of(self.work, names, self.batch)
            try:
                with quiet_logs():
                    casting = lowered(part, Steps(Silent()))
                if failure.stage != "lower":
                    run_artefact(casting.pte, casting.needed_evidence, [inputs])
            except (LowerError, ArtefactError) as e:
                return backend_failure(e).signature == failure.signature
        return False


@contextmanager
def quiet_logs() -> Iterator[None]:
    """A trial is expected to fail: what backends log then is not for the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _NoPart(Exception):
    """These ops cannot be cut out."""


def part_of(work: QuantizedProgram, names: set[str], batch: Inputs) -> tuple[QuantizedProgram, Inputs]:
    """The ops from the first to the last of `names` as a program of its own, and its inputs."""
    module = work.form.module
    kept = _range(module, names)
    given = {n for k in kept for n in k.all_input_nodes if n not in kept and n.op != "get_attr"}
    wanted = [n for n in kept if isinstance(value_of(n), torch.Tensor) and not all(u in kept for u in n.users)]
    if not given or not wanted or not all(isinstance(value_of(n), torch.Tensor) for n in given):
        raise _NoPart
    part = extract_subgraph(module, given, wanted)
    reads = subgraph_inputs(module, part)
    quantized = _quantized_part(work, [n.name for n in reads], wanted)
    inputs = values_of(work.form, reads, batch)
    form = replace(
        work.form, module=part, reference=part, example_inputs=inputs, dynamic_shapes=None, notes=(), bounded_dims={}
    )
    return replace(work, program=form, form=form, quantized=quantized, plan=_plan_of_part(work.plan, part)), inputs


def _range(module: GraphModule, names: set[str]) -> dict[Node, None]:
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    places = [i for i, n in enumerate(nodes) if n.name in names]
    return dict.fromkeys(nodes[places[0] : places[-1] + 1])


def _quantized_part(work: QuantizedProgram, reads: Sequence[str], wanted: Sequence[Node]) -> GraphModule:
    """The same ops of the quantized graph: inputs before their quantize, outputs after their dequantize."""
    nodes = {n.name: n for n in work.quantized.graph.nodes}
    if not all(n in nodes for n in (*reads, *(w.name for w in wanted))):
        raise _NoPart
    ends = [_dequantized(nodes[w.name]) for w in wanted]
    part = extract_subgraph(work.quantized, {nodes[n] for n in reads}, ends)
    if [n.name for n in part.graph.nodes if n.op == "placeholder"] != list(reads) or len(set(ends)) != len(ends):
        raise _NoPart
    return part


def _dequantized(node: Node) -> Node:
    quantizes = [u for u in node.users if is_call(u, "quantize_per_tensor")]
    after = [u for q in quantizes for u in q.users if is_call(u, "dequantize_per_tensor")]
    return after[0] if after and len(quantizes) == len(node.users) else node


def _plan_of_part(plan: Plan, part: GraphModule) -> Plan:
    """Without what the plan says of graph inputs and outputs: those of a part are float."""
    ops = {n.name for n in part.graph.nodes if n.op == "call_function"}
    kept = tuple(d for d in plan.decisions if d.point.node in ops)
    return replace(plan, decisions=kept, channels_last=())
