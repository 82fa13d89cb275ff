"""Two sweeps: what got better, worse or broke, beyond noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.fleet.rows import LOST, VERDICTS, Row

LESS, MORE = -1, 1  # the direction that is better


@dataclass(frozen=True)
class Figure:
    """A figure of a row, and the change that is noise."""

    key: str
    better: int
    noise: Callable[[float], float]  # of the first value
    unit: str


FIGURES = (
    Figure("delegates", LESS, lambda _: 0, ""),
    Figure("host_ops", LESS, lambda _: 0, ""),
    Figure("bytes", LESS, lambda v: max(64, 0.002 * v), "bytes"),
    Figure("sqnr_db", MORE, lambda _: 0.5, "dB"),
    Figure("cycles", LESS, lambda v: 0.01 * v, "cycles"),
    Figure("measured_seconds", LESS, lambda v: 0.15 * v, "s"),  # two runs on one machine, nothing else running
    Figure("peak_memory_bytes", LESS, lambda v: 0.15 * v, "bytes"),
)


def compare_fleets(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Changes of each cell that both have; cells that only one has; versions that differ."""
    old, new = ({_name(r): r for r in rows} for rows in (first, second))
    changes = [c for name in old.keys() & new.keys() for c in _changes(name, old[name], new[name])]
    changes.sort(key=lambda c: (c["trend"] != "worse", c["cell"], c["what"]))
    return {
        "cells": len(old.keys() & new.keys()),
        "regressions": sum(c["trend"] == "worse" for c in changes),
        "changes": changes,
        "lost": sorted(n for n in old.keys() & new.keys() if new[n]["verdict"] == LOST != old[n]["verdict"]),
        "gone": sorted(old.keys() - new.keys()),
        "added": sorted(new.keys() - old.keys()),
        "versions": _versions(first, second),
    }


def _name(row: Row) -> str:
    return f"{row['model']} · {row['target']} · {row['recipe']}"


def _changes(name: str, a: Row, b: Row) -> Iterator[dict[str, Any]]:
    if LOST in (a["verdict"], b["verdict"]):  # nothing is known about the cell; `compare_fleets` names it
        return
    if a["verdict"] != b["verdict"]:
        worse = VERDICTS.index(b["verdict"]) > VERDICTS.index(a["verdict"])
        why = b.get("error", {}).get("text", "")
        yield _change(name, "verdict", a["verdict"], b["verdict"], "worse" if worse else "better", why)
    for figure in FIGURES:
        yield from _figure_change(name, figure, a.get(figure.key), b.get(figure.key))
    yield from _goal_changes(name, a.get("goal") or {}, b.get("goal") or {})


def _figure_change(name: str, figure: Figure, first: Any, second: Any) -> Iterator[dict[str, Any]]:
    if first is None or second is None:
        return
    before, after = float(first), float(second)  # JSON has infinities as strings
    delta = after - before
    if before != after and not abs(delta) <= figure.noise(abs(before)):
        yield _change(name, figure.key, first, second, "better" if delta * figure.better > 0 else "worse", figure.unit)


def _goal_changes(name: str, a: dict[str, float], b: dict[str, float]) -> Iterator[dict[str, Any]]:
    """A goal that is still met is met: its value alone is no regression."""
    for metric in a.keys() & b.keys():
        if a[metric] != b[metric]:
            yield _change(name, f"goal {metric}", a[metric], b[metric], "differs", "")


def _change(cell: str, what: str, first: Any, second: Any, trend: str, why: str) -> dict[str, Any]:
    return {"cell": cell, "what": what, "first": first, "second": second, "trend": trend, "why": why}


def _versions(first: Sequence[Row], second: Sequence[Row]) -> list[dict[str, str]]:
    a, b = ({k: v for r in rows for k, v in (r.get("versions") or {}).items()} for rows in (first, second))
    return [{"what": k, "first": a.get(k, ""), "second": b.get(k, "")} for k in {**a, **b} if a.get(k) != b.get(k)]


def comparison_lines(found: dict[str, Any]) -> Iterator[str]:
    yield from (f"{v['what']}: {v['first'] or 'none'} -> {v['second'] or 'none'}" for v in found["versions"])
    for c in found["changes"]:
        why = f" ({c['why']})" if c["why"] else ""
        yield f"{c['trend']:7} {c['cell']}: {c['what']} {_shown(c['first'])} -> {_shown(c['second'])}{why}"
    for kind in ("lost", "gone", "added"):
        yield from (f"{kind:7} {name}" for name in found[kind])
    lost = f", {len(found['lost'])} lost: sweep again" if found["lost"] else ""
    yield f"{found['cells']} cells compared, {found['regressions']} regressions{lost}"


def _shown(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
