"""Run a .pte in a child process, so that a native crash or a hang becomes a sentence and not a dead interpreter.

One worker serves all calls of this process, because its imports take a second. It is replaced after a crash or a hang,
closed at exit, and ends by itself when its standard input does, that is, with its parent.

A request is one JSON line in, and one JSON line out for each batch. Tensors and the program travel as files in a folder
of the worker's own, so that strides (channels-last) arrive as they were.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from torch import Tensor

from ingot.errors import ArtefactError
from ingot.runtime.bindings import load_method, runtime_bindings

START_TIMEOUT = 120.0  # seconds a worker may take to import the runtime
TRACE_FILE = "trace.etdp"
ORPHAN_GRACE = 10  # seconds after the limit at which an orphan that hangs is ended by its own alarm
# The child sees what the parent sees: -m would put the current folder first, and miss a package found in another way.
BOOTSTRAP = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from ingot.runtime.worker import worker_main; worker_main(sys.argv[2])"
)


def run_pte(
    pte: bytes,
    batches: Sequence[tuple[Any, ...]],
    *,
    timeout: float = 120,
    fresh: bool = True,
    method: str = "forward",
) -> list[list[Tensor]]:
    """The outputs of the program for each batch.

    `fresh` loads the program anew for each batch, so that its mutable buffers start from their initial state.
    `timeout` is in seconds and for each batch, loading included.
    """
    return _with_worker(lambda: _ready_worker().run(pte, batches, timeout, fresh, method))


def trace_pte(pte: bytes, batch: tuple[Any, ...], runs: int, *, timeout: float = 120) -> bytes:
    """What the runtime's profiler saw of some runs of one batch: an ETDump."""
    return _with_worker(lambda: _ready_worker().trace(pte, batch, runs, timeout))


def start_worker() -> None:
    """Its imports, while there is other work to do. Who needs it is told if that fails."""
    with suppress(ArtefactError):
        _with_worker(_started_worker)


_T = TypeVar("_T")


def _with_worker(work: Callable[[], _T]) -> _T:
    with _lock:
        try:
            return work()
        except _Refused as e:  # the worker itself is well
            raise ArtefactError(e.what, why=e.why, hint=e.hint) from None
        except BaseException:  # also Ctrl-C: whatever it still answers belongs to nobody
            stop_worker()
            raise


class _Refused(Exception):
    """The runtime said no, in a Python exception."""

    def __init__(self, what: str, why: str, hint: str):
        self.what, self.why, self.hint = what, why, hint


class _Worker:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ingot-child-"))
        self.log, self.ready = self.folder / "log", False
        command = [sys.executable, "-c", BOOTSTRAP, os.pathsep.join(sys.path), str(self.folder)]
        with self.log.open("ab") as log:  # appending, so that it can be emptied between requests
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def wait_until_ready(self) -> None:
        self._answer(
            START_TIMEOUT, "the runtime did not start", "is executorch installed whole? pip install executorch==1.5.1"
        )
        self.ready = True

    def run(
        self, pte: bytes, batches: Sequence[tuple[Any, ...]], timeout: float, fresh: bool, method: str
    ) -> list[list[Tensor]]:
        os.truncate(self.log, 0)
        self._hand_over(pte, batches)
        self._ask(
            {"batches": len(batches), "fresh": fresh, "method": method, "seconds": math.ceil(timeout) + ORPHAN_GRACE}
        )
        return [self._outputs(i, timeout) for i in range(len(batches))]

    def trace(self, pte: bytes, batch: tuple[Any, ...], runs: int, timeout: float) -> bytes:
        os.truncate(self.log, 0)
        self._hand_over(pte, [batch])
        self._ask({"trace": runs, "seconds": math.ceil(timeout) + ORPHAN_GRACE})
        answer = self._answer(timeout, "the program was not traced", _HINTS["crash"])
        if "error" in answer:
            raise _Refused("the program was not traced", self._why(answer["error"]), _HINTS["run"])
        return (self.folder / TRACE_FILE).read_bytes()

    def _hand_over(self, pte: bytes, batches: Sequence[tuple[Any, ...]]) -> None:
        program = self.folder / "program.pte"
        program.unlink(missing_ok=True)  # never written into: the worker may have the old one mapped
        try:
            program.write_bytes(pte)
            for i, batch in enumerate(batches):
                torch.save([_portable(x) for x in batch], self.folder / f"in{i}.pt")
        except (OSError, RuntimeError) as e:  # torch.save tells of a full disk with the latter
            hint = f"free some space in {self.folder.parent}, or name another folder in TMPDIR"
            raise ArtefactError("could not hand the program to the runtime", why=str(e), hint=hint) from e

    def _ask(self, request: dict[str, Any]) -> None:
        try:
            _write(self.process.stdin, request)
        except OSError as e:
            raise self._ended("the program did not run", _HINTS["crash"]) from e

    def _outputs(self, i: int, timeout: float) -> list[Tensor]:
        answer = self._answer(timeout, f"the program did not get through batch {i}", _HINTS["crash"])
        if "error" in answer:
            what = f"the program does not {answer['stage']}" + (f" on batch {i}" if answer["stage"] == "run" else "")
            raise _Refused(what, self._why(answer["error"]), _HINTS[answer["stage"]])
        return _load_tensors(self.folder / f"out{i}.pt")

    def _answer(self, timeout: float, what: str, hint: str) -> dict[str, Any]:
        """The next line. The limit works by ending the worker, which ends its line: no waiting on two things."""
        expired = threading.Event()
        timer = threading.Timer(timeout, self._expire, (expired,))
        timer.daemon = True
        timer.start()
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        timer.cancel()
        timer.join()
        if expired.is_set():
            hint = "raise the limit if the program is merely slow; a hang is the backend's"
            raise ArtefactError(what, why=self._why(f"it took more than {timeout:g} seconds and was ended"), hint=hint)
        if not line.endswith(b"\n"):
            raise self._ended(what, hint)
        return json.loads(line)

    def _expire(self, expired: threading.Event) -> None:
        expired.set()
        self.process.kill()

    def _ended(self, what: str, hint: str) -> ArtefactError:
        code = self.process.wait()
        return ArtefactError(what, why=self._why(f"the runtime ended by {_exit_reason(code)}"), hint=hint)

    def _why(self, reason: str) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{reason}; its last lines: {' | '.join(lines[-4:])}" if lines else reason

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()  # type: ignore[union-attr]
        shutil.rmtree(self.folder, ignore_errors=True)


