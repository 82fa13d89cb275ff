"""Run the artefact and compare three ways, per output: float model, quantized graph, artefact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, restore_state
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check, Delegate, HostOp, OutputCheck, ProgramIO
from ingot.core.run_batched import has_mutating_op, run_batched
from ingot.errors import ArtefactError, InputError
from ingot.quantize.integer_io import dequantize_outputs, quantize_inputs
from ingot.targets.base import Target
from ingot.verify.localize.graph_errors import describe_largest_drop
from ingot.verify.metrics import Comparison, measure
from ingot.verify.reference.interpreter import evaluate

# Two runs of a deep int8 net that round one tie differently end with independent rounding noise. The SQNR between them
# is then 3 dB below the SQNR of each against the float model. So below min_faithful_db the artefact may differ from its
# graph by that much and a margin, but it must be as close to the float model as its graph is.
TIE_DIVERGENCE_DB = 6.0
MAX_LOSS_TO_GRAPH_DB = 3.0

CHUNK = 16  # batches whose intermediate values are in memory together
CLEARLY_NEARER_DB = 20.0  # nearer to its graph than to the float model by this: the rest is quantization error


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
    """Execute `pte` on all `batches` and check every output against the thresholds of the recipe."""
    recipe, program = evidence.recipe, evidence.program
    chosen = list(batches)
    if not chosen:
        raise InputError("no batches to verify with", hint="give at least one input tuple")
    # With state the batches are a sequence: each starts from the state that the previous one left.
    artefact = run_artefact(pte, evidence, chosen)
    reference = run_graph(program.reference, chosen, program.state)
    quantized = run_quantized(evidence, chosen)
    outputs = tuple(_check_output(i, program, recipe, reference, quantized, artefact) for i in range(len(reference[0])))
    passed = all(o.problem is None for o in outputs)
    culprit = None if passed else describe_largest_drop(program, evidence.quantized, chosen)
    return Check(evidence.target.runner.executed_on(), len(chosen), outputs, passed, culprit)


def run_artefact(
    pte: bytes, evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]
) -> list[list[torch.Tensor]]:
    """Run the program on its target. Inputs are encoded and outputs decoded, so both are float here."""
    given = [quantize_inputs(batch, evidence.io.inputs) for batch in batches]
    files, seconds = {d.digest: d.files for d in evidence.delegates}, evidence.recipe.run_timeout
    run, method = evidence.target.runner.run, evidence.method
    made = run(pte, given, files=files, timeout=seconds, fresh=False, method=method)
    outputs, wanted = [flat_tensors(o) for o in made], len(evidence.io.outputs)
    if (wrong := next((len(o) for o in outputs if len(o) != wanted), None)) is not None:
        why, hint = f"the program was lowered with {wanted}", "is it the file of this model? Cast the model again"
        raise ArtefactError(f"the artefact gives {wrong} outputs", why=why, hint=hint)
    return [dequantize_outputs(o, evidence.io.outputs) for o in outputs]


def run_graph(
    module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], state: dict[str, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Run the graph in eager torch: the batches in sequence, from the initial state."""
    if not state and not has_mutating_op(module):
        chunks = (batches[i : i + CHUNK] for i in range(0, len(batches), CHUNK))
        return [flat_tensors(o) for chunk in chunks for o in run_batched(module, chunk)]
    restore_state(module, state)
    with torch.no_grad():
        results = [[t.clone() for t in flat_tensors(module(*batch))] for batch in batches]  # a buffer may be returned
    restore_state(module, state)
    return results


def run_quantized(evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]) -> list[list[torch.Tensor]]:
    """Run the quantized graph in double precision; in float32 if it writes state or has a float32-only op."""
    module, state = evidence.quantized, evidence.program.state
    if state or not evidence.in_double:
        return run_graph(module, batches, state)
    return run_in_double(module, batches, evidence.target)


def run_in_double(module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], target: Target) -> Runs:
    """Evaluate the graph with the reference interpreter; in eager float32 where an op has no double kernel."""
    with suppress(RuntimeError, NotImplementedError, AssertionError):
        return [flat_tensors(o) for o in evaluate(module, batches, target)]
    return run_graph(module, batches, {})


def flat_tensors(outputs: Any) -> list[torch.Tensor]:
    """The returned tensors as a flat list; a returned None or Python number is dropped."""
    return [o for o in torch.utils._pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]


Runs = list[list[torch.Tensor]]  # per batch, per output


def _check_output(
    i: int, program: Program, recipe: Recipe, reference: Runs, quantized: Runs, artefact: Runs
) -> OutputCheck:
    name = program.output_names[i] if i < len(program.output_names) else f"output {i}"
    float_, graph, made = ([batch[i] for batch in side] for side in (reference, quantized, artefact))
    to_float, to_graph = measure(float_, made), measure(graph, made)
    problem = _dtype_problem(float_, made) or _problem(recipe, to_float, to_graph, measure(float_, graph).sqnr_db)
    return OutputCheck(
        name, to_float.sqnr_db, to_float.max_abs_error, to_float.worst_channel_db, to_graph.sqnr_db, problem
    )


def _dtype_problem(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str | None:
    """The caller reads the bytes of an output: int32 where int64 is expected is other numbers."""
    pairs = [(w.dtype, g.dtype) for w, g in zip(want, got, strict=True) if w.dtype != g.dtype]
    return f"dtype {pairs[0][1]} instead of {pairs[0][0]}" if pairs else None


def _problem(recipe: Recipe, to_float: Comparison, to_graph: Comparison, graph_db: float) -> str | None:
    """Why an output fails the check; None if it passes."""
    if to_float.defect:
        return to_float.defect
    if (mismatch := graph_mismatch(recipe, to_float, to_graph, graph_db)) is not None:
        return mismatch
    if not to_float.sqnr_db >= recipe.min_sqnr_db:
        return f"far from the float model: SQNR {to_float.sqnr_db:.1f} dB, threshold {recipe.min_sqnr_db:g} dB"
    return None


def graph_mismatch(recipe: Recipe, to_float: Comparison, to_graph: Comparison, graph_db: float) -> str | None:
    """How the artefact and its quantized graph disagree; None if they agree."""
    threshold = min(recipe.min_faithful_db, graph_db - TIE_DIVERGENCE_DB)
    if to_graph.sqnr_db < threshold:
        return f"artefact and quantized graph disagree: SQNR {to_graph.sqnr_db:.1f} dB, threshold {threshold:.1f} dB"
    if to_graph.sqnr_db < recipe.min_faithful_db and to_float.sqnr_db < graph_db - MAX_LOSS_TO_GRAPH_DB:
        return f"worse than its quantized graph: SQNR {to_float.sqnr_db:.1f} dB, quantized graph {graph_db:.1f} dB"
    return None


def disagrees_with_graph(check: Check, recipe: Recipe) -> bool:
    """It failed, and not by quantization alone: it is not much nearer to its graph than to the float model."""
    bad = [o for o in check.outputs if o.problem is not None and o.faithful_db < recipe.min_faithful_db]
    return any(not o.faithful_db > o.sqnr_db + CLEARLY_NEARER_DB for o in bad)
