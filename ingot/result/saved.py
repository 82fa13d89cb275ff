"""A casting as a folder, and back: the program, its plan, its records, the float and the quantized program."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program, capture_program
from ingot.capture.method_for import MAIN_METHOD
from ingot.config.recipe import Recipe, recipe_from
from ingot.config.validation import parsed_json
from ingot.core.artefact import Check, Delegate, HostOp, ProgramIO
from ingot.core.digests import RECORDS, check_digest, digests_of
from ingot.core.goal_records import GoalResult
from ingot.errors import InputError, first_sentence
from ingot.plan.plan_data import Plan
from ingot.plan.validate import validate
from ingot.quantize.exported import as_exported, from_exported
from ingot.quantize.memory_format import with_channels_last_inputs
from ingot.quantize.pt2e import quantize
from ingot.result.report.text import json_ready
from ingot.rewrite.apply import rewrite_for
from ingot.rewrite.channel_factors import with_channel_factors
from ingot.targets.barred import host_bars, with_bars
from ingot.targets.base import Target
from ingot.targets.registry import find_target
from ingot.verify.check import Evidence

PTE, PLAN, RANGES = "model.pte", "plan.json", "ranges.json"
FLOAT, QUANTIZED = "float.pt2", "quantized.pt2"
VERSION = 1


@dataclass(frozen=True)
class Records:
    """What a casting holds beside the program and the plan; `casting.json`."""

    target: str
    recipe: dict[str, Any]
    delegates: tuple[Delegate, ...]
    host_ops: tuple[HostOp, ...]
    io: ProgramIO
    check: Check | None
    timings: dict[str, float]
    notes: tuple[str, ...]
    hosted: dict[str, str]
    in_double: bool = True
    files: tuple[tuple[str, ...], ...] = ()  # of each delegate
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of the other files, by name
    version: int = VERSION
    goal: GoalResult | None = None


@dataclass(frozen=True)
class Loaded:
    """The parts of a casting, as read from a folder."""

    pte: bytes
    plan: Plan
    records: Records
    performance: tuple[Any, ...] = ()
    evidence: Evidence | None = None


def records_of(casting: Any, files: Mapping[str, bytes]) -> bytes:
    """`casting.json` beside these files."""
    evidence = casting.evidence
    recipe = recipe_data(evidence.recipe) if evidence is not None else {}
    made = Records(
        casting.target, recipe, tuple(replace(d, files={}) for d in casting.delegates), casting.host_ops, casting.io,
        casting.check, dict(casting.timings), casting.notes, dict(casting.hosted),
        evidence is None or evidence.in_double, tuple(tuple(d.files) for d in casting.delegates),
        digests_of(files), goal=casting.goal,
    )  # fmt: skip
    return json.dumps(json_ready(asdict(made)), indent=1, allow_nan=False).encode()


def recipe_data(recipe: Recipe) -> dict[str, Any]:
    """The keys that differ from the defaults, as JSON has them."""
    usual, kind = Recipe(), TypeAdapter(Recipe)
    given, plain = kind.dump_python(recipe, mode="json"), kind.dump_python(usual, mode="json")
    found = {k: v for k, v in given.items() if v != plain[k]}
    return {**found, "options": dict(recipe.options)} if recipe.options else found


def saved_files(casting: Any, *, evidence: bool = True) -> dict[str, bytes]:
    """All files of a casting by name; with `evidence` the float and the quantized program, to verify with again."""
    files = {PTE: casting.pte} if casting.method == MAIN_METHOD else {}  # all methods are in one file
    files |= {PLAN: casting.plan.to_json().encode()}
    for number, delegate in enumerate(casting.delegates, 1):
        files |= {f"delegate-{number}-{name}": data for name, data in delegate.files.items()}
    if evidence and can_be_saved(casting):
        kept = casting.evidence
        files[FLOAT] = _pt2(kept.program.exported)
        files[QUANTIZED] = _pt2(as_exported(kept.quantized, kept.program))
        files |= {RANGES: kept.ranges.to_json().encode()} if kept.ranges is not None else {}
    return {**files, RECORDS: records_of(casting, files)}


def can_be_saved(casting: Any) -> bool:
    """Decoders of several methods, and programs after training, have no single float program to save."""
    kept, sized = casting.evidence, bool(casting.plan.methods)
    if kept is None or kept.program.exported is None or kept.program.bounded_dims:
        return False
    return sized or not casting.others


def _pt2(exported: ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    return buffer.getvalue()


def load_folder(folder: Path, pte: bytes | None = None) -> Loaded:
    """What `saved_files` wrote. A folder without the float program can be reported, not verified.

    `pte`: the file, where this is the folder of a further method.
    """
    records = parsed_json(Records, _read(folder, RECORDS), str(folder / RECORDS))
    if records.version != VERSION:
        raise InputError(f"{folder} has version {records.version} of saved castings", why=f"this Ingot reads {VERSION}")
    for name in filter(_is_plain, records.digests):
        check_digest(folder / name, records.digests)
    plan = Plan.from_json(_read(folder, PLAN))
    delegates = tuple(_with_files(folder, i, d, names) for i, d, names in _numbered(records))
    records = replace(records, delegates=delegates)
    recipe = recipe_from(records.recipe)
    target = find_target(records.target, recipe.options, recipe.extra_backends)
    estimates = tuple(e for d in delegates if (e := target.runner.estimate(d.files)) is not None)
    evidence = _evidence(folder, records, plan, target, recipe) if (folder / FLOAT).exists() else None
    if evidence is not None and pte is not None:
        evidence = replace(evidence, method=folder.name)
    return Loaded(_read(folder, PTE) if pte is None else pte, plan, records, estimates, evidence)


def saved_recipe(folder: Path) -> Recipe | None:
    """The recipe of a cast, with the thresholds that it was judged by; None where the folder is not that of a cast."""
    if not (folder / RECORDS).is_file():
        return None
    return recipe_from(parsed_json(Records, _read(folder, RECORDS), str(folder / RECORDS)).recipe)


def _numbered(records: Records) -> list[tuple[int, Delegate, tuple[str, ...]]]:
    files = records.files or ((),) * len(records.delegates)
    if len(files) != len(records.delegates) or not all(_is_plain(name) for names in files for name in names):
        why = f"it has {len(records.delegates)} delegates, and the names of their files do not fit"
        raise InputError(f"{RECORDS} is damaged", why=why, hint="cast the model again")
    pairs = zip(records.delegates, files, strict=True)
    return [(i, d, names) for i, (d, names) in enumerate(pairs, 1)]


def _is_plain(name: str) -> bool:
    """A file of the folder itself: nothing above it is read."""
    return bool(name) and not {"/", "\\", "\0"} & set(name)


def _with_files(folder: Path, number: int, delegate: Delegate, names: tuple[str, ...]) -> Delegate:
    files: Mapping[str, bytes] = {name: _read(folder, f"delegate-{number}-{name}") for name in names}
    return replace(delegate, files=files)


def _evidence(folder: Path, records: Records, plan: Plan, target: Target, recipe: Recipe) -> Evidence:
    program = rewrite_for(capture_program(_load(folder / FLOAT)), target, recipe).program
    _must_be_the_same(program, plan, folder)
    form = with_channels_last_inputs(with_channel_factors(program, plan.channel_factors), plan.channels_last)
    target = with_bars(target, host_bars(recipe.host_ops, program.module))
    ranges = Ranges.load(folder / RANGES) if (folder / RANGES).exists() else None
    quantized = _quantized(folder, form, plan, target)
    return Evidence(
        form, quantized, target, recipe, records.io, records.delegates, host_ops=records.host_ops,
        in_double=records.in_double, ranges=ranges, batch=form.example_inputs,
    )  # fmt: skip


def _quantized(folder: Path, form: Program, plan: Plan, target: Target) -> GraphModule:
    """The plan replayed; weights that a scheme has rounded are in the file only."""
    if "weights" in plan.settings:
        return from_exported(_load(folder / QUANTIZED))
    validate(plan, form.module, target)  # a file can hold any numbers
    return quantize(form.module, plan, float_bias=target.numerics.bias == "float")


def _must_be_the_same(program: Program, plan: Plan, folder: Path) -> None:
    if program.fingerprint != plan.fingerprint:
        why = "its float program, captured again, is not the one that was planned: was it saved by another version?"
        raise InputError(f"{folder} does not fit together", why=why, hint="cast the model again")


def _load(path: Path) -> ExportedProgram:
    try:
        return torch.export.load(path)
    except Exception as e:
        hint = "cast again with the torch version that is installed here; register your own ops before you load"
        raise InputError(f"{path} is not a readable exported program", why=first_sentence(e), hint=hint) from e


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as e:
        hint = "name a folder that `casting.save_folder` or `ingot cast -o` wrote"
        raise InputError(f"cannot read {folder / name}", why=e.strerror, hint=hint) from e
