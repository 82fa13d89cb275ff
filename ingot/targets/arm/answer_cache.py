"""Answers of Arm's partitioner, kept from one run to the next: they depend on nothing but versions and our own code.

One file a profile of TOSA in `$INGOT_CACHE`, else `~/.cache/ingot`; an empty `INGOT_CACHE` keeps nothing. A file that
cannot be read or written is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from functools import cache
from pathlib import Path

from ingot.core.atomic_file import atomic_write
from ingot.errors import ArtefactError
from ingot.targets.arm.requirements import VELA
from ingot.targets.base import Ability

FAILED = "Arm's tools failed on it"  # perhaps only this once: not kept


@cache
def of(profile: str) -> dict[str, Ability]:
    """What is known, by signature; whoever learns more adds to it."""
    return _read(profile)


def keep(profile: str, learnt: dict[str, Ability]) -> None:
    """Add to the file; another process may have added to it meanwhile."""
    file, lasting = _file(profile), {s: a for s, a in learnt.items() if not a.because.startswith(FAILED)}
    if file is None or not lasting:
        return
    rows = {s: [sorted(a.runs), a.because] for s, a in (_read(profile) | lasting).items()}
    with contextlib.suppress(ArtefactError), atomic_write(file) as f:
        f.write(json.dumps(rows).encode())


def _read(profile: str) -> dict[str, Ability]:
    file = _file(profile)
    if file is None:
        return {}
    try:
        return {s: Ability(frozenset(runs), because) for s, (runs, because) in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _file(profile: str) -> Path | None:
    folder = os.environ.get("INGOT_CACHE")
    if folder == "":
        return None
    return Path(folder or Path.home() / ".cache" / "ingot") / f"{profile}-{_edition()}.json"


@cache
def _edition() -> str:
    """Changes with the backend and its compiler, with torch and with the code that asks."""
    versions = [importlib.metadata.version(p) for p in ("torch", "executorch", "torchao")]
    versions.append(VELA.found() or "")
    code = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join([*map(str.encode, versions), *code])).hexdigest()[:12]
