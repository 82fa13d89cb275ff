"""Runs a .pte in a worker process: a native crash or a hang becomes an ArtefactError.

One worker serves all calls of this process, because its imports take a second. It is replaced after a crash or a hang,
stopped at exit, and ends by itself at the end of its standard input, that is, with its parent.

Protocol: one JSON line for each request, one JSON line for each batch of the answer. The program and the tensors are
files in a folder of the worker, which keeps their strides (channels-last).
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ingot.core.versions import install_line
from ingot.errors import ArtefactError, NoRuntimeError
from ingot.runtime.worker_process import TRACE_FILE, load_tensors, write_message

NOT_STARTED = "the runtime did not start"
START_TIMEOUT = 120.0  # seconds for the imports of the worker
ORPHAN_GRACE = 10  # seconds after the timeout until a hanging worker without a parent ends itself
# The worker gets the parent's sys.path: -m would put the current folder first and miss entries added at run time.
BOOTSTRAP = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from ingot.runtime.worker_process import worker_main; worker_main(sys.argv[2])"
)
_ARGUMENT = re.compile(r"arg \d+ with type id \d+$")  # the runtime lists all arguments of a kernel that fails


def run_pte(
    pte: bytes,
    batches: Sequence[tuple[Any, ...]],
    *,
    timeout: float = 120,
    fresh: bool = True,
    method: str = "forward",
) -> list[list[Tensor]]:
    """The outputs of the program by batch.

    `fresh` loads the program again for each batch, so that its mutable buffers start from their initial state.
    `timeout` is in seconds for each batch, including loading.
    """
    return _with_worker(lambda: _ready_worker().run(pte, batches, timeout, fresh, method))


def trace_pte(pte: bytes, batch: tuple[Any, ...], runs: int, *, timeout: float = 120) -> bytes:
    """The ETDump of `runs` profiled runs of one batch."""
    return _with_worker(lambda: _ready_worker().trace(pte, batch, runs, timeout))


def start_worker() -> None:
    """Start the worker's imports in the background. A failure is raised by the first run."""
    with suppress(ArtefactError):
        _with_worker(_started_worker)


_T = TypeVar("_T")


def _with_worker(work: Callable[[], _T]) -> _T:
    with _lock:
        try:
            return work()
        except _Refused as e:  # the worker still works
            raise ArtefactError(e.what, why=e.why, hint=e.hint) from None
        except BaseException:  # also Ctrl-C: later answers would belong to this request
            stop_worker()
            raise


class _Refused(Exception):
    """The runtime raised a Python exception."""

    def __init__(self, what: str, why: str, hint: str):
        self.what, self.why, self.hint = what, why, hint


