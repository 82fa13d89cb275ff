"""Which files of the user a process reads: they decide whether its result can be used again."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ingot.data.user_code import NOT_USER_CODE

_OUTSIDE = (
    *NOT_USER_CODE[:-1],
    sys.prefix,
    sys.base_prefix,
    tempfile.gettempdir(),
    "/proc/",
    "/sys/",
    "/dev/",
    "/etc/",
)


class OpenedFiles:
    """Files that Python opens for reading, by an audit hook; it cannot be removed, so for a process of its own."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        sys.addaudithook(self._seen)

    def _seen(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[0], (str, os.PathLike)) and _reads(args[1:]):
            self.paths.add(os.path.abspath(os.fspath(args[0])))

    def digests(self, folder: Path, more: Iterable[str] = ()) -> dict[str, str]:
        """By path, relative to `folder` where it is inside."""
        inside = f"{folder}{os.sep}"
        seen = {p for p in self.paths if p.startswith(inside) or not p.startswith(_OUTSIDE)}
        found = seen | {str((folder / p).resolve()) for p in more}
        return {_named(p, folder): d for p in sorted(found) if (d := digest_of(Path(p))) is not None}


def _reads(mode_and_flags: tuple[object, ...]) -> bool:
    """Python passes a mode such as "rb", os.open passes flags."""
    mode, flags = (*mode_and_flags, None, None)[:2]
    if isinstance(mode, str):
        return "r" in mode and "+" not in mode
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR)


def _named(path: str, folder: Path) -> str:
    inside = Path(path)
    return str(inside.relative_to(folder)) if inside.is_relative_to(folder) else path


def digest_of(path: Path) -> str | None:
    """Of a file its content, of a folder the names and sizes in it; None where there is none."""
    try:
        if path.is_dir():
            listed = sorted(f"{p.relative_to(path)} {p.stat().st_size}" for p in path.rglob("*") if p.is_file())
            return hashlib.sha256("\n".join(listed).encode()).hexdigest()
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError:
        return None


def all_unchanged(digests: Mapping[str, str], folder: Path) -> bool:
    """A file outside of the folder that is not here lies on the machine that read it: it cannot be looked at."""
    elsewhere = {p for p in digests if Path(p).is_absolute() and not Path(p).exists()}
    return all(digest_of(folder / p) == digest for p, digest in digests.items() if p not in elsewhere)
