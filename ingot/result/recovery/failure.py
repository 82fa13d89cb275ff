"""How a backend failed: at which stage, in which words, and which ops its words name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingot.errors import ArtefactError, IngotError, NoKernelError
from ingot.verify.minify.failure import normalized

STAGES = ("lower", "load", "run")
MOST_WORDS = 240


@dataclass(frozen=True)
class Candidate:
    """An op that may be the one on which the backend fails."""

    name: str
    kind: str  # the ATen op: "squeeze.dims"
    source: str = "?"  # the user's line: "net.py:41"
    heavy: bool = False  # it multiplies by a weight: the last op that one would move to the host


@dataclass(frozen=True)
class BackendFailure:
    """One failure. Two are the same if their signatures are."""

    stage: str  # "lower", "load" or "run"
    words: str  # of the backend, in one line
    text: str  # all that was said, with the chained errors
    missing: tuple[str, ...] = ()  # values for which the host has no kernel

    @property
    def signature(self) -> str:
        """Without what differs from graph to graph."""
        return f"{self.stage}: {normalized(self.words)}"

    def comes_after(self, other: BackendFailure) -> bool:
        """Another failure, and not at an earlier stage: it does not hide the other one."""
        return STAGES.index(self.stage) >= STAGES.index(other.stage) and self.signature != other.signature


def backend_failure(error: IngotError) -> BackendFailure:
    missing = error.values if isinstance(error, NoKernelError) else ()
    return BackendFailure(_stage(error), _words(error), "".join(traceback.format_exception(error)), missing)


def _stage(error: IngotError) -> str:
    if not isinstance(error, ArtefactError):
        return "lower"
    return "load" if "does not load" in error.what else "run"


def _words(error: IngotError) -> str:
    said = " ".join((error.why or error.what).split())
    if isinstance(error, ArtefactError) and error.why:
        said = f"{error.what}: {said}"
    return said if len(said) <= MOST_WORDS else said[: MOST_WORDS - 1] + "…"


def named_groups(failure: BackendFailure, candidates: Sequence[Candidate]) -> Iterable[list[Candidate]]:
    """The ops that the backend's words point to: by node name, by the user's line, by kind; most specific first."""
    names = [c for c in candidates if _mentions(failure.text, re.escape(c.name))]
    lines = [c for c in candidates if _mentions(failure.text, _frame(c.source))]
    kinds = [c for c in candidates if _mentions(failure.text, _base_name(c.kind))]
    both = [c for c in kinds if c in lines or c in names]
    found: list[list[Candidate]] = []
    for group in (both, names, kinds, lines):
        if group and group not in found:
            found.append(group)
    return found


def _frame(source: str) -> str:
    """net.py:41 -> the frame of a stack trace."""
    file, _, line = source.rpartition(":")
    return rf'{re.escape(file)}", line {line}\b' if file and line.isdigit() else r"(?!)"


def _base_name(kind: str) -> str:
    return re.escape(kind.removeprefix("aten.").split(".")[0])


def _mentions(text: str, pattern: str) -> bool:
    """As a word; names of edge ops and of passes have more around it: aten_squeeze_copy_dims."""
    return re.search(rf"(?<![a-zA-Z])(?:{pattern})(?![a-zA-Z])", text) is not None
