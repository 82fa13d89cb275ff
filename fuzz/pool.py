"""Workers that die alone: the parent knows which program each has, kills what hangs and goes on."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RENEWED_AFTER = 400  # programs: one that has left something behind does not spoil all later ones
MOST_BYTES = 4 << 30
START_SECONDS = 180.0
WORKER = (sys.executable, "-m", "fuzz.worker")


class FuzzWorker:
    """One worker process and its log."""

    def __init__(self, seconds: float, command: Sequence[str]) -> None:
        self.seconds, self.done = seconds, 0
        self.log = tempfile.TemporaryFile("ab+")  # noqa: SIM115  open as long as the worker lives
        pipe = subprocess.PIPE
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.log, env=env, start_new_session=True
        )
        self.request: dict[str, Any] | None = None
        self.since, self.ready, self.buffer = time.monotonic(), False, b""

    def send(self, request: dict[str, Any]) -> None:
        self.request, self.since = request, time.monotonic()
        self.log.seek(0)
        self.log.truncate()
        stdin: Any = self.process.stdin
        try:
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        except OSError:
            pass  # it is dead: the answer says so

    def poll(self) -> dict[str, Any] | None:
        """The answer, if there is one now; a death or a hang is an answer too."""
        stdout: Any = self.process.stdout
        if select.select([stdout], [], [], 0)[0]:
            made = os.read(stdout.fileno(), 1 << 20)
            if not made:
                return self._ended("died", f"signal or exit {self.process.wait()}")
            self.buffer += made
        if b"\n" in self.buffer:
            line, _, self.buffer = self.buffer.partition(b"\n")
            self.done += 1
            return json.loads(line)
        if self.ready and self.request is None:
            return None  # it waits for a program
        limit = self.seconds if self.ready else START_SECONDS
        return self._ended("hang", f"more than {limit:g} seconds") if time.monotonic() - self.since > limit else None

    def _ended(self, kind: str, reason: str) -> dict[str, Any]:
        self.close()
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")
        seed = (self.request or {}).get("seed", -1)
        target = (self.request or {}).get("target") or (self.request or {}).get("program", {}).get("target", "")
        return {"seed": seed, "target": target or "", "kind": kind, "reason": reason, "text": said[-3000:]}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def spent(self, renewed_after: int) -> bool:
        return self.done > renewed_after or not self.alive or _resident(self.process.pid) > MOST_BYTES

    def close(self) -> None:
        """With its children: it leads a session of its own."""
        if self.alive:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _wait_for_one(pool: Sequence[FuzzWorker]) -> None:
    """Until a worker has something to say, or for so long that a hang is not seen much later."""
    select.select([worker.process.stdout for worker in pool], [], [], 0.5)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def run_all(
    requests: Iterator[dict[str, Any]], workers: int, seconds: float, command: Sequence[str] = WORKER,
    renewed_after: int = RENEWED_AFTER,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:  # fmt: skip
    """Each request and its answer, as they come."""
    pool: list[FuzzWorker] = []
    waiting = next(requests, None)
    try:
        while waiting is not None or any(w.request for w in pool):
            while waiting is not None and len(pool) < workers:
                pool.append(FuzzWorker(seconds, command))
            _wait_for_one(pool)
            for worker in list(pool):
                answer = worker.poll()
                if answer is not None and "ready" in answer:
                    worker.ready, answer = True, None
                elif answer is not None:
                    if worker.request is None:
                        raise RuntimeError(f"a worker does not start: {answer['text']}")
                    yield worker.request, answer
                    worker.request = None
                    if worker.spent(renewed_after):
                        worker.close()
                        pool.remove(worker)
                        continue
                if worker.ready and worker.request is None and waiting is not None:
                    worker.send(waiting)
                    waiting = next(requests, None)
    finally:
        for worker in pool:
            worker.close()
