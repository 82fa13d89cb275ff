"""A process that has imported everything and forks a child for each job: seconds of imports are paid once.

A child that crashes, hangs or is killed costs its own job. When the owner of the server ends, however it ends, the
server kills its children and ends too.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from ingot.fleet.jobs import Files, Job
from ingot.fleet.rows import CRASHED, LOST, TIMED_OUT, Row, failure_row

LOG, ANSWER = "log.txt", "answer.pickle"
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class JobResult:
    """Files by name, or why there are none; what the job printed."""

    files: Files | None
    failure: Row | None
    log: bytes = b""


@dataclass
class ForkServer:
    """One server process. `run` may be called from several threads."""

    process: subprocess.Popen[bytes]
    connection: Connection
    scratch: tempfile.TemporaryDirectory[str]
    lock: threading.Lock = field(default_factory=threading.Lock)
    pids: dict[int, int] = field(default_factory=dict)  # by job
    codes: dict[int, int] = field(default_factory=dict)
    next: int = 0

    @classmethod
    def start(cls, at_a_time: int = 1) -> ForkServer:
        """For so many jobs at a time: they share the cores."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "ingot.fleet.fork_server_main", str(theirs.fileno())]
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=_environment(at_a_time)
            )
        return cls(process, Connection(ours.detach()), tempfile.TemporaryDirectory(prefix="ingot-fleet-"))

    def run(self, job: Job, prepared: Path | None, timeout: float) -> JobResult:
        """Blocks until the job has ended. A job that is killed from outside is tried once more."""
        result = self._run(job, prepared, timeout)
        if result.failure is not None and result.failure["verdict"] == LOST and self.process.poll() is None:
            result = self._run(job, prepared, timeout)
        return result

    def close(self) -> None:
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.scratch.cleanup()

    def _run(self, job: Job, prepared: Path | None, timeout: float) -> JobResult:
        with tempfile.TemporaryDirectory(dir=self.scratch.name) as name:
            folder, deadline, expired = Path(name), math.inf, False
            number = self._send(job, prepared, folder)
            while (code := self._ended(number)) is None:
                time.sleep(POLL_SECONDS)
                if number in self.pids:  # it has started: the imports of the server are not its time
                    deadline = min(deadline, time.monotonic() + timeout)
                if time.monotonic() > deadline and not expired:
                    expired = self._kill(number)
            return _result(folder, code, timeout if expired else None)

    def _send(self, job: Job, prepared: Path | None, folder: Path) -> int:
        with self.lock:
            self.next += 1
            with suppress(OSError):  # a server that died: `_ended` says so
                self.connection.send((self.next, job, prepared, folder))
            return self.next

    def _ended(self, number: int) -> int | None:
        """The exit code, once there is one."""
        with self.lock:
            with suppress(OSError, EOFError):
                while self.connection.poll():
                    kind, job, value = self.connection.recv()
                    (self.pids if kind == "started" else self.codes)[job] = value
            if number not in self.codes and self.process.poll() is not None:
                return -signal.SIGKILL
            return self.codes.pop(number, None)

    def _kill(self, number: int) -> bool:
        if number not in self.pids:
            return False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pids[number], signal.SIGKILL)
        return True


def _environment(at_a_time: int) -> Mapping[str, str]:
    """The packages that this process finds, the server finds too. Threads that the user asked for are kept."""
    paths, cores = [p for p in sys.path if p], os.cpu_count() or 1
    threads = {"OMP_NUM_THREADS": str(max(1, cores // at_a_time))} if at_a_time > 1 else {}
    return {**threads, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _result(folder: Path, code: int, expired_after: float | None) -> JobResult:
    log = (folder / LOG).read_bytes() if (folder / LOG).exists() else b""
    tail = log.decode(errors="replace")
    if expired_after is not None:
        return JobResult(None, failure_row(TIMED_OUT, f"it took more than {expired_after:g} seconds", tail), log)
    if code == 0 and (folder / ANSWER).exists():
        return JobResult(pickle.loads((folder / ANSWER).read_bytes()), None, log)
    return JobResult(None, _failure(code, tail), log)


def _failure(code: int, tail: str) -> Row:
    if code == -signal.SIGKILL:
        return failure_row(LOST, "its process was killed: by the system for want of memory, or by someone", tail)
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return failure_row(CRASHED, f"its process ended with {ended}", tail)
