"""Jobs, each in a process of its own: prepare a model, cast a cell, record a shard. They give files by name."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.fleet.opened_files import OpenedFiles
from ingot.fleet.rows import BUG, Cell, Row, casting_row, error_row
from ingot.fleet.spec import FleetGoal, FleetModel

if TYPE_CHECKING:
    from ingot.fleet.shard_statistics import Shard

ROW = "row.json"
Files = dict[str, bytes]


@dataclass(frozen=True)
class PrepareJob:
    """Capture and record one model."""

    name: str
    model: FleetModel
    folder: str  # of the fleet file: its relative paths start there


@dataclass(frozen=True)
class CellJob:
    """Cast one cell of a prepared model."""

    cell: Cell
    model: FleetModel
    recipe: dict[str, Any]
    folder: str
    measure: bool = False


@dataclass(frozen=True)
class ShardJob:
    """Record one part of the calibration data of a program."""

    shard: Shard
    fingerprint: str
    folder: str
    model: str | None = None  # whose module registers ops


Job = PrepareJob | CellJob | ShardJob


def execute_job(job: Job, prepared: Path | None) -> Files:
    """`prepared` is the folder of the model, for a cell and a shard."""
    if isinstance(job, PrepareJob):
        return run_prepare(job)
    if prepared is None:
        raise ValueError("the job needs a prepared model")
    run: Any = run_cell if isinstance(job, CellJob) else run_shard
    return dict(run(job, lambda name: (prepared / name).read_bytes()))


def run_prepare(job: PrepareJob) -> Files:
    """The prepared model, with the digests of the files that it was made from; or a row that says why there is none."""
    seen = OpenedFiles()

    def work() -> Files:
        from ingot.fleet.prepared_model import FACTS, prepare_model

        files = prepare_model(job.model)
        facts = json.loads(files[FACTS]) | {"read": seen.digests(Path(job.folder), job.model.depends)}
        return {**files, FACTS: json.dumps(facts, indent=1).encode()}

    return _answered(work, job.folder)


def run_cell(job: CellJob, read: Callable[[str], bytes]) -> Files:
    """The files of the casting and its row."""

    def work() -> Files:
        casting = _cast(job, read)
        files = _casting_files(casting)
        row = casting_row(casting) | _measured(casting, job.measure) | {"versions": _versions(casting)}
        return {**files, ROW: json.dumps(row).encode()}

    started = time.perf_counter()
    files = _answered(work, job.folder)
    more = {"seconds": time.perf_counter() - started, "peak_memory_bytes": peak_bytes()}
    return {**files, ROW: json.dumps({**json.loads(files[ROW]), **more}).encode()}


def run_shard(job: ShardJob, read: Callable[[str], bytes]) -> Files:
    """The statistics, and the first batches."""

    def work() -> Files:
        from ingot.fleet.prepared_model import load_program
        from ingot.fleet.shard_statistics import shard_files

        return shard_files(load_program(read, job.model), job.fingerprint, job.shard)

    return _answered(work, job.folder)


def _answered(work: Callable[[], Files], folder: str) -> Files:
    """In the folder of the fleet file; an exception becomes a row."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    try:
        return work()
    except Exception as e:
        row = error_row(e)
        if row["verdict"] == BUG:
            traceback.print_exc()
        return {ROW: json.dumps(row).encode()}


def _cast(job: CellJob, read: Callable[[str], bytes]) -> Any:
    from ingot.config.recipe import recipe_from
    from ingot.fleet.prepared_model import load_prepared
    from ingot.patches.version_errors import version_errors

    with version_errors():
        return load_prepared(read, job.model).cast(job.cell.target, recipe_from(job.recipe), _goals(job.model))


def _goals(model: FleetModel) -> tuple[Any, ...]:
    from ingot.data import load_model
    from ingot.goal.named_goal import named_goal

    asked: FleetGoal | None = model.goal
    return () if asked is None else (named_goal(model.inputs, load_model(model.model), **asdict(asked)),)


def _casting_files(casting: Any) -> Files:
    from ingot.result.report.facts import facts_of, to_json
    from ingot.result.report.html import page
    from ingot.result.saved import saved_files

    facts = facts_of(casting)
    files = saved_files(casting, evidence=False)
    return {**files, "report.json": to_json(facts).encode(), "report.html": page(facts).encode()}


def _measured(casting: Any, measure: bool) -> Row:
    """Latency on this machine, where the target runs on it."""
    if not measure:
        return {"measured_seconds": None}
    timing = casting.details.timing
    return {"measured_seconds": timing.seconds or None, "measured_how": timing.how}


def _versions(casting: Any) -> dict[str, str]:
    from ingot.result.details.versions import versions_of

    return versions_of(casting.evidence.target if casting.evidence else None)


def peak_bytes() -> int:
    """Bytes, of this process or of its largest child."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
