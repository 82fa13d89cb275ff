"""Digests of saved files: a damaged program can crash the runtime; an interrupted save mixes files of two castings."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path

from ingot.errors import InputError

RECORDS = "casting.json"  # holds the digests of the files beside it


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(data).hexdigest() for name, data in files.items()}


def check_digest(file: Path, digests: Mapping[str, str]) -> None:
    """Refuse a file that is not the one that was saved; of one without a digest nothing is known."""
    try:
        with file.open("rb") as data:
            found = file_digest(data, "sha256").hexdigest()
    except (OSError, ValueError) as e:  # ValueError: a name with a zero byte
        hint = "name a folder that `casting.save_folder` or `ingot cast -o` wrote"
        raise InputError(f"cannot read {file}", why=str(getattr(e, "strerror", e)), hint=hint) from e
    if digests.get(file.name, found) != found:
        why = f"it is damaged, was changed, or saving was interrupted: its SHA-256 is not the one in {RECORDS}"
        raise InputError(f"{file} is not the file that was saved", why=why, hint="cast the model again")