_HINTS = {
    "crash": "a damaged file or a bug of the backend: lower it again, or without the delegate",
    "load": "is it a whole .pte, lowered for a backend and with kernels that this runtime has?",
    "run": "give it the inputs it was lowered for: as many, of the same shapes and dtypes",
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
    if _current is not None and _current.process.poll() is not None:
        stop_worker()
    if _current is None:
        _current = _spawn()
    return _current


def _spawn() -> _Worker:
    try:
        return _Worker()
    except OSError as e:
        hint = f"free some space in {tempfile.gettempdir()}, or name another folder in TMPDIR"
        raise ArtefactError("the runtime did not start", why=str(e), hint=hint) from e


@atexit.register
def stop_worker() -> None:
    """End the worker, if there is one."""
    global _current
    worker, _current = _current, None
    if worker is not None:
        worker.close()


def _reset_after_fork() -> None:
    """After a fork the worker is the parent's: answers must not be read by two."""
    global _current, _lock
    _current, _lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _portable(x: Any) -> Any:
    # A clone keeps dense strides, and drops the rest of a storage of which this is a slice.
    return x.detach().cpu().clone(memory_format=torch.preserve_format) if isinstance(x, Tensor) else x


def _load_tensors(path: Path) -> list[Any]:
    tensors = torch.load(path, weights_only=True)
    path.unlink()
    return tensors


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def _write(stream: IO[bytes] | None, message: dict[str, Any]) -> None:
    assert stream is not None
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


# ---- from here on: inside the child ----


def worker_main(folder: str) -> None:
    # Native code prints where it likes: the real standard output is for answers only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    runtime_bindings()  # its imports
    _write(answers, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        (_trace if "trace" in request else _serve)(Path(folder), request, answers)
    shutil.rmtree(folder, ignore_errors=True)  # the parent is gone, perhaps without having been able to


def _serve(folder: Path, request: dict[str, Any], answers: IO[bytes]) -> None:
    """Answer for each batch, up to the first that fails."""
    loaded = None
    for i in range(request["batches"]):
        _alarm(request["seconds"])
        stage = "load"
        try:
            if loaded is None or request["fresh"]:
                loaded = load_method(folder / "program.pte", request["method"])
            stage = "run"
            inputs = _load_tensors(folder / f"in{i}.pt")
            torch.save(list(loaded[1](inputs)), folder / f"out{i}.pt")
        except Exception as e:
            _alarm(0)
            return _write(answers, {"stage": stage, "error": f"{type(e).__name__}: {e}"})
        _alarm(0)
        _write(answers, {"batch": i})


def _trace(folder: Path, request: dict[str, Any], answers: IO[bytes]) -> None:
    _alarm(request["seconds"])
    try:
        program = runtime_bindings()._load_program(str(folder / "program.pte"), enable_etdump=True)
        method, inputs = program.load_method("forward"), _load_tensors(folder / "in0.pt")
        for _ in range(request["trace"]):
            method(inputs)
        program.write_etdump_result_to_file(str(folder / TRACE_FILE), str(folder / "unused"))
        _write(answers, {"traced": True})
    except Exception as e:
        _write(answers, {"error": f"{type(e).__name__}: {e}"})
    _alarm(0)


def _alarm(seconds: int) -> None:
    """Ends this process even in native code: for the case that the parent, who keeps the time, is gone."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)
