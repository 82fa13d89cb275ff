"""Runs native code in a forked child process: a crash or a hang there becomes an exception here."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import IO

LAST_LINES = 4
CAN_FORK = sys.platform == "linux"  # elsewhere a fork of a process with threads is not safe


class ChildError(RuntimeError):
    """The work failed, crashed or took too long; with the last lines that it printed."""


def run_forked(work: Callable[[], object], seconds: float, what: str) -> None:
    """Run `work` for its effects on files. For code that uses no threads of this process (no torch, no OpenMP)."""
    with tempfile.TemporaryFile("w+b") as log:
        child = _fork(work, log)
        expired = threading.Event()
        timer = threading.Timer(seconds, _expire, (child, expired))
        timer.daemon = True
        timer.start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        timer.cancel()
        timer.join()
        if code:
            ended = f"it took more than {seconds:g} seconds" if expired.is_set() else _reason(code)
            raise ChildError(f"{what} failed: {_last_lines(log) or ended}")


def _fork(work: Callable[[], object], log: IO[bytes]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads; the child does not use them
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        faulthandler.disable()  # it would write to the parent's terminal
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        code = _run(work)
    finally:
        os._exit(code)


def _run(work: Callable[[], object]) -> int:
    """In the child: what it prints and raises goes to the log."""
    with open(1, "w", closefd=False) as out:
        sys.stdout = sys.stderr = out
        try:
            return int(work() or 0)  # type: ignore[call-overload]
        except BaseException as e:
            print(f"{type(e).__name__}: {e}")
            return 1


def _expire(child: int, expired: threading.Event) -> None:
    expired.set()
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def _reason(code: int) -> str:
    return f"it ended with signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_lines(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return " | ".join((errors or lines)[-LAST_LINES:])
