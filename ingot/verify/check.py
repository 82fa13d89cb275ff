"""Run the artefact and compare three ways: float model, quantized graph, artefact; per output and per channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, restore_state
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check, Delegate, HostOp, OutputCheck, ProgramIO
from ingot.core.batched import run_batched, writes
from ingot.errors import InputError
from ingot.quantize.io import dequantize_outputs, quantize_inputs
from ingot.targets.base import Target
from ingot.verify.localize.graph_errors import culprit_of
from ingot.verify.metrics import Comparison, measure
from ingot.verify.reference.interpreter import evaluate

# Two runs of one deep int8 net that differ in a single tie end with independent rounding noise: 3 dB further from each
# other than each is from the float model. So the artefact is compared with its graph down to a bit below that, and must
# be as near to the float model as its graph is.
CHAOS_DB = 6.0
WORSE_DB = 3.0


@dataclass(frozen=True)
class Evidence:
    """What a casting is checked against; kept with it so that verify() can run again on other batches."""

    program: Program
    quantized: GraphModule
    target: Target
    recipe: Recipe
    io: ProgramIO
    delegates: tuple[Delegate, ...] = ()
    method: str = "forward"
    host_ops: tuple[HostOp, ...] = ()
    in_double: bool = True  # its quantized graph is evaluated so; a large model's weights would fill the memory
    others: Mapping[str, Evidence] = field(default_factory=dict)  # of further methods
    ranges: Ranges | None = None  # what it was planned with, where that is known
    batch: tuple[torch.Tensor, ...] | None = None  # one of those that it was checked on


def verify_artefact(pte: bytes, evidence: Evidence, batches: Iterable[tuple[torch.Tensor, ...]]) -> Check:
    """Execute `pte` on the batches, up to the recipe's number, and judge every output."""
    recipe, program = evidence.recipe, evidence.program
    chosen = list(islice(batches, recipe.verify_batches))
    if not chosen:
        raise InputError("no batches to verify with", hint="give at least one input tuple")
    # Where the program has state the batches are a sequence: each starts from what the one before left.
    artefact = run_artefact(pte, evidence, chosen)
    reference = run_graph(program.reference, chosen, program.state)
    quantized = run_quantized(evidence, chosen)
    outputs = tuple(_judge(i, program, recipe, reference, quantized, artefact) for i in range(len(reference[0])))
    passed = all(o.problem is None for o in outputs)
    culprit = None if passed else culprit_of(program, evidence.quantized, chosen)
    return Check(evidence.target.runner.executed_on(), len(chosen), outputs, passed, culprit)


def run_artefact(
    pte: bytes, evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]
) -> list[list[torch.Tensor]]:
    """The program itself, wherever its target runs programs; float in and out, whatever it takes and gives."""
    given = [quantize_inputs(batch, evidence.io.inputs) for batch in batches]
    files, seconds = {d.digest: d.files for d in evidence.delegates}, evidence.recipe.run_timeout
    run, method = evidence.target.runner.run, evidence.method
    made = run(pte, given, files=files, timeout=seconds, fresh=False, method=method)
    return [dequantize_outputs(tensors_of(o), evidence.io.outputs) for o in made]


def run_graph(
    module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], state: dict[str, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """The graph in eager torch, the batches in sequence from the initial state."""
    if not state and not writes(module):
        return [tensors_of(o) for o in run_batched(module, batches)]
    restore_state(module, state)
    with torch.no_grad():
        results = [[t.clone() for t in tensors_of(module(*batch))] for batch in batches]  # a buffer may be returned
    restore_state(module, state)
    return results


def run_quantized(evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]) -> list[list[torch.Tensor]]:
    """In double precision; in float32 where the graph writes state, or has an op that takes float32 only."""
    module, state = evidence.quantized, evidence.program.state
    if state or not evidence.in_double:
        return run_graph(module, batches, state)
    return run_exactly(module, batches, evidence.target)


def run_exactly(module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], target: Target) -> Runs:
    with suppress(RuntimeError, NotImplementedError, AssertionError):
        return [tensors_of(o) for o in evaluate(module, batches, target)]
    return run_graph(module, batches, {})


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """What can be compared: a returned None or python number is left out."""
    return [o for o in torch.utils._pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]


Runs = list[list[torch.Tensor]]  # per batch, per output


def _judge(i: int, program: Program, recipe: Recipe, reference: Runs, quantized: Runs, artefact: Runs) -> OutputCheck:
    name = program.output_names[i] if i < len(program.output_names) else f"output {i}"
    float_, graph, made = ([batch[i] for batch in side] for side in (reference, quantized, artefact))
    to_float, to_graph = measure(float_, made), measure(graph, made)
    problem = _problem(recipe, to_float, to_graph, measure(float_, graph).sqnr_db)
    return OutputCheck(
        name, to_float.sqnr_db, to_float.max_abs_error, to_float.worst_channel_db, to_graph.sqnr_db, problem
    )


def _problem(recipe: Recipe, to_float: Comparison, to_graph: Comparison, graph_db: float) -> str | None:
    """Why an output fails, in words; None when it is good."""
    if to_float.fault:
        return to_float.fault
    if (strayed := unfaithful(recipe, to_float, to_graph, graph_db)) is not None:
        return strayed
    if not to_float.sqnr_db >= recipe.min_sqnr_db:
        return f"far from the float model: {to_float.sqnr_db:.1f} dB, bar {recipe.min_sqnr_db:g} dB"
    return None


def unfaithful(recipe: Recipe, to_float: Comparison, to_graph: Comparison, graph_db: float) -> str | None:
    """How the artefact leaves its own quantized graph, in words; None where it does not."""
    if to_graph.sqnr_db < min(recipe.min_faithful_db, graph_db - CHAOS_DB):
        return f"the artefact does not compute its own quantized graph: {to_graph.sqnr_db:.1f} dB between them"
    if to_graph.sqnr_db < recipe.min_faithful_db and to_float.sqnr_db < graph_db - WORSE_DB:
        return f"worse than its quantized graph: {to_float.sqnr_db:.1f} dB, the graph has {graph_db:.1f} dB"
    return None
