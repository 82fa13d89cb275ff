"""fleet/index.html: the matrix of a fleet, its fronts and trends, as one page without a server."""

from __future__ import annotations

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
MOST_TEXT = 400  # of an error; the whole is in row.json


def write_page(store: FleetStore) -> None:
    with atomic_write(store.root / "index.html") as f:
        f.write(fleet_page(store.last_rows(), list(store.history())).encode())


def fleet_page(rows: list[Row], history: list[dict[str, Any]]) -> str:
    passed = sum(r["verdict"] == PASSED for r in rows)
    title = f"{counted(len(rows), 'cell')}, {passed} passed"
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
    """One line of the trends."""
    rows = sweep["rows"]
    versions = {k: v for r in rows for k, v in r.get("versions", {}).items() if k in ("ingot", "torch", "executorch")}
    figures = {k: _median([r[k] for r in rows if isinstance(r.get(k), (int, float))]) for k in ("sqnr_db", "bytes")}
    passed = sum(r["verdict"] == PASSED for r in rows)
    return {"started": sweep["started"], "cells": len(rows), "passed": passed, "versions": versions, **figures}


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _own(name: str) -> str:
    return files("ingot.fleet").joinpath("assets", name).read_text(encoding="utf-8")
