"""Calibration on data in many files: each shard is recorded by itself, here or on Ray, and merged in order."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ingot.calibrate.statistics import Ranges
from ingot.capture.export import Program
from ingot.errors import CaptureError, InputError
from ingot.fleet.engine import Engine, LocalEngine, Task
from ingot.fleet.fork_server import JobResult
from ingot.fleet.jobs import ROW, ShardJob
from ingot.fleet.prepared_model import EXPORTED, FACTS, program_bytes
from ingot.fleet.shard_statistics import Shard, shard_ranges

TIMEOUT = 86400.0  # seconds of a shard


def record_shards(
    program: Program,
    shards: Sequence[str | os.PathLike[str]],
    *,
    ray: str | None = None,
    processes: int = 1,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    model: str | None = None,
    on_shard: Callable[[int], None] | None = None,
) -> Ranges:
    """Calibrate on data in several files, folders or `file.py:function`s; the result is that of one process.

    `ray` is the address of a cluster: each node gets the float weights once, each shard is a task. `model` names the
    code that registers your own ops (`net.py:build`), for processes that have not imported it.
    """
    scaling = [None if s is None else list(s) for s in (mean, std)]
    each = [Shard(os.fspath(s), i, *scaling) for i, s in enumerate(shards)]
    _check(program, each)
    if ray is None and processes == 1:
        return _merged((s.record(program) for s in each), on_shard)
    if program.others:
        why = "a program with several sizes is not handed to other processes"
        raise InputError("this program is recorded here only", why=why, hint="leave --ray and --processes out")
    jobs = [ShardJob(s, program.fingerprint, str(Path.cwd()), model) for s in each]
    return _merged(_on_engine(program, jobs, ray, processes), on_shard)


def _check(program: Program, shards: list[Shard]) -> None:
    if not shards:
        raise InputError("no calibration data", hint="name at least one shard")
    if program.state and len(shards) > 1:
        why = "it has state, so its batches are one sequence"
        raise InputError("this program cannot be recorded in shards", why=why, hint="put the data into one source")


def _merged(parts: Iterable[Ranges], on_shard: Callable[[int], None] | None) -> Ranges:
    """One after another: what is held is one recording, however many there are."""
    total: Ranges | None = None
    for number, part in enumerate(parts):
        total = part if total is None else total.merge(part)
        if on_shard:
            on_shard(number)
    assert total is not None
    return total


def _on_engine(program: Program, jobs: list[ShardJob], ray: str | None, processes: int) -> Iterator[Ranges]:
    engine = LocalEngine(processes) if ray is None else _ray_engine(ray)
    with tempfile.TemporaryDirectory(prefix="ingot-shards-") as folder:
        try:
            _write_program(program, Path(folder))
            yield from _in_order(_results(engine, [Task(j, TIMEOUT, Path(folder)) for j in jobs]))
        finally:
            engine.close()


def _ray_engine(address: str) -> Engine:
    from ingot.fleet.ray_engine import RayEngine

    return RayEngine(address, Path.cwd())


def _write_program(program: Program, folder: Path) -> None:
    if program.exported is None:
        why, hint = "it has several methods", "record it in one process"
        raise CaptureError("this program cannot be recorded elsewhere", why=why, hint=hint)
    exported = program_bytes(program.exported)
    (folder / EXPORTED).write_bytes(exported)
    (folder / FACTS).write_text(json.dumps({"content": hashlib.sha256(exported).hexdigest()}))


def _results(engine: Engine, tasks: list[Task]) -> Iterator[tuple[int, Ranges]]:
    waiting = list(reversed(tasks))
    while waiting or engine.running():
        while waiting and engine.has_room(waiting[-1]):
            engine.submit(waiting.pop())
        task, result = engine.wait_for_one()
        if isinstance(task.job, ShardJob):
            yield task.job.shard.number, _ranges_of(task.job.shard, result)


def _in_order(results: Iterable[tuple[int, Ranges]]) -> Iterator[Ranges]:
    """As the shards were named, whichever ends first: so the result does not depend on the cluster."""
    early: dict[int, Ranges] = {}
    following = 0
    for number, ranges in results:
        early[number] = ranges
        while following in early:
            yield early.pop(following)
            following += 1


def _ranges_of(shard: Shard, result: JobResult) -> Ranges:
    files = result.files or {}
    failure = result.failure or (json.loads(files[ROW]) if ROW in files else None)
    if failure is not None:
        raise InputError(f"shard {shard.number} failed", where=shard.source, why=failure["error"]["text"])
    return shard_ranges(files)
