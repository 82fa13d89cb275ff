"""Atomic file writes: a file is replaced completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ingot.core.partial_files import partial_file, partial_folder
from ingot.errors import ArtefactError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary binary file that replaces `path` after everything is written."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise ArtefactError(f"could not write {target}", why="the path is not a regular file", hint="name a file")
    created = [p for p in target.parents if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial_file(target) as temp:
            with temp.open("wb") as f:
                _keep_mode(temp, target)
                yield f
            os.replace(temp, target)
    except OSError as e:
        raise ArtefactError(
            f"could not write {target}", why=str(e), hint="free some space or choose another folder"
        ) from e
    finally:
        for folder in created:
            with suppress(OSError):  # not empty: the file was written
                folder.rmdir()


def _keep_mode(new: Path, old: Path) -> None:
    """The permissions of a file that is replaced."""
    if old.exists():
        new.chmod(old.stat().st_mode)


def write_folders(folders: Mapping[Path, Mapping[str, bytes]]) -> None:
    """Folders of files by name: nothing appears before everything is on disk."""
    with ExitStack() as undo, writing(folders):
        staged = {folder: _stage(folder, files, undo) for folder, files in folders.items()}
        for folder, temp in staged.items():
            _move(temp, folder)


@contextmanager
def writing(folders: Iterable[Path]) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        what, hint = f"could not write {', '.join(map(str, folders))}", "free some space or choose another folder"
        raise ArtefactError(what, why=e.strerror, hint=hint) from e


def nearest_folder(folder: Path) -> Path:
    """The folder itself, or what it will be made in: the same disk, and no folder is made for nothing."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())


def _stage(folder: Path, files: Mapping[str, bytes], undo: ExitStack) -> Path:
    temp = undo.enter_context(partial_folder(folder, nearest_folder(folder)))
    for name, content in files.items():
        (temp / name).write_bytes(content)
    return temp


def _umask() -> int:
    """Linux says it without setting it, which other threads would see."""
    try:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("Umask:"))
        return int(line.split()[1], 8)
    except (OSError, StopIteration):
        return 0o022


def _move(temp: Path, folder: Path) -> None:
    """A new folder at once; else file by file, since it may hold other people's files; our own stale page goes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        temp.chmod(0o777 & ~_umask())  # it was made private
        return os.replace(temp, folder)
    names = sorted(p.name for p in temp.iterdir())
    for name in names:
        _keep_mode(temp / name, folder / name)
        os.replace(temp / name, folder / name)
    page = folder / "report.html"
    if "report.html" not in names and page.is_file() and b'content="ingot"' in page.read_bytes()[:1000]:
        page.unlink()
