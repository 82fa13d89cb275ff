"""ExecuTorch's own suite through Ingot and the stock flow: `python -m bench.suite.run --target xnnpack`.

A row per test goes to bench/results/suite-<target>.jsonl as soon as it is known; a second run does only what is
missing. A worker that dies or hangs is replaced, and its test is a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.suite.stock_results import keep_rows, kept_rows
from bench.suite.table import table
from tools.source_state import source_state

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
START_SECONDS = 300
SECONDS = {"operators": 300, "models": 1800}  # of a test; a test may hand over ten models
MOST_PROCESSES = 2


class Died(Exception):
    """The worker ended or hung before its row came."""


class Worker:
    """A child process that runs one test at a time: ids go to its stdin, rows come back on its file descriptor 3."""

    def __init__(self, command: Sequence[str], limit: float, log: Path) -> None:
        self.limit, self.folder = limit, tempfile.TemporaryDirectory(prefix="ingot-suite-")
        ours, theirs = os.pipe()
        with log.open("ab") as sink:
            # Not stdout: kernels and compilers print there. They also drop files where they run.
            self.child = subprocess.Popen(
                ["bash", "-c", f'exec "$@" 3>&{theirs}', "bash", *command], stdin=subprocess.PIPE, stdout=sink,
                stderr=sink, pass_fds=(theirs,), cwd=self.folder.name, start_new_session=True, text=True,
                env=ENVIRONMENT,
            )  # fmt: skip
        os.close(theirs)
        self.rows = os.fdopen(ours)
        self._line(START_SECONDS)

    def row(self, case: str) -> dict[str, Any]:
        assert self.child.stdin is not None
        try:
            print(case, file=self.child.stdin, flush=True)
        except BrokenPipeError as e:
            raise Died("the worker ended") from e
        return json.loads(self._line(self.limit))

    def _line(self, seconds: float) -> str:
        if not select.select([self.rows], [], [], seconds)[0]:
            raise Died(f"still running after {seconds:.0f} s")
        line = self.rows.readline()
        if not line:
            code = self.child.wait()
            raise Died(f"died of {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        return line

    def end(self) -> None:
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.rows.close()
        self.folder.cleanup()


def work(todo: queue.Queue[str], start: Callable[[], Worker], keep: Callable[[dict[str, Any]], None]) -> None:
    """Until nothing is left: each test in the worker, a new worker after one that died."""
    worker: Worker | None = None
    while True:
        try:
            case = todo.get_nowait()
        except queue.Empty:
            break
        try:
            worker = worker or start()
            keep(worker.row(case))
        except Died as e:
            keep({"id": case, "result": "crashed", "why": str(e)})
            if worker:
                worker.end()
            worker = None
    if worker:
        worker.end()


def missing(ids: list[str], rows: list[dict[str, Any]], flow: str, again: str) -> list[str]:
    """What has no row yet; results that `again` names are run again."""
    done = {r["id"] for r in rows if r["flow"] == flow and r["result"] not in again.split(",")}
    return [i for i in ids if i not in done]


def listed(options: argparse.Namespace) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-m", "bench.suite.cases", options.suite], env=ENVIRONMENT,
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    ids = [i for i in found if "::" in i and re.search(options.only, i)]
    return ids[:: options.every]


def read(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The latest row of each test and flow; stock's from the repository where no run has one."""
    return read_rows(options.out, kept_rows(options.suite, options.target))


def read_rows(file: Path, known: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The latest row of each test and flow in `file`; a row of `known` where it has none."""
    lines = file.read_text().splitlines() if file.exists() else []
    latest = {(r["flow"], r["id"]): r for r in [*known, *map(json.loads, filter(None, lines))]}
    return list(latest.values())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.suite.run", description=__doc__)
    parser.add_argument("--target", default="xnnpack", help="xnnpack (default), ethos-u55-128 or vgf")
    parser.add_argument("--suite", default="operators", choices=("operators", "models"))
    parser.add_argument("--flows", default="ingot,stock", help="ingot, stock, or both (default)")
    parser.add_argument("--only", default="", help="a regular expression for the ids of tests")
    parser.add_argument("--every", type=int, default=1, help="every n-th test only: a sample")
    parser.add_argument("--again", default="", help="results to run again, with commas: refused,wrong")
    parser.add_argument("--processes", type=int, default=1, choices=range(1, MOST_PROCESSES + 1))
    parser.add_argument("--out", type=Path, help="file of rows (default bench/results/suite-SUITE-TARGET.jsonl)")
    parser.add_argument("--table", action="store_true", help="print the table of what is known, run nothing")
    parser.add_argument("--keep-stock", action="store_true", help="keep stock's results in the repository")
    options = parser.parse_args()
    options.out = options.out or RESULTS / f"suite-{options.suite}-{options.target}.jsonl"
    options.log = options.out.with_suffix(".log")
    return options


def main() -> None:
    options = parse()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    ids, lock = listed(options), threading.Lock()

    def keep(row: dict[str, Any]) -> None:
        row = {"flow": flow, "target": options.target, "commit": source_state(), **row}
        with lock, options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{row['flow']:6} {row['result']:12} {row.get('seconds', '?'):>6} s  {row['id']}", file=sys.stderr)

    for flow in [] if options.table else options.flows.split(","):
        todo: queue.Queue[str] = queue.Queue()
        for case in missing(ids, read(options), flow, options.again):
            todo.put(case)
        command = [sys.executable, "-m", "bench.suite.worker", flow, options.target, options.suite]
        start = partial(Worker, command, SECONDS[options.suite], options.log)
        threads = [threading.Thread(target=work, args=(todo, start, keep)) for _ in range(options.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if options.keep_stock:
        keep_rows(options.suite, options.target, read(options))
    print(table([r for r in read(options) if r["id"] in set(ids)], options.target))


if __name__ == "__main__":
    main()
