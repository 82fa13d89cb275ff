"""Jobs on a Ray cluster: Ray schedules them, moves prepared models through its object store and retries lost nodes."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from ingot.errors import InputError, TargetError, first_sentence
from ingot.fleet.engine import Task
from ingot.fleet.fork_server import ForkServer, JobResult
from ingot.fleet.jobs import Job
from ingot.fleet.rows import LOST, failure_row

MOST_IN_FLIGHT = 2000  # tasks that Ray holds at a time; the rest waits here
RETRIES = 3  # of a task whose node or worker was lost
Files = dict[str, bytes]


class RayEngine:
    """`address` is "auto" (the cluster of this machine) or ray://host:port."""

    def __init__(self, address: str, base: Path):
        self.ray = _imported_ray()
        self.stored: dict[Path, Any] = {}  # prepared models, put into the object store once
        self.tasks: dict[Any, Task] = {}
        try:
            self.ray.init(address=address, runtime_env={"working_dir": str(base)}, log_to_driver=False)
        except Exception as e:
            hint = "is it running? `ray start --head`; leave --ray out to use this machine"
            raise TargetError(f"no Ray cluster at '{address}'", why=first_sentence(e), hint=hint) from e
        self.remote = self.ray.remote(_run_on_node)
        self.node_cpus = min(n["Resources"].get("CPU", 1.0) for n in self.ray.nodes() if n["Alive"])

    def has_room(self, task: Task) -> bool:
        return len(self.tasks) < MOST_IN_FLIGHT

    def submit(self, task: Task) -> None:
        asked: dict[str, Any] = {"num_cpus": self.node_cpus if task.alone else task.resources.cpus}
        if task.resources.memory_gb is not None:
            asked["memory"] = int(task.resources.memory_gb * (1 << 30))
        run = self.remote.options(resources=dict(task.resources.custom), max_retries=RETRIES, **asked)
        self.tasks[run.remote(task.job, self._stored(task.prepared), task.timeout)] = task

    def _stored(self, folder: Path | None) -> Any:
        if folder is None:
            return None
        if folder not in self.stored:
            self.stored[folder] = self.ray.put({p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()})
        return self.stored[folder]

    def running(self) -> int:
        return len(self.tasks)

    def wait_for_one(self) -> tuple[Task, JobResult]:
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


def _imported_ray() -> Any:
    try:
        import ray
    except ImportError as e:
        raise InputError("Ray is not installed", why=str(e), hint="pip install 'ingot[ray]'") from e
    return ray


def _run_on_node(job: Job, prepared: Files | None, timeout: float) -> JobResult:
    """In a worker of Ray: a child of its fork server runs the job."""
    from dataclasses import replace

    here = str(Path.cwd())  # the copy of the fleet's folder that Ray made
    return _server().run(replace(job, folder=here), None if prepared is None else _on_disk(prepared), timeout)


@cache
def _server() -> ForkServer:
    """One for each worker process of Ray, which runs many tasks."""
    return ForkServer.start()


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="ingot-prepared-"))


def _on_disk(files: Files) -> Path:
    """Once for each model and worker."""
    folder = _scratch() / hashlib.sha256(files["prepared.json"]).hexdigest()[:16]
    if not folder.exists():
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
    return folder
