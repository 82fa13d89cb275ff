"""The row of a cell: what a cast of one model for one target by one recipe gave, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ingot.errors import IngotError
from ingot.result.report.text import json_ready

if TYPE_CHECKING:
    from ingot.result.casting import Casting

Row = dict[str, Any]
PASSED, WRONG, NOT_MET, REFUSED, BUG = "passed", "wrong", "goal not met", "refused", "bug"
CRASHED, TIMED_OUT, LOST = "crashed", "timed out", "lost"
VERDICTS = (PASSED, NOT_MET, REFUSED, WRONG, TIMED_OUT, CRASHED, BUG, LOST)  # from good to bad
AGAIN = (LOST,)  # not an answer about the cell: run again when a sweep is resumed


@dataclass(frozen=True)
class Cell:
    """One model, target and recipe; `key` is the hash of everything that goes in."""

    model: str
    target: str
    recipe: str
    key: str = ""

    @property
    def name(self) -> str:
        return f"{self.model} · {self.target} · {self.recipe}"

    @property
    def path(self) -> str:
        return cell_path(asdict(self))


def cell_path(row: Mapping[str, Any]) -> str:
    """Of a row, or of a cell as a dict: its folder in that of the fleet."""
    return f"cells/{row['model']}/{row['target']}/{row['recipe']}"


def casting_row(casting: Casting) -> Row:
    """What the casting itself says; the cell, its time and memory are added by who ran it."""
    outputs = casting.check.outputs if casting.check is not None else ()
    row = {
        "verdict": verdict_of(casting),
        "delegates": len(casting.delegates),
        "host_ops": len(casting.host_ops),
        "bytes": len(casting.pte),
        "sqnr_db": _finite(min((o.sqnr_db for o in outputs), default=None)),
        "judged_on": casting.check.judged_on if casting.check is not None else None,
        "executed_on": casting.check.executed_on if casting.check is not None else None,
        "goal": None if casting.goal is None else {v.metric: v.value for v in casting.goal.values},
        "predicted": {"time": casting.plan.predicted.time, "sqnr_db": casting.plan.predicted.sqnr_db},
        "cycles": _total(casting, "cycles"),
        "estimated_seconds": _total(casting, "seconds"),
        "timings": dict(casting.timings),
        "export_seconds": sum(casting.timings.values()),
        "notes": list(casting.notes),
        "host_op_names": sorted({h.op for h in casting.host_ops}),
    }
    ready: Row = json_ready(row)
    return ready


def verdict_of(casting: Casting) -> str:
    if casting.check is None or not casting.check.passed:
        return WRONG
    return NOT_MET if casting.goal is not None and not casting.goal.met else PASSED


def error_row(error: Exception) -> Row:
    """A refusal, or a bug of ours: an exception that is no IngotError."""
    if isinstance(error, IngotError):
        facts = {k: getattr(error, k) for k in ("what", "where", "why", "hint")}
        return {"verdict": REFUSED, "error": {"type": type(error).__name__, **facts, "text": str(error)}}
    return {"verdict": BUG, "error": {"type": type(error).__name__, "text": f"{type(error).__name__}: {error}"}}


def failure_row(verdict: str, text: str, log: str = "") -> Row:
    """A process that ended without an answer."""
    return {"verdict": verdict, "error": {"type": verdict, "text": text, "log": log[-2000:]}}


def full_row(cell: Cell, row: Row, more: Mapping[str, Any]) -> Row:
    return {**asdict(cell), **row, **more}


def _total(casting: Casting, key: str) -> float | None:
    found = [p.to_dict().get(key) for p in casting.performance]
    return sum(f for f in found if f) if any(found) else None


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
