"""A model that was captured and recorded once for all its cells: exported program, statistics, batches to verify on."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from ingot import api
from ingot.calibrate.held_out import CheckData, Split, validation_data
from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.capture.inputs import Batch, Inputs, call_of
from ingot.config.recipe import Recipe
from ingot.core.progress import Silent, Steps
from ingot.core.tensor_bytes import raw_bytes
from ingot.data.named_inputs import Given, given_inputs
from ingot.data.user_code import resolve_object
from ingot.errors import CaptureError, InputError, first_sentence
from ingot.fleet.spec import FleetModel
from ingot.goal.cast_to_goal import cast_to_goal
from ingot.goal.goal import Goal
from ingot.goal.measure import GoalMeasure
from ingot.result.casting import Casting
from ingot.result.target_cast import TargetCast

EXPORTED, RANGES, BATCHES, FACTS = "exported.pt2", "ranges.json", "batches.pt", "prepared.json"
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class PreparedModel:
    program: Program
    ranges: Ranges
    data: CheckData

    def cast(self, target: str, recipe: Recipe, goals: tuple[Goal, ...] = ()) -> Casting:
        """A wrong artefact, or one that misses its goal, is kept: its row says so."""
        data = self.data
        if data.source != "validation":
            data = replace(data, batches=data.batches[: recipe.verify_batches])
        work = TargetCast(target, self.program, self.ranges, recipe, data, Steps(Silent()), "keep")
        return cast_to_goal(work, GoalMeasure.of(self.program, goals)) if goals else work.casting()


def prepare_model(model: FleetModel) -> dict[str, bytes]:
    """The files of a prepared model. Statistics are of the program that cells read back, so the names are theirs."""
    given = given_inputs(model.inputs)
    exported = _saved_program(given)
    program = api.capture(_loaded_program(exported))
    validation = None if given.validation is None else validation_data(given.validation)
    split = Split(hold=validation is None and not program.state)
    ranges = api.record(program, split.recorded(given.calibration))
    data = validation or split.data
    files = {EXPORTED: exported, RANGES: ranges.to_json().encode(), BATCHES: _batches_file(ranges, data)}
    return {**files, FACTS: json.dumps({"content": _content(program, files)}).encode()}


def load_prepared(read: Callable[[str], bytes], model: FleetModel) -> PreparedModel:
    """What `prepare_model` made. The user's module is imported first: it may register ops."""
    program = load_program(read, model.model)
    stored = torch.load(io.BytesIO(read(BATCHES)), weights_only=True)
    ranges = replace(_ranges(read(RANGES)), cached_batches=tuple(tuple(b) for b in stored["cached"]))
    batches: list[Batch] = [Inputs(*args, **kwargs) for args, kwargs in stored["check"]]
    return PreparedModel(program, ranges, CheckData(batches, stored["source"]))


def load_program(read: Callable[[str], bytes], model: str | None) -> Program:
    if model is not None and not model.endswith(".pt2"):
        resolve_object(model, lambda _: True)
    return api.capture(_loaded_program(read(EXPORTED)))


def content_of(files: Files) -> str:
    """Names the weights, the graph, the statistics and the batches."""
    return str(json.loads(files[FACTS])["content"])


def _saved_program(given: Given) -> bytes:
    program = api.capture(given.loaded.model, given.example, dynamic_shapes=given.loaded.dynamic_shapes)
    if program.exported is None:
        raise CaptureError("the exported program cannot be kept", why="it has several methods", hint="cast it alone")
    return program_bytes(program.exported)


def program_bytes(exported: ExportedProgram) -> bytes:
    """For another process, or another machine."""
    buffer = io.BytesIO()
    try:
        torch.export.save(exported, buffer)
    except Exception as e:
        hint = "the exported program is handed from process to process; use `ingot cast` on one machine"
        raise CaptureError("the exported program cannot be saved", why=first_sentence(e), hint=hint) from e
    return buffer.getvalue()


def _loaded_program(data: bytes) -> ExportedProgram:
    try:
        return torch.export.load(io.BytesIO(data))
    except Exception as e:
        hint = "is the module that registers your own ops importable here?"
        raise InputError("the exported program cannot be read back", why=first_sentence(e), hint=hint) from e


def _ranges(data: bytes) -> Ranges:
    return Ranges.from_json(data, RANGES)


def _batches_file(ranges: Ranges, data: CheckData) -> bytes:
    check = [_plain(call_of(b)) for b in data.batches]
    buffer = io.BytesIO()
    torch.save({"cached": [list(b) for b in ranges.cached_batches], "check": check, "source": data.source}, buffer)
    return buffer.getvalue()


def _plain(call: tuple[Any, Any]) -> tuple[list[Any], dict[str, Any]]:
    return list(call[0]), dict(call[1])


def _content(program: Program, files: Files) -> str:
    """Of numbers, not of the files: an archive has times in it."""
    digest = hashlib.sha256(program.fingerprint.encode() + files[RANGES])
    constants = {**dict(program.module.named_parameters()), **dict(program.module.named_buffers())}
    stored = torch.load(io.BytesIO(files[BATCHES]), weights_only=True)
    leaves = torch.utils._pytree.tree_leaves(stored["check"])
    for tensor in (*constants.values(), *(x for x in leaves if isinstance(x, torch.Tensor))):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(raw_bytes(tensor).numpy().tobytes())
    return digest.hexdigest()
