"""Files in and out: plans are read, folders are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ingot.errors import ArtefactError, IngotError, InputError, nearest
from ingot.plan.model import Plan


def check_folder(output: Path) -> None:
    """Refuse before minutes of work, not after."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file", why="the output is a folder", hint="name another one with -o")
    with _writing([output]), tempfile.TemporaryDirectory(dir=_nearest_folder(output)):
        pass


def check_file(output: Path) -> None:
    """A device or a folder must not be replaced by a file."""
    if output.exists() and not output.is_file():
        raise InputError(f"{output} is no file", why="the output replaces a file", hint="name another one with -o")


def write_folders(folders: Mapping[Path, Mapping[str, bytes]]) -> None:
    """Write everything aside first; only when all of it is on disk does any of it appear."""
    with ExitStack() as undo, _writing(folders):
        staged = {folder: _stage(folder, files, undo) for folder, files in folders.items()}
        for folder, temp in staged.items():
            _move(temp, folder)


@contextmanager
def _writing(folders: Iterable[Path]) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        what, hint = f"could not write {', '.join(map(str, folders))}", "free some space or choose another folder"
        raise ArtefactError(what, why=e.strerror, hint=hint) from e


def _nearest_folder(folder: Path) -> Path:
    """The folder itself, or what it will be made in: the same disk, and no folder is made for nothing."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())


def _stage(folder: Path, files: Mapping[str, bytes], undo: ExitStack) -> Path:
    temp = Path(tempfile.mkdtemp(dir=_nearest_folder(folder), prefix=f".{folder.name}."))
    undo.callback(shutil.rmtree, temp, ignore_errors=True)
    for name, content in files.items():
        (temp / name).write_bytes(content)
    return temp


def _move(temp: Path, folder: Path) -> None:
    """File by file into a folder that may hold other people's files; our own stale page goes."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(p.name for p in temp.iterdir())
    for name in names:
        os.replace(temp / name, folder / name)
    page = folder / "report.html"
    if "report.html" not in names and page.is_file() and b'content="ingot"' in page.read_bytes()[:1000]:
        page.unlink()


def read_plan(path: Path) -> Plan:
    """The plan in a file, or in the folder of a cast."""
    file = path / "plan.json" if path.is_dir() else path
    text = read_bytes(file)
    try:
        return Plan.from_json(text.decode())
    except IngotError:
        raise
    except Exception as e:
        hint = "plans are written by `ingot cast` and `ingot plan`"
        raise InputError(f"{file} is no plan", why=f"{type(e).__name__}: {e}", hint=hint) from e


def read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        below = [str(p.parent) for p in file.parent.glob(f"*/{file.name}")]
        hint = nearest(str(file.parent), below) if below else "name the folder that a cast wrote, or a file in it"
        raise InputError(f"cannot read {file}", why=e.strerror, hint=hint) from e
