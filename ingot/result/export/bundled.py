"""A program with test vectors in one file (.bpte): the device runs them and compares by itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.inputs import Batch
from ingot.core.torch_modes import in_neutral_modes
from ingot.errors import ArtefactError
from ingot.lower.edge import MAIN_METHOD
from ingot.quantize.integer_io import quantize_inputs
from ingot.verify.check import Evidence, run_undecoded

if TYPE_CHECKING:
    from ingot.result.casting import Casting


@in_neutral_modes
def bundled_program(casting: Casting, batches: Iterable[Batch] | None = None) -> bytes:
    """The expected outputs are those of the artefact itself, as it ran here: integers where its outputs are."""
    evidence = casting.needed_evidence
    _refuse_failed(casting)
    given = None if batches is None else [evidence.program.flatten(b) for b in batches]
    chosen = given or [evidence.batch or evidence.program.example_inputs]
    inputs = [quantize_inputs(b, casting.io.inputs) for b in chosen]
    return bundle_of(casting.pte, list(zip(inputs, _outputs(casting.pte, evidence, chosen), strict=True)))


def _refuse_failed(casting: Casting) -> None:
    """A device that agrees with wrong numbers would be told that they are right."""
    if casting.check is not None and not casting.check.passed:
        why = f"the artefact failed its check on {casting.check.executed_on}"
        raise ArtefactError("no expected outputs to bundle", why=why, hint="mend the cast first: ingot localize")


def _outputs(pte: bytes, evidence: Evidence, batches: Sequence[Any]) -> list[list[torch.Tensor]]:
    """A device starts each vector from the initial state, so each is a run of its own where the program has state."""
    if evidence.program.state:
        return [run_undecoded(pte, evidence, [b])[0] for b in batches]
    return run_undecoded(pte, evidence, batches)


def bundle_of(pte: bytes, vectors: Sequence[tuple[Sequence[Any], Sequence[torch.Tensor]]]) -> bytes:
    """The program with these pairs of inputs and expected outputs, both in the dtypes of the program."""
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.core import BundledProgram
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer

    cases = [MethodTestCase(_own(inputs), _own(outputs)) for inputs, outputs in vectors]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "model.pte"
        program.write_bytes(pte)
        bundled = BundledProgram(None, [MethodTestSuite(MAIN_METHOD, cases)], str(program))
        made: bytes = serialize_from_bundled_program_to_flatbuffer(bundled)
    return made


def _own(tensors: Sequence[Any]) -> list[Any]:
    """Whole storages are bundled, so a view gets one of its own; channels-last tensors keep their strides."""
    return [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in tensors]
