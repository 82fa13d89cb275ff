"""A file cache of the partitioner's answers: they depend only on package versions and on the code in this folder.

One file for each TOSA profile, in `$INGOT_CACHE` or `~/.cache/ingot`. An empty `INGOT_CACHE` disables the cache. A file
that cannot be read or written is ignored.
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

FAILED = "Arm's tools failed on it"  # perhaps not the next time: such answers are not saved


@cache
def cached_answers(profile: str) -> dict[str, Ability]:
    """Answers by op signature. The caller adds new ones to this dict."""
    return _read(profile)


def save_answers(profile: str, answers: dict[str, Ability]) -> None:
    """Add to the file, which another process may have changed."""
    file, lasting = _file(profile), {s: a for s, a in answers.items() if not a.because.startswith(FAILED)}
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
    return Path(folder or Path.home() / ".cache" / "ingot") / f"{profile}-{_fingerprint()}.json"


@cache
def _fingerprint() -> str:
    """Changes with torch, ExecuTorch, torchao, Vela and the code in this folder."""
    versions = [importlib.metadata.version(p) for p in ("torch", "executorch", "torchao")]
    versions.append(VELA.found() or "")
    code = [p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join([*map(str.encode, versions), *code])).hexdigest()[:12]
