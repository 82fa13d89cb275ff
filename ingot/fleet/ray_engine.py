"""Jobs on a Ray cluster: Ray schedules them, moves prepared models through its object store and retries lost nodes."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ingot.errors import InputError, TargetError, first_sentence
from ingot.fleet.engine import Task
from ingot.fleet.fork_server import ForkServer, JobResult
from ingot.fleet.jobs import Job
from ingot.fleet.rows import LOST, failure_row
from ingot.fleet.spec import Resources
from ingot.fleet.store import FLEET

MOST_IN_FLIGHT = 2000  # tasks that Ray holds at a time; the rest waits here
RETRIES = 3  # of a task whose node or worker was lost
CONNECT_SECONDS = 10.0
PREPARED = ".ingot-prepared"
Files = dict[str, bytes]


class RayEngine:
    """`address` is "auto" (the cluster of this machine) or ray://host:port."""

    def __init__(self, address: str, base: Path, output: Path | None = None):
        self.ray = _imported_ray()
        self.stored: dict[Path, Any] = {}  # prepared models, put into the object store once
        self.tasks: dict[Any, Task] = {}
        self.refused: deque[tuple[Task, JobResult]] = deque()  # no node can run them
        try:
            _knock(address)
            self.ray.init(address=address, runtime_env=_environment(base, output), log_to_driver=False)
        except Exception as e:
            hint = "is it running? `ray start --head`; leave --ray out to use this machine"
            raise TargetError(f"no Ray cluster at '{address}'", why=first_sentence(e), hint=hint) from e
        self.remote = self.ray.remote(_run_on_node)

    def has_room(self, task: Task) -> bool:
        return len(self.tasks) < MOST_IN_FLIGHT

    def submit(self, task: Task) -> None:
        asked = task.resources
        able = able_nodes([n["Resources"] for n in self.ray.nodes() if n["Alive"]], asked)
        if not able:
            self.refused.append((task, JobResult(None, failure_row(LOST, _none_able(asked)))))
            return
        cpus = max(n["CPU"] for n in able) if task.alone else asked.cpus  # of the largest: no other fits beside it
        memory = {} if asked.memory_gb is None else {"memory": int(asked.memory_gb * (1 << 30))}
        run = self.remote.options(num_cpus=cpus, resources=dict(asked.custom), max_retries=RETRIES, **memory)
        self.tasks[run.remote(task.job, self._stored(task.prepared), task.timeout)] = task

    def _stored(self, folder: Path | None) -> Any:
        if folder is None:
            return None
        if folder not in self.stored:
            self.stored[folder] = self.ray.put({p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()})
        return self.stored[folder]

    def running(self) -> int:
        return len(self.tasks) + len(self.refused)

    def wait_for_one(self) -> tuple[Task, JobResult]:
        if self.refused:
            return self.refused.popleft()
        done, _ = self.ray.wait(list(self.tasks), num_returns=1)
        task = self.tasks.pop(done[0])
        try:
            return task, self.ray.get(done[0])
        except Exception as e:  # the node is gone, and so are those of all retries; or the task cannot be placed
            text = f"Ray lost it {RETRIES + 1} times: {type(e).__name__}: {first_sentence(e)}"
            return task, JobResult(None, failure_row(LOST, text))

    def close(self) -> None:
        for task in self.tasks:
            self.ray.cancel(task, force=True)
        self.ray.shutdown()


def _knock(address: str) -> None:
    """Nobody there is found out in seconds; Ray itself tries for minutes. "auto" it looks up."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _environment(base: Path, output: Path | None) -> dict[str, Any]:
    """The folder of the fleet goes to each node, without what sweeps wrote into it."""
    swept = {*([output.resolve()] if output else []), *(p.parent for p in base.glob(f"*/{FLEET}"))}
    written = [f"/{p.relative_to(base)}/" for p in sorted(swept) if base in p.parents]
    return {"working_dir": str(base), "excludes": [*written, ".git/", ".venv/", "__pycache__/"]}


def able_nodes(nodes: Iterable[Mapping[str, float]], asked: Resources) -> list[Mapping[str, float]]:
    """Nodes that have what a task asks for. A head that runs no tasks has no cores."""
    wanted = {"CPU": asked.cpus, "memory": (asked.memory_gb or 0) * (1 << 30), **asked.custom}
    return [n for n in nodes if n.get("CPU", 0) > 0 and all(n.get(k, 0) >= v for k, v in wanted.items())]


def _none_able(asked: Resources) -> str:
    memory = [] if asked.memory_gb is None else [f"{asked.memory_gb:g} GB of memory"]
    wanted = [f"{asked.cpus:g} cores", *memory, *(f"{v:g} {k}" for k, v in asked.custom.items())]
    return f"no node of the cluster has {', '.join(wanted)}; start one, then run the sweep again"


def _imported_ray() -> Any:
    try:
        import ray
    except ImportError as e:
        raise InputError("Ray is not installed", why=str(e), hint="pip install 'ingot[ray]'") from e
    return ray


def _run_on_node(job: Job, prepared: Files | None, timeout: float) -> JobResult:
    """In a worker of Ray: a child of its fork server runs the job."""
    from dataclasses import replace

    here = Path.cwd()  # the copy of the fleet's folder that Ray made
    folder = None if prepared is None else _on_disk(prepared, here)
    result = _server().run(replace(job, folder=str(here)), folder, timeout)
    if not here.is_dir():  # the node is being torn down: what the job says is about that, not about its cell
        os._exit(1)  # Ray tries a task whose worker died on another node
    return result


@cache
def _server() -> ForkServer:
    """One for each worker process of Ray, which runs many tasks."""
    return ForkServer.start()


def _on_disk(files: Files, home: Path) -> Path:
    """Once for each model and node: workers of a node share the copy of the fleet's folder, which Ray removes."""
    folder = home / PREPARED / hashlib.sha256(files["prepared.json"]).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, data in files.items():
            (made / name).write_bytes(data)
        with suppress(OSError):  # another worker was first
            made.rename(folder)
    return folder
