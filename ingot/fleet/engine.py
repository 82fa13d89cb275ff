"""Where jobs run. The engine of this machine; that of a Ray cluster is in `ray_engine.py`."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ingot.fleet.fork_server import ForkServer, JobResult
from ingot.fleet.jobs import Job
from ingot.fleet.spec import Resources


@dataclass(frozen=True)
class Task:
    """A job, what it needs, and whose prepared model it reads."""

    job: Job
    timeout: float
    prepared: Path | None = None
    resources: Resources = field(default_factory=Resources)
    alone: bool = False  # on its machine: it measures time


class Engine(Protocol):
    """Runs tasks. `submit` returns at once; `wait_for_one` gives the next that has ended."""

    def has_room(self, task: Task) -> bool: ...

    def submit(self, task: Task) -> None: ...

    def running(self) -> int: ...

    def wait_for_one(self) -> tuple[Task, JobResult]: ...

    def close(self) -> None: ...


class LocalEngine:
    """So many processes at a time on this machine."""

    def __init__(self, processes: int):
        self.processes, self.server = processes, ForkServer.start(processes)
        self.threads = ThreadPoolExecutor(processes)
        self.futures: dict[Future[JobResult], Task] = {}

    def has_room(self, task: Task) -> bool:
        if task.alone or any(t.alone for t in self.futures.values()):
            return not self.futures
        return len(self.futures) < self.processes

    def submit(self, task: Task) -> None:
        self.futures[self.threads.submit(self.server.run, task.job, task.prepared, task.timeout)] = task

    def running(self) -> int:
        return len(self.futures)

    def wait_for_one(self) -> tuple[Task, JobResult]:
        done = next(iter(wait(self.futures, return_when=FIRST_COMPLETED).done))
        return self.futures.pop(done), done.result()

    def close(self) -> None:
        self.server.close()  # kills what still runs, so that the threads end
        self.threads.shutdown(cancel_futures=True)
