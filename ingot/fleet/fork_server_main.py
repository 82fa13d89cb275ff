"""The process of a `ForkServer`: `python -m ingot.fleet.fork_server_main FD`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from ingot.fleet.fork_server import ANSWER, LOG, POLL_SECONDS
from ingot.fleet.jobs import Job, execute_job


def serve(connection: Connection) -> None:
    """Fork a child for each job, say when it has ended; end with the owner."""
    children: dict[int, int] = {}  # job by process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which closes the connection
    try:
        while True:
            if connection.poll(POLL_SECONDS):
                number, *work = connection.recv()
                pid = _fork(connection, *work)
                children[pid] = number
                connection.send(("started", number, pid))
            for pid, code in _ended(children):
                connection.send(("ended", children.pop(pid), code))
    except (EOFError, OSError):
        for pid in children:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)


def _ended(children: dict[int, int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        if pid in children:
            found.append((pid, os.waitstatus_to_exitcode(status)))
    return found


def _fork(connection: Connection, job: Job, prepared: Path | None, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()  # a group of its own: what it starts can be killed with it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        connection.close()
        _redirect(folder / LOG)
        files = execute_job(job, prepared)
        (folder / ANSWER).write_bytes(pickle.dumps(files))
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(file: Path) -> None:
    log = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _import_everything() -> None:
    """What every job needs; nothing here starts a thread, so that a fork is safe."""
    from ingot.targets.registry import available_targets

    available_targets()


if __name__ == "__main__":
    _import_everything()
    serve(Connection(int(sys.argv[1])))
