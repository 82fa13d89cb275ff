"""Ingot's flow, or a part of it, over many families: `python -m bench.families.sweep --only timm/ --budget 280`.

Packages are imported once and each net is a fork, so that a net costs its cast alone. A row per net goes to
bench/results/sweep-<flow>-<target>.jsonl as soon as it is known; a second call does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from bench.families.table import verdict
from bench.suite.run import RESULTS, read_rows


def sweep(names: list[str], options: argparse.Namespace) -> None:
    until = time.monotonic() + options.budget
    for name in names:
        if time.monotonic() > until:
            return
        row = forked_row(name, options)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(sweep_line(row), flush=True)


def forked_row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The row that a child process leaves, or how the child ended."""
    with tempfile.TemporaryDirectory(prefix="ingot-sweep-") as folder:
        started = time.perf_counter()
        ended = _in_child(name, Path(folder), options)
        left = Path(folder) / f"{options.flow}.json"
        row = json.loads(left.read_text()) if left.exists() else {"error": ended}
    return {"id": name, "flow": options.flow, **row, "process_seconds": round(time.perf_counter() - started, 1)}


def _in_child(name: str, folder: Path, options: argparse.Namespace) -> str:
    child = os.fork()
    if child == 0:
        _work(name, folder, options)
    os.setpgid(child, child)  # the time limit ends its own children too
    until = time.monotonic() + options.timeout
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return f"the process ended with {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"not done after {options.timeout:g} s"


def _work(name: str, folder: Path, options: argparse.Namespace) -> None:
    from bench.families.worker import row
    from bench.worker import leave

    try:
        leave(folder, options.flow, lambda: row(options.target, options.flow, name, folder))
    finally:
        os._exit(0)


def sweep_line(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"{row['id']:44} not built: {row['skipped'][:160]}"
    if "error" in row:
        return f"{row['id']:44} dies after {row['process_seconds']} s: {row['error'][:300]}"
    if "left" in row:
        return (
            f"{row['id']:44} {len(row['left'])} of {row['ops']} ops left, {row['process_seconds']} s {row['left'][:6]}"
        )
    passed = {True: "passed", False: "failed"}.get(row.get("check_passed"), "not checked")
    head = f"{row['id']:44} {verdict(row):5} {row['delegates']} delegates, {row['host_ops']} host ops"
    return f"{head}, {row.get('sqnr_db', 0):.0f} dB {passed}, {row['process_seconds']} s {row.get('host_kinds') or ''}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.families.sweep", description=__doc__)
    parser.add_argument("--target", default="xnnpack", help="xnnpack (default), ethos-u85-256, vgf …")
    parser.add_argument("--flow", default="ingot", help="ingot (default), float: not quantized, or probe: not lowered")
    parser.add_argument("--only", default="", help="a regular expression for library/family")
    parser.add_argument("--again", action="store_true", help="run nets again that have a row; the last row counts")
    parser.add_argument("--timeout", type=float, default=120, help="seconds before a net is given up (default 120)")
    parser.add_argument("--budget", type=float, default=280, help="start no further net after this (default 280 s)")
    parser.add_argument("--out", type=Path, help="file of rows (default bench/results/sweep-FLOW-TARGET.jsonl)")
    options = parser.parse_args()
    options.out = (options.out or RESULTS / f"sweep-{options.flow}-{options.target}.jsonl").resolve()
    return options


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options = parse()
    from bench import artefact, stock  # noqa: F401  imported once, for all children
    from bench.families.catalogue import families

    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = set() if options.again else {r["id"] for r in read_rows(options.out)}
    sweep([n for n in families() if re.search(options.only, n) and n not in done], options)


if __name__ == "__main__":
    main()
