"""Which state of the code a long run's rows are of."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@cache
def source_state() -> str:
    """The commit, with + where files differ from it; "unknown" outside a checkout."""
    try:
        return _git("rev-parse", "--short=10", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def states_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """`of commit abc` or `of 2 states of the code: abc (400), def (67)`."""
    counts = Counter(row.get("commit", "unknown") for row in rows)
    if len(counts) == 1:
        return f"of commit {next(iter(counts))}"
    return f"of {len(counts)} states of the code: " + ", ".join(f"{c} ({n})" for c, n in counts.most_common())
