"""Run the artefact and compare three ways: float model, quantized graph, artefact; per output and per channel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch.fx import GraphModule

from ingot.capture import Program, restore_state
from ingot.casting import Check, OutputCheck
from ingot.compare import Comparison, measure
from ingot.localize import culprit_of
from ingot.recipe import Recipe
from ingot.targets.base import Target


@dataclass(frozen=True)
class Evidence:
    """What a casting is checked against; kept with it so that verify() can run again on other batches."""

    program: Program
    quantized: GraphModule
    target: Target
    recipe: Recipe


def verify_artefact(pte: bytes, evidence: Evidence, batches: Iterable[tuple[torch.Tensor, ...]]) -> Check:
    """Execute `pte` on the batches, up to the recipe's number, and judge every output."""
    recipe, program = evidence.recipe, evidence.program
    chosen = list(islice(batches, recipe.verify_batches))
    artefact = evidence.target.run(pte, chosen, timeout=recipe.run_timeout, fresh=bool(program.state))
    reference = run_graph(program.reference, chosen, program.state)
    quantized = run_graph(evidence.quantized, chosen, program.state)
    outputs = tuple(_judge(i, program, recipe, reference, quantized, artefact) for i in range(len(reference[0])))
    passed = all(o.problem is None for o in outputs)
    culprit = None if passed else culprit_of(program, evidence.quantized, chosen)
    return Check(evidence.target.executed_on, len(chosen), outputs, passed, culprit)


def run_graph(
    module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], state: dict[str, torch.Tensor]
) -> list[list[torch.Tensor]]:
    """The graph in eager torch, each batch from the initial state."""
    results = []
    with torch.no_grad():
        for batch in batches:
            restore_state(module, state)
            results.append([o for o in torch.utils._pytree.tree_leaves(module(*batch)) if isinstance(o, torch.Tensor)])
    restore_state(module, state)
    return results


def _judge(i: int, program: Program, recipe: Recipe, reference: list, quantized: list, artefact: list) -> OutputCheck:  # type: ignore[type-arg]
    name = program.output_names[i] if i < len(program.output_names) else f"output {i}"
    float_, graph, made = ([batch[i] for batch in side] for side in (reference, quantized, artefact))
    against_float, against_graph = measure(float_, made), measure(graph, made)
    problem = _problem(recipe, against_float, against_graph)
    return OutputCheck(
        name,
        against_float.sqnr_db,
        against_float.max_abs_error,
        against_float.worst_channel_db,
        against_graph.sqnr_db,
        problem,
    )


def _problem(recipe: Recipe, against_float: Comparison, against_graph: Comparison) -> str | None:
    """Why an output fails, in words; None when it is good."""
    if against_float.fault:
        return against_float.fault
    if against_graph.sqnr_db < recipe.min_faithful_db:
        return f"the artefact does not compute its own quantized graph: {against_graph.sqnr_db:.1f} dB, bar {recipe.min_faithful_db:g} dB"
    if against_float.sqnr_db < recipe.min_sqnr_db or math.isnan(against_float.sqnr_db):
        return f"far from the float model: {against_float.sqnr_db:.1f} dB, bar {recipe.min_sqnr_db:g} dB"
    return None
