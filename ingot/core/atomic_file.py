"""Atomic file writes: a file is replaced completely or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ingot.errors import ArtefactError


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary binary file that replaces `path` after everything is written."""
    target = Path(path)
    if target.exists() and not target.is_file():
        raise ArtefactError(f"could not write {target}", why="the path is not a regular file", hint="name a file")
    temp, created = None, [p for p in target.parents if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as f:
            temp = Path(f.name)
            yield f  # type: ignore[misc]
        os.replace(temp, target)
    except OSError as e:
        raise ArtefactError(
            f"could not write {target}", why=str(e), hint="free some space or choose another folder"
        ) from e
    finally:
        if temp is not None:
            temp.unlink(missing_ok=True)
        for folder in created:
            with suppress(OSError):  # not empty: the file was written
                folder.rmdir()
