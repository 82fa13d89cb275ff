"""Files and folders that are being written: hidden, beside what they replace, locked by the process that writes them.

A process that is killed leaves its partial file. Nobody holds its lock then, so the next write of the same file removes
it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

SUFFIX = ".partial"


@contextmanager
def partial_file(target: Path) -> Iterator[Path]:
    """An empty file next to `target`; what is still there at the end is deleted."""
    with _locked(target.name, target.parent, _new_file) as path:
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def partial_folder(target: Path, place: Path) -> Iterator[Path]:
    """An empty folder in `place` whose files will go to `target`; what is still there at the end is deleted."""
    remove_abandoned(target.name, target.parent)  # as long as `target` did not exist, it was made there
    with _locked(target.name, place, lambda path: path.mkdir(mode=0o700)) as path:
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _new_file(path: Path) -> None:
    path.open("xb").close()  # with the permissions of any new file; a private temporary file has others


@contextmanager
def _locked(name: str, place: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    remove_abandoned(name, place)
    path, held = _made_and_locked(name, place, make)
    try:
        yield path
    finally:
        os.close(held)


def _made_and_locked(name: str, place: Path, make: Callable[[Path], None]) -> tuple[Path, int]:
    """Again where another process took it for abandoned, between its making and its lock."""
    while True:
        path = place / f".{name}.{uuid4().hex}{SUFFIX}"
        make(path)
        with suppress(FileNotFoundError):
            return path, _lock(path)


def _lock(path: Path) -> int:
    held = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks: nothing is ever taken for abandoned there
        fcntl.flock(held, fcntl.LOCK_EX)
    if not path.exists():
        os.close(held)
        raise FileNotFoundError(path)
    return held


def remove_abandoned(name: str, place: Path) -> None:
    """Partial files of `name` in the folder `place` whose writer is dead."""
    for path in place.glob(f".{glob.escape(name)}.{'[0-9a-f]' * 32}{SUFFIX}"):
        with suppress(OSError):  # locked: somebody is writing it; or it has just gone
            held = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(held)
