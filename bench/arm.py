"""Arm targets, stock ExecuTorch against Ingot: `python -m bench.arm --target ethos-u55-128 --json out.json`."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.arm_models import MODELS
from bench.run import say, step, versions
from bench.table import Columns, Row, summary, table, value
from bench.worker import FLOWS

CYCLES = ("kcycles", "cycles", 1e-3, 0, "ratio")
COLUMNS: Columns = (
    ("delegates", "delegates", 1, 0, ""),
    ("host ops", "host_ops", 1, 0, ""),
    ("kB", "bytes", 1e-3, 0, "ratio"),
    ("SQNR dB", "sqnr_db", 1, 1, "gain"),
    CYCLES,
    ("export s", "seconds", 1, 1, "ratio"),
)
TIE_DB = 0.1  # what one rounding more or less may do


def measure(model: str, folder: Path, options: argparse.Namespace, stock_first: bool) -> Row:
    """One row: both casts in turn, each program executed and its delegates handed to Vela."""
    flows = ["ingot"] if options.skip_stock else list(FLOWS if stock_first else reversed(FLOWS))
    worker = ("bench.arm_worker", options.target)
    row: Row = {"model": model, "order": flows, **step("build", model, folder, limit=options.timeout, worker=worker)}
    if "skipped" in row or "error" in row:
        return row
    for flow in flows:
        row[flow] = step("cast", model, folder, flow, options.timeout, worker)
        for name in _after_cast(options.target) if "error" not in row[flow] else ():
            _add(row[flow], step(name, model, folder, flow, options.timeout, worker))
    return row


def _after_cast(target: str) -> tuple[str, ...]:
    return ("check",) if target == "vgf" else ("check", "cost")


def _add(result: Row, more: Row) -> None:
    """A program that does not run still has its cycles: of two errors both are kept."""
    errors = [r["error"] for r in (result, more) if "error" in r]
    result.update(more)
    result.update({"error": "; ".join(errors)} if errors else {})


def columns(target: str) -> Columns:
    shown = [c for c in COLUMNS if target != "vgf" or c != CYCLES]
    return tuple(c for c in shown if not os.environ.get("HASTEN") or c[1] != "seconds")


def worse(row: Row) -> list[str]:
    """Where ours loses, in plain words."""
    found = []
    for key, words in (("delegates", "delegates"), ("host_ops", "host ops")):
        stock, ours = value(row, "stock", key), value(row, "ingot", key)
        if stock is not None and ours is not None and ours > stock:
            found.append(f"more {words} than stock: {ours} against {stock}")
    return [f"{row['model']}: ours has {text}" for text in (*found, *_less_exact(row), *_slower(row))]


def _less_exact(row: Row) -> list[str]:
    stock, ours = value(row, "stock", "sqnr_db"), value(row, "ingot", "sqnr_db")
    if stock is None or ours is None or ours >= stock - TIE_DB:
        return []
    return [f"a lower SQNR than stock: {ours:.1f} against {stock:.1f} dB"]


def _slower(row: Row) -> list[str]:
    """Cycles count delegates only: what stock leaves on the host costs it none."""
    stock, ours = value(row, "stock", "cycles"), value(row, "ingot", "cycles")
    if stock is None or ours is None or ours <= stock:
        return []
    left, kept = value(row, "stock", "host_ops") or 0, value(row, "ingot", "host_ops") or 0
    but = f"; stock's do not count its {left} host ops, ours has {kept}" if left > kept else ""
    return [f"more cycles than stock: {ours} against {stock}{but}"]


def chosen(names: str) -> list[str]:
    wanted = list(MODELS) if names == "all" else [n.strip() for n in names.split(",")]
    unknown = [n for n in wanted if n not in MODELS]
    if unknown:
        raise SystemExit(f"unknown model: {', '.join(unknown)}. Known: {', '.join(MODELS)}")
    return wanted


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.arm", description=__doc__)
    parser.add_argument("--target", default="ethos-u55-128", help="vgf, ethos-u55-128 (default), ethos-u85-256 …")
    parser.add_argument("--models", default="all", help="names with commas, or 'all' (default)")
    parser.add_argument("--json", type=Path, help="write everything measured here, after every model")
    parser.add_argument("--hasten", action="store_true", help="lower stock's graphs as quickly as ours; no times")
    parser.add_argument("--skip-stock", action="store_true", help="only Ingot")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds before a step is given up (default 1800)")
    parser.add_argument("--keep", type=Path, help="leave models, programs, TOSA and logs in this folder")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.hasten:
        os.environ["HASTEN"] = "1"
    rows: list[dict[str, Any]] = []
    shown = columns(options.target)
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as temporary:
        for i, model in enumerate(chosen(options.models)):
            say(model)
            rows.append(measure(model, _folder(options, temporary, model), options, stock_first=i % 2 == 0))
            if options.json:
                report = {"target": options.target, "versions": versions(), "summary": summary(rows, shown)}
                options.json.write_text(json.dumps({**report, "rows": rows}, indent=1) + "\n")
    print("\n".join([table(rows, shown), *(text for row in rows for text in worse(row))]))


def _folder(options: argparse.Namespace, temporary: str, model: str) -> Path:
    """Empty of what an earlier run left: a step that dies must not be read as the last one that did not."""
    folder = (options.keep or Path(temporary)).resolve() / options.target / model
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (f for f in folder.iterdir() if f.suffix in (".json", ".pte", ".tosa")):
        stale.unlink()
    return folder


if __name__ == "__main__":
    main()
