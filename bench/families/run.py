"""One net of each family by both flows: `python -m bench.families.run --target xnnpack --only timm/`.

A row per net and flow goes to bench/results/families-<target>.jsonl as soon as it is known; a second run does only what
is missing. Each net has a process of its own, with a time limit.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.families.table import families_table
from bench.run import say, step
from bench.suite.run import RESULTS, read_rows

FLOWS = ("ingot", "stock")


def measure_net(name: str, flow: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ingot-families-") as folder:
        worker = ("bench.families.worker", options.target)
        started = time.perf_counter()
        row = step(flow, name, Path(folder), limit=options.timeout, worker=worker)
        return {"id": name, "flow": flow, **row, "process_seconds": round(time.perf_counter() - started, 1)}


def todo(names: list[str], options: argparse.Namespace) -> list[tuple[str, str]]:
    """Nets and flows without a row; of those with one, the results that `again` names."""
    again = set(filter(None, options.again.split(",")))
    done = {(r["flow"], r["id"]) for r in read_rows(options.out) if not again & {_result(r)}}
    flows = options.flows.split(",")
    return [(n, f) for n in names for f in flows if (f, n) not in done]


def _result(row: dict[str, Any]) -> str:
    return "skipped" if "skipped" in row else "error" if "error" in row else "split" if _is_split(row) else "whole"


def _is_split(row: dict[str, Any]) -> bool:
    return row.get("delegates") != 1 or bool(row.get("host_ops"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.families.run", description=__doc__)
    parser.add_argument("--target", default="xnnpack", help="xnnpack (default), ethos-u85-256, vgf …")
    parser.add_argument("--flows", default=",".join(FLOWS), help="ingot, stock, or both (default); probe: no lowering")
    parser.add_argument("--only", default="", help="a regular expression for library/family")
    parser.add_argument("--again", default="", help="results to run again, with commas: skipped,error,split")
    parser.add_argument("--timeout", type=float, default=600, help="seconds before a net is given up (default 600)")
    parser.add_argument("--budget", type=float, default=0, help="start no further net after this many seconds")
    parser.add_argument("--out", type=Path, help="file of rows (default bench/results/families-TARGET.jsonl)")
    parser.add_argument("--table", action="store_true", help="print the table of what is known, run nothing")
    options = parser.parse_args()
    options.out = (options.out or RESULTS / f"families-{options.target}.jsonl").resolve()
    return options


def main() -> None:
    options = parse()
    if not options.table:
        from bench.families.catalogue import families

        options.out.parent.mkdir(parents=True, exist_ok=True)
        _run([n for n in families() if re.search(options.only, n)], options)
    print(families_table(read_rows(options.out)))


def _run(names: list[str], options: argparse.Namespace) -> None:
    until = time.monotonic() + options.budget if options.budget else float("inf")
    for name, flow in todo(names, options):
        if time.monotonic() > until:
            return
        say(name)
        row = measure_net(name, flow, options)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
