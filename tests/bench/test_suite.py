"""The suite's driver: a worker that dies or hangs costs its test only, and what has a row is not run again."""

from __future__ import annotations

import argparse
import json
import queue
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.suite import run, stock_results
from bench.suite.table import table

# Answers each id with a row, but dies on one and hangs on another.
CHILD = """
import json, os, signal, sys, time
out = os.fdopen(3, "w")
print("ready", file=out, flush=True)
for line in sys.stdin:
    case = line.strip()
    print("noise on stdout")
    if case == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == "hangs":
        time.sleep(60)
    print(json.dumps({"id": case, "result": "fine", "process": os.getpid()}), file=out, flush=True)
"""


def rows_of(cases: list[str], tmp_path: Path) -> dict[str, dict[str, Any]]:
    todo: queue.Queue[str] = queue.Queue()
    for case in cases:
        todo.put(case)
    rows: list[dict[str, Any]] = []
    run.work(todo, partial(run.Worker, [sys.executable, "-c", CHILD], 1.0, tmp_path / "log"), rows.append)
    return {r["id"]: r for r in rows}


def test_a_worker_that_dies_or_hangs_costs_its_test_only(tmp_path: Path) -> None:
    rows = rows_of(["a", "b", "dies", "c", "hangs", "d"], tmp_path)
    assert {case: r["result"] for case, r in rows.items()} == {
        "a": "fine", "b": "fine", "dies": "crashed", "c": "fine", "hangs": "crashed", "d": "fine",
    }  # fmt: skip
    assert "SIGSEGV" in rows["dies"]["why"]
    assert "still running" in rows["hangs"]["why"]
    assert rows["a"]["process"] == rows["b"]["process"] != rows["c"]["process"]


def test_what_has_a_row_is_not_run_again_unless_asked(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    known = [("ingot", "a", "refused"), ("ingot", "b", "fine"), ("stock", "c", "SUCCESS"), ("ingot", "a", "fine")]
    file.write_text("".join(json.dumps({"flow": f, "id": i, "result": r}) + "\n" for f, i, r in known))
    rows = run.read(argparse.Namespace(out=file, suite="operators", target="unknown"))
    assert run.missing(["a", "b", "c"], rows, "ingot", "") == ["c"]
    assert run.missing(["a", "b", "c"], rows, "ingot", "fine") == ["a", "b", "c"]


def test_refusals_are_grouped_by_reason() -> None:
    def refused(case: str, node: str) -> dict[str, Any]:
        why = f"nothing can run median.dim · where: {node} (net.py:7) · why: no kernel · try: other ops"
        return {"flow": "ingot", "id": f"operators/x::{case}", "result": "refused", "why": why}

    text = table([refused("one", "median_1"), refused("two", "median_22")], "xnnpack")
    assert "2 refused" in text
    assert "2 nothing can run median.dim · why: no kernel: one, two" in text


def test_stocks_results_are_kept_for_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_results, "FOLDER", tmp_path)
    rows = [{"flow": "stock", "id": "b", "result": "SUCCESS"}, {"flow": "ingot", "id": "a", "result": "fine"}]
    stock_results.keep_rows("operators", "vgf", rows)
    options = argparse.Namespace(out=tmp_path / "none.jsonl", suite="operators", target="vgf")
    assert run.missing(["a", "b"], run.read(options), "stock", "") == ["a"]
    monkeypatch.setattr(stock_results, "version", lambda package: "0.0")
    assert run.missing(["a", "b"], run.read(options), "stock", "") == ["a", "b"]


def test_a_table_says_of_how_many_states_of_the_code_it_is() -> None:
    rows = [{"flow": "ingot", "id": i, "result": "fine", "commit": c} for i, c in [("a", "1"), ("b", "1"), ("c", "2")]]
    assert "of commit 1" in table(rows[:2], "xnnpack")
    assert "of 2 states of the code: 1 (2), 2 (1)" in table(rows, "xnnpack")
