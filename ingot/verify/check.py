"""Run the artefact and compare three ways, per output: float model, quantized graph, artefact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.calibrate.statistics import Ranges
from ingot.capture.element_origin import Origin, origins
from ingot.capture.export import Program, restore_state
from ingot.config.recipe import Recipe
from ingot.core.artefact import Check, Delegate, HostOp, OutputCheck, ProgramIO
from ingot.core.run_batched import has_mutating_op, run_batched
from ingot.errors import ArtefactError, InputError, first_sentence
from ingot.quantize.integer_io import dequantize_outputs, quantize_inputs
from ingot.targets.base import Target
from ingot.verify.integer_outputs import IN_FLOAT32_RUN
from ingot.verify.judge_output import Compared, judge_output
from ingot.verify.localize.graph_errors import describe_largest_drop
from ingot.verify.other_sizes import Sized, sized_batches
from ingot.verify.reference.interpreter import evaluate
from ingot.verify.reference.perturbed import run_perturbed
from ingot.verify.sized_by_values import failed_output, is_sized_by_values, judge_sized_by_values

CHUNK = 16  # batches whose intermediate values are in memory together
CLEARLY_NEARER_DB = 20.0  # nearer to its graph than to the float model by this: the rest is quantization error
FLOAT_NOISE_BATCHES = 2  # are enough to measure the rounding noise of float32
NO_DOUBLE_KERNEL = (RuntimeError, NotImplementedError, AssertionError)  # what ops raise that take float32 only
IN_FLOAT32 = "the quantized graph was evaluated in float32, which rounds some ties otherwise than the backend"

Runs = list[list[torch.Tensor]]  # per batch, per output


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
    ranges: Ranges | None = None  # what it was planned with, where that is known
    batch: tuple[torch.Tensor, ...] | None = None  # one of those that it was checked on


def verify_artefact(pte: bytes, evidence: Evidence, batches: Iterable[tuple[torch.Tensor, ...]]) -> Check:
    """Execute `pte` on all batches and check every output."""
    chosen = list(batches)
    if not chosen:
        raise InputError("no batches to verify with", hint="give at least one input tuple")
    # With state the batches are a sequence: each starts from the state that the previous one left.
    artefact, references = run_undecoded(pte, evidence, chosen), References(evidence, chosen)
    outputs = references.judge(artefact)
    notes = references.notes
    if all(o.problem is None for o in outputs):
        outputs, more = _at_other_sizes(pte, evidence, chosen[0], outputs)
        notes += more
    passed = all(o.problem is None for o in outputs)
    culprit = None if passed else describe_largest_drop(evidence.program, evidence.quantized, chosen)
    return Check(evidence.target.runner.executed_on(), len(chosen), outputs, passed, culprit, notes=notes)


def _at_other_sizes(
    pte: bytes, evidence: Evidence, batch: tuple[torch.Tensor, ...], outputs: tuple[OutputCheck, ...]
) -> tuple[tuple[OutputCheck, ...], tuple[str, ...]]:
    """Outputs with a problem where artefact and quantized graph disagree at a size that no batch had.

    The inputs are made, so their distance to the float model is not judged.
    """
    if evidence.program.dynamic_shapes is None or evidence.program.state:
        return outputs, ()
    runnable, notes = _runnable(evidence.program, sized_batches(evidence.program, batch))
    for each in runnable:
        found = outputs_on_made(pte, evidence, each.batch)
        bad = {o.name: f"at sizes {each.text}: {o.problem}" for o in found if o.disagrees}
        outputs = tuple(replace(o, problem=bad[o.name], disagrees=True) if o.name in bad else o for o in outputs)
        if bad:
            return outputs, notes
    sizes = "; ".join(each.text for each in runnable)
    return outputs, (*notes, f"also executed at the sizes {sizes}: equal to the quantized graph")


def outputs_on_made(pte: bytes, evidence: Evidence, batch: tuple[torch.Tensor, ...]) -> tuple[OutputCheck, ...]:
    """On inputs that were made: only a difference to the quantized graph is a problem."""
    found = References(evidence, [batch]).judge(run_undecoded(pte, evidence, [batch]))
    return tuple(o if o.disagrees else replace(o, problem=None) for o in found)


def _runnable(program: Program, sized: list[Sized]) -> tuple[list[Sized], tuple[str, ...]]:
    """Those that the float model takes: a size of one input may be a value of another."""
    kept, notes = list[Sized](), list[str]()
    for each in sized:
        try:
            run_graph(program.reference, [each.batch], {})
        except Exception as e:  # whatever the model raises
            notes.append(f"not executed at the sizes {each.text}: the float model fails there: {first_sentence(e)}")
        else:
            kept.append(each)
    return kept, tuple(notes)


class References:
    """What the outputs of an artefact are compared with. Costly parts are computed where they are needed, once."""

    def __init__(self, evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]) -> None:
        self.evidence, self.batches = evidence, batches
        self._noisy_runs, self._noisy_references = dict[int, Runs](), dict[int, Runs]()
        self.reference = run_graph(evidence.program.reference, batches, evidence.program.state)
        self.quantized, note = _run_quantized(evidence, batches)
        self.notes: tuple[str, ...] = (note,) if note else ()
        self.origins = self._find_origins()

    def judge(self, artefact: Runs) -> tuple[OutputCheck, ...]:
        """A verdict on each output, as the program returned it."""
        wrong = _number_defect(artefact, self.reference)
        outputs = range(len(self.reference[0]))
        return tuple(failed_output(self._name(i), wrong) if wrong else self._judge(i, artefact) for i in outputs)

    def _judge(self, i: int, artefact: Runs) -> OutputCheck:
        made, io = [o[i] for o in artefact], self.evidence.io.outputs[i]
        if io.scale is not None:
            if (odd := next((t.dtype for t in made if str(t.dtype) != f"torch.{io.dtype}"), None)) is not None:
                return failed_output(self._name(i), f"dtype {odd} instead of torch.{io.dtype}")
            made = [t.to(self.reference[0][i].dtype) for t in dequantize_outputs(made, [io] * len(made))]
        float_, graph = ([o[i] for o in side] for side in (self.reference, self.quantized))
        if is_sized_by_values(self.evidence.program, i, float_, graph):
            return self._judge_sized_by_values(i, Compared(float_, graph, made))
        known = [o[i] for o in self.origins], [o[i] for o in self.in_double]
        given = Compared(
            float_, graph, made, *known, lambda run: self._noisy(run, i), lambda run: self._noisy_reference(run, i)
        )
        return judge_output(self._name(i), given, self.evidence.recipe.min_sqnr_db)

    def _judge_sized_by_values(self, i: int, given: Compared) -> OutputCheck:
        check, notes = judge_sized_by_values(self._name(i), given, self.evidence.recipe.min_sqnr_db)
        self.notes += notes
        return check

    def _name(self, i: int) -> str:
        names = self.evidence.program.output_names
        return names[i] if i < len(names) else f"output {i}"

    def _find_origins(self) -> list[list[Origin]]:
        """By batch; alike for batches of the same shapes. Without them outputs are judged along their axes only."""
        module, state = self.evidence.program.module, self.evidence.program.state
        shapes = [tuple(t.shape for t in batch) for batch in self.batches]
        first = dict(zip(reversed(shapes), reversed(self.batches), strict=True))
        try:
            found = {shape: origins(module, batch) for shape, batch in first.items()}
        except Exception as e:  # an op may raise anything when it is run on ids
            self.notes += (f"joined channels were not told apart: {first_sentence(e)}",)
            return [[Origin()] * len(self.reference[0]) for _ in shapes]
        finally:
            restore_state(module, state)
        return [found[shape] for shape in shapes]

    @cached_property
    def in_double(self) -> Runs:
        """The float model in double precision, for the noise of float arithmetic."""
        if self.evidence.program.state or not self.evidence.in_double:
            return []
        try:
            some = evaluate(self.evidence.program.reference, self.batches[:FLOAT_NOISE_BATCHES], self.evidence.target)
        except NO_DOUBLE_KERNEL:
            return []
        return [flat_tensors(o) for o in some]

    def _noisy_reference(self, run: int, i: int) -> list[torch.Tensor]:
        """The float model with rounding noise, for outputs that are nothing else."""
        program = self.evidence.program
        if run not in self._noisy_references:
            made = _run_noisy(program.reference, program.state, self.batches, None, run, inputs=True)
            self._noisy_references[run] = made
        return [o[i] for o in self._noisy_references[run]]

    def _noisy(self, run: int, i: int) -> list[torch.Tensor]:
        if run not in self._noisy_runs:
            again = _run_in_float32 if run == IN_FLOAT32_RUN else _run_noisy_graph
            self._noisy_runs[run] = again(self.evidence, self.batches, run)
        return [o[i] for o in self._noisy_runs[run]]


def _number_defect(artefact: Runs, reference: Runs) -> str | None:
    if len(artefact) != len(reference):
        return f"the artefact returned {len(artefact)} results for {len(reference)} batches"
    odd = [(len(a), len(r)) for a, r in zip(artefact, reference, strict=True) if len(a) != len(r)]
    return f"the artefact returns {odd[0][0]} outputs, the float model {odd[0][1]}" if odd else None


def _run_noisy_graph(evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]], seed: int) -> Runs:
    """The quantized graph with rounding noise added to every computed value."""
    module, state = evidence.quantized, evidence.program.state
    return _run_noisy(module, state, batches, None if state or not evidence.in_double else evidence.target, seed)


def _run_in_float32(evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]], _: int) -> Runs:
    """Noise never gives two equal results: whether a deviation is exactly zero, float32 tells."""
    return run_graph(evidence.quantized, batches, evidence.program.state)


def _run_noisy(
    module: GraphModule,
    state: dict[str, torch.Tensor],
    batches: Sequence[tuple[torch.Tensor, ...]],
    target: Target | None,
    seed: int,
    inputs: bool = False,
) -> Runs:
    """In double precision as on a target, where one is given."""
    restore_state(module, state)
    try:
        made = run_perturbed(module, batches, target, seed, inputs)
    except NO_DOUBLE_KERNEL:
        made = run_perturbed(module, batches, None, seed, inputs)
    restore_state(module, state)
    return [[t.clone() for t in flat_tensors(o)] for o in made]


def run_artefact(
    pte: bytes, evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]
) -> list[list[torch.Tensor]]:
    """Run the program on its target. Inputs are encoded and outputs decoded, so both are float here."""
    outputs, wanted = run_undecoded(pte, evidence, batches), len(evidence.io.outputs)
    if (wrong := next((len(o) for o in outputs if len(o) != wanted), None)) is not None:
        why, hint = f"the program was lowered with {wanted}", "is it the file of this model? Cast the model again"
        raise ArtefactError(f"the artefact gives {wrong} outputs", why=why, hint=hint)
    return [dequantize_outputs(o, evidence.io.outputs) for o in outputs]


def run_undecoded(pte: bytes, evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]) -> Runs:
    """Run the program on its target, with its outputs as it returns them."""
    given = [quantize_inputs(batch, evidence.io.inputs) for batch in batches]
    files, seconds = {d.digest: d.files for d in evidence.delegates}, evidence.recipe.run_timeout
    run, method = evidence.target.runner.run, evidence.method
    return [flat_tensors(o) for o in run(pte, given, files=files, timeout=seconds, fresh=False, method=method)]


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
    return _run_quantized(evidence, batches)[0]


def _run_quantized(evidence: Evidence, batches: Sequence[tuple[torch.Tensor, ...]]) -> tuple[Runs, str | None]:
    """The outputs, and why they are not those of double precision."""
    module, state = evidence.quantized, evidence.program.state
    if state or not evidence.in_double:
        why = "the program has state" if state else "its weights in double precision would fill the memory"
        return run_graph(module, batches, state), f"{IN_FLOAT32}: {why}"
    try:
        return [flat_tensors(o) for o in evaluate(module, batches, evidence.target)], None
    except NO_DOUBLE_KERNEL as e:
        return run_graph(module, batches, {}), f"{IN_FLOAT32}: {first_sentence(e)}"


def run_in_double(module: GraphModule, batches: Sequence[tuple[torch.Tensor, ...]], target: Target) -> Runs:
    """Evaluate the graph with the reference interpreter; in eager float32 where an op has no double kernel."""
    try:
        return [flat_tensors(o) for o in evaluate(module, batches, target)]
    except NO_DOUBLE_KERNEL:
        return run_graph(module, batches, {})


def flat_tensors(outputs: Any) -> list[torch.Tensor]:
    """The returned tensors as a flat list; a returned None or Python number is dropped."""
    return [o for o in torch.utils._pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]


def disagrees_with_graph(check: Check, recipe: Recipe) -> bool:
    """It failed, and not by quantization alone: it is not much nearer to its graph than to the float model."""
    bad = [o for o in check.outputs if o.problem is not None and o.faithful_db < recipe.min_faithful_db]
    return any(o.disagrees for o in check.outputs) or any(
        not o.faithful_db > o.sqnr_db + CLEARLY_NEARER_DB for o in bad
    )
