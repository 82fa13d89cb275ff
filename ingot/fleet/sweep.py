"""Cast every cell of a fleet that is not done: prepare each model once, then its cells; write each row as it comes."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ingot
from ingot.config.recipe import recipe_from
from ingot.core.versions import TESTED, installed
from ingot.errors import IngotError
from ingot.fleet.engine import Engine, LocalEngine, Task
from ingot.fleet.fork_server import JobResult
from ingot.fleet.jobs import ROW, CellJob, PrepareJob
from ingot.fleet.opened_files import digest_of
from ingot.fleet.page import write_page
from ingot.fleet.progress_lines import SweepProgress
from ingot.fleet.rows import Cell, Row, error_row
from ingot.fleet.spec import Fleet, FleetModel, Resources, check_targets, fleet_from, read_fleet
from ingot.fleet.store import FleetStore
from ingot.result.saved import recipe_data
from ingot.targets.registry import known_targets


@dataclass(frozen=True)
class SweepResult:
    """The rows of all cells; `computed` are those that this sweep made."""

    rows: list[Row]
    computed: int
    folder: Path

    @property
    def failed(self) -> list[Row]:
        return [r for r in self.rows if r["verdict"] != "passed"]


@dataclass
class Sweep:
    fleet: Fleet
    base: Path  # relative paths start there
    store: FleetStore
    engine: Engine
    progress: SweepProgress
    again: Collection[str] = ()  # verdicts whose cells are run again
    queue: deque[Task] = field(default_factory=deque)
    waiting: list[Task] = field(default_factory=list)  # cells that measure time: after all others
    cells: list[Cell] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    computed: int = 0

    def run(self) -> None:
        self.progress.begin(len(list(self.fleet.cells())))
        for name in self.fleet.models:
            self._prepare(name)
        while self.queue or self.waiting or self.engine.running():
            if not self.queue and not self.engine.running():
                self.queue, self.waiting = deque(self.waiting), []
            while self.queue and self.engine.has_room(self.queue[0]):
                self.engine.submit(self.queue.popleft())
            task, result = self.engine.wait_for_one()
            self._ended(task, result)

    def _prepare(self, name: str) -> None:
        model = self.fleet.models[name]
        facts = self.store.prepared(name, _asked(model), self.base)
        if facts is not None:
            self._add_cells(name, facts["content"])
        else:
            self.queue.append(Task(PrepareJob(name, model, str(self.base)), self.fleet.timeout))

    def _ended(self, task: Task, result: JobResult) -> None:
        if isinstance(task.job, PrepareJob):
            return self._prepared(task.job.name, result)
        if isinstance(task.job, CellJob):
            self._cast(task.job.cell, result)

    def _cast(self, cell: Cell, result: JobResult) -> None:
        self.computed += 1
        row = result.failure if result.files is None else json.loads(result.files[ROW])
        self._write(cell, row or {}, result.files or {}, result.log)

    def _prepared(self, name: str, result: JobResult) -> None:
        """A model that cannot be prepared is the row of each of its cells."""
        files = result.files or {}
        if result.files is not None and ROW not in files:
            facts = self.store.write_prepared(name, files, _asked(self.fleet.models[name]))
            return self._add_cells(name, facts["content"])
        row = result.failure or json.loads(files[ROW])
        for cell in self._cells_of(name):
            self._write(cell, row, {}, result.log)

    def _cells_of(self, name: str) -> list[Cell]:
        return [Cell(*c) for c in self.fleet.cells() if c[0] == name]

    def _add_cells(self, name: str, content: str) -> None:
        for cell in self._cells_of(name):
            try:
                recipe = recipe_data(recipe_from(self._recipe(cell.recipe)))
            except IngotError as e:
                self._write(cell, error_row(e), {}, b"")
                continue
            model = self.fleet.models[name]
            self._add(replace(cell, key=self._key(cell, content, recipe)), model, recipe)

    def _recipe(self, name: str) -> str | Mapping[str, Any]:
        given = self.fleet.recipes[name]
        return str(self.base / given) if isinstance(given, str) else given

    def _add(self, cell: Cell, model: FleetModel, recipe: dict[str, Any]) -> None:
        known = self.store.row(cell)
        if known is not None and known["verdict"] not in self.again:
            return self._known(cell, known)
        job = CellJob(cell, model, recipe, str(self.base), self.fleet.measure)
        resources = self.fleet.resources.get(cell.target, Resources())
        folder = self.store.model_folder(cell.model)
        task = Task(job, self.fleet.timeout, folder, resources, alone=self.fleet.measure)
        (self.waiting if task.alone else self.queue).append(task)

    def _key(self, cell: Cell, content: str, recipe: dict[str, Any]) -> str:
        """Of everything that decides the result of a cell."""
        model = self.fleet.models[cell.model]
        sources = () if model.goal is None else (model.goal.data, model.goal.metric)
        goal = [None if model.goal is None else asdict(model.goal), *map(self._digest, sources)]
        facts = [content, cell.target, recipe, goal, self.fleet.measure, _versions()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _digest(self, source: str) -> str | None:
        return digest_of(self.base / source.rpartition(":")[0]) if ":" in source else digest_of(self.base / source)

    def _write(self, cell: Cell, row: Row, files: Mapping[str, bytes], log: bytes) -> None:
        full = self.store.write_cell(cell, row, files, log)
        self._known(cell, full)

    def _known(self, cell: Cell, row: Row) -> None:
        self.cells.append(cell)
        self.rows.append(row)
        self.progress.ended(row)


def sweep(
    fleet: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str],
    *,
    ray: str | None = None,
    processes: int = 1,
    again: Collection[str] = (),
) -> SweepResult:
    """Cast every model × target × recipe of a fleet file, or of a mapping with its keys; a row of each is in `output`.

    What is done already is not done again. `ray` is the address of a cluster; cells with a verdict in `again` are cast
    anew. Paths of a mapping are relative to the current folder.
    """
    if isinstance(fleet, Mapping):
        return sweep_fleet(fleet_from(fleet), Path(), Path(output), ray=ray, processes=processes, again=again)
    path = Path(fleet)
    return sweep_fleet(read_fleet(path), path.parent, Path(output), ray=ray, processes=processes, again=again)


def sweep_fleet(
    fleet: Fleet, base: Path, output: Path, *, ray: str | None = None, processes: int = 1,
    again: Collection[str] = (), progress: SweepProgress | None = None,
) -> SweepResult:  # fmt: skip
    """Cast what is not done; the folder has a row for each cell, and a page."""
    check_targets(fleet, known_targets())
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    engine = LocalEngine(processes) if ray is None else _ray_engine(ray, base.resolve(), output)
    work = Sweep(fleet, base.resolve(), FleetStore(output), engine, progress or SweepProgress(quiet=True), again)
    try:
        work.run()
    finally:
        engine.close()
        work.progress.end()
    work.store.end_sweep(work.rows, work.cells, started)
    write_page(work.store)
    return SweepResult(work.rows, work.computed, output)


def _ray_engine(address: str, base: Path, output: Path) -> Engine:
    from ingot.fleet.ray_engine import RayEngine

    return RayEngine(address, base, output)


def _asked(model: FleetModel) -> str:
    """What a prepared model is made from, by name; the content of the files is looked at too."""
    facts = [asdict(model.inputs), model.depends, _versions()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _versions() -> dict[str, str]:
    return {"ingot": ingot.__version__, **{p: v for p in TESTED if (v := installed(p)) is not None}}