class _Worker:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ingot-child-"))
        self.log, self.ready = self.folder / "log", False
        command = [sys.executable, "-c", BOOTSTRAP, os.pathsep.join(sys.path), str(self.folder)]
        pipe = subprocess.PIPE
        try:
            with self.log.open("ab") as log:  # append mode, so that it can be truncated between requests
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def wait_until_ready(self) -> None:
        try:
            self._receive(START_TIMEOUT, NOT_STARTED, f"reinstall ExecuTorch: {install_line('executorch')}")
        except ArtefactError as e:
            raise NoRuntimeError(e.what, why=e.why, hint=e.hint) from e.__cause__
        self.ready = True

    def run(
        self, pte: bytes, batches: Sequence[tuple[Any, ...]], timeout: float, fresh: bool, method: str
    ) -> list[list[Tensor]]:
        self._write_files(pte, batches)
        self._send(
            {"batches": len(batches), "fresh": fresh, "method": method, "seconds": math.ceil(timeout) + ORPHAN_GRACE}
        )
        return [self._outputs(i, timeout) for i in range(len(batches))]

    def trace(self, pte: bytes, batch: tuple[Any, ...], runs: int, timeout: float) -> bytes:
        self._write_files(pte, [batch])
        self._send({"trace": runs, "seconds": math.ceil(timeout) + ORPHAN_GRACE})
        answer = self._receive(timeout, "the program was not traced", _HINTS["crash"])
        if "error" in answer:
            raise _Refused("the program was not traced", self._why(answer["error"]), _HINTS["run"])
        return (self.folder / TRACE_FILE).read_bytes()

    def _write_files(self, pte: bytes, batches: Sequence[tuple[Any, ...]]) -> None:
        program = self.folder / "program.pte"
        try:
            os.truncate(self.log, 0)
            program.unlink(missing_ok=True)  # a new file: the worker may have the old one mapped
            program.write_bytes(pte)
            for i, batch in enumerate(batches):
                torch.save([_portable(x) for x in batch], self.folder / f"in{i}.pt")
        except (OSError, RuntimeError) as e:  # torch.save raises RuntimeError if the disk is full
            hint = f"free space in {self.folder.parent}, or set TMPDIR to another folder"
            raise ArtefactError("the program could not be written for the runtime", why=str(e), hint=hint) from e

    def _send(self, request: dict[str, Any]) -> None:
        try:
            write_message(self.process.stdin, request)
        except OSError as e:
            raise self._ended("the program did not run", _HINTS["crash"]) from e

    def _outputs(self, i: int, timeout: float) -> list[Tensor]:
        answer = self._receive(timeout, f"the program did not finish batch {i}", _HINTS["crash"])
        if "error" in answer:
            what = f"the program does not {answer['stage']}" + (f" on batch {i}" if answer["stage"] == "run" else "")
            raise _Refused(what, self._why(answer["error"]), _HINTS[answer["stage"]])
        return load_tensors(self.folder / f"out{i}.pt")

    def _receive(self, timeout: float, what: str, hint: str) -> dict[str, Any]:
        """The next line. A timer kills the worker at the timeout, which also ends the read."""
        expired = threading.Event()
        timer = threading.Timer(timeout, self._expire, (expired,))
        timer.daemon = True
        timer.start()
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        timer.cancel()
        timer.join()
        if expired.is_set():
            hint = "raise the timeout if the program is slow; a hang is a bug in the backend"
            raise ArtefactError(what, why=self._why(f"it took more than {timeout:g} seconds and was killed"), hint=hint)
        if not line.endswith(b"\n"):
            raise self._ended(what, hint)
        return json.loads(line)

    def _expire(self, expired: threading.Event) -> None:
        expired.set()
        self.process.kill()

    def _ended(self, what: str, hint: str) -> ArtefactError:
        code = self.process.wait()
        return ArtefactError(what, why=self._why(f"the runtime ended with {_exit_reason(code)}"), hint=hint)

    def _why(self, reason: str) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if not _ARGUMENT.search(line)]
        return f"{reason}; its last lines: {' | '.join(telling[-4:])}" if telling else reason

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()  # type: ignore[union-attr]
        shutil.rmtree(self.folder, ignore_errors=True)


_HINTS = {
    "crash": "the file is damaged or the backend has a bug: lower it again, or without the delegate",
    "load": "check that the .pte is complete, and that this runtime has its backend and kernels",
    "run": "give the inputs that it was lowered for: the same number, shapes and dtypes",
}
_lock = threading.RLock()
_current: _Worker | None = None


def _ready_worker() -> _Worker:
    worker = _started_worker()
    if not worker.ready:
        worker.wait_until_ready()
    return worker


def _started_worker() -> _Worker:
    global _current
    if _current is not None and (_current.process.poll() is not None or not _current.log.exists()):
        stop_worker()  # it ended, or someone has cleaned the folder of temporary files
    if _current is None:
        _current = _spawn()
    return _current


def _spawn() -> _Worker:
    try:
        return _Worker()
    except OSError as e:
        hint = f"free space in {tempfile.gettempdir()}, or set TMPDIR to another folder"
        raise NoRuntimeError(NOT_STARTED, why=str(e), hint=hint) from e


@atexit.register
def stop_worker() -> None:
    """Stop the worker, if there is one."""
    global _current
    worker, _current = _current, None
    if worker is not None:
        worker.close()


def _reset_after_fork() -> None:
    """After a fork the worker belongs to the parent: two readers would mix up its answers."""
    global _current, _lock
    _current, _lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _portable(x: Any) -> Any:
    # A clone keeps dense strides and copies a slice without the rest of its storage.
    return x.detach().cpu().clone(memory_format=torch.preserve_format) if isinstance(x, Tensor) else x


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
