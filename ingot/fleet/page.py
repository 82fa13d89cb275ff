"""fleet/index.html: the matrix of a fleet, its fronts and trends, as one page without a server."""

from __future__ import annotations

from collections import defaultdict
from importlib.resources import files
from statistics import median
from typing import Any

from ingot.core.atomic_file import atomic_write
from ingot.fleet.rows import PASSED, Row, cell_path
from ingot.fleet.store import FleetStore
from ingot.result.report.html import asset, page_document
from ingot.result.report.text import counted, json_ready

SHOWN = (
    "model", "target", "recipe", "verdict", "error", "sqnr_db", "bytes", "delegates", "host_ops", "host_op_names",
    "measured_seconds", "cycles", "versions",
)  # fmt: skip
TREND_KEYS = ("sqnr_db", "bytes", "measured_seconds")
MOST_TEXT = 400  # of an error; the whole is in row.json


def write_page(store: FleetStore) -> None:
    with atomic_write(store.root / "index.html") as f:
        f.write(fleet_page(store.last_rows(), list(store.history())).encode())


def fleet_page(rows: list[Row], history: list[dict[str, Any]]) -> str:
    passed = sum(r["verdict"] == PASSED for r in rows)
    title = f"{counted(len(rows), 'cell')}, {passed:,} passed"
    data = json_ready({"rows": [_shown(r) for r in rows], "history": [_sweep(h) for h in history]})
    script = "\n".join([asset("dom.js"), asset("charts.js"), _own("fleet.js")])
    style = asset("style.css") + _own("fleet.css")
    return page_document(title, data, style, script, "passed" if passed == len(rows) else "failed")


def _shown(row: Row) -> Row:
    kept = {k: row[k] for k in SHOWN if row.get(k) is not None}
    if "error" in kept:
        return {**kept, "error": {"text": kept["error"]["text"][:MOST_TEXT]}}
    return {**kept, "report": f"{cell_path(row)}/report.html"}


def _sweep(sweep: dict[str, Any]) -> dict[str, Any]:
    """One point of the trends: of all rows, and of those of each model."""
    rows, models = sweep["rows"], defaultdict(list)
    for row in rows:
        models[row["model"]].append(row)
    versions = {k: v for r in rows for k, v in r.get("versions", {}).items() if k in ("ingot", "torch", "executorch")}
    each = {name: _figures(some) for name, some in models.items()}
    return {"started": sweep["started"], "versions": versions, "all": _figures(rows), "models": each}


def _figures(rows: list[Row]) -> dict[str, Any]:
    passed = sum(r["verdict"] == PASSED for r in rows)
    figures = {k: _median([r[k] for r in rows if isinstance(r.get(k), (int, float))]) for k in TREND_KEYS}
    return {"cells": len(rows), "passed": passed, **figures}


def _median(values: list[float]) -> float | None:
    return float(f"{median(values):.5g}") if values else None


def _own(name: str) -> str:
    return files("ingot.fleet").joinpath("assets", name).read_text(encoding="utf-8")
