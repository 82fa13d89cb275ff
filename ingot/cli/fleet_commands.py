"""Commands over a fleet: sweep, and the comparison of two sweeps."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from ingot.cli.files import check_folder
from ingot.cli.output import BROKEN, BUG, NOT_MET, OK, REFUSED, WRONG, Answer
from ingot.errors import InputError
from ingot.fleet.compare import compare_fleets, comparison_lines
from ingot.fleet.mlflow_log import log_rows
from ingot.fleet.progress_lines import SweepProgress, counts_line
from ingot.fleet.rows import BUG as BUG_VERDICT
from ingot.fleet.rows import NOT_MET as NOT_MET_VERDICT
from ingot.fleet.rows import PASSED, VERDICTS
from ingot.fleet.rows import REFUSED as REFUSED_VERDICT
from ingot.fleet.rows import WRONG as WRONG_VERDICT
from ingot.fleet.spec import read_fleet
from ingot.fleet.store import FleetStore, is_fleet
from ingot.fleet.sweep import SweepResult, sweep_fleet

REGRESSION = BUG  # exit code 1 of a comparison: what a CI gate expects


def sweep_command(options: argparse.Namespace) -> Answer:
    fleet, again = read_fleet(options.fleet), tuple(filter(None, map(str.strip, options.again.split(","))))
    for verdict in again:
        if verdict not in VERDICTS:
            raise InputError(f"no verdict '{verdict}'", hint=f"one of: {', '.join(VERDICTS)}")
    if options.against is not None and not is_fleet(options.against):
        raise InputError(f"{options.against} is not the folder of a sweep", hint="name what `ingot sweep -o` wrote")
    check_folder(options.output)
    made = sweep_fleet(
        fleet, options.fleet.parent, options.output, ray=options.ray, processes=options.processes, again=again,
        progress=SweepProgress(quiet=options.quiet),
    )  # fmt: skip
    if options.mlflow is not None:
        log_rows(made.rows, options.mlflow)
    if options.against is not None:
        return compare_fleet_folders(options.against, options.output)
    return _answer(made, options.quiet)


def _answer(made: SweepResult, quiet: bool) -> Answer:
    """Refusals and failures are rows; the exit code says that there are some."""
    counts = Counter(str(r["verdict"]) for r in made.rows)
    facts = {"folder": str(made.folder), "cells": len(made.rows), "computed": made.computed, "verdicts": dict(counts)}
    text = f"{len(made.rows)} cells, {made.computed} computed: {counts_line(counts)}; see {made.folder / 'index.html'}"
    return _exit_code(counts), facts, "" if quiet else text


def _exit_code(counts: Counter[str]) -> int:
    """That of the worst verdict, as if its cell had been cast alone."""
    codes = {PASSED: OK, NOT_MET_VERDICT: NOT_MET, REFUSED_VERDICT: REFUSED, WRONG_VERDICT: WRONG, BUG_VERDICT: BUG}
    return codes.get(max(counts, key=VERDICTS.index), BROKEN)


def compare_fleet_folders(first: Path, second: Path, html: Path | None = None) -> Answer:
    """Exit code 1 where something got worse, 4 where a cell was lost: nothing is known about it."""
    if html is not None:
        raise InputError("--html is for two castings", hint=f"open {second / 'index.html'}: it has the trends")
    found: dict[str, Any] = compare_fleets(FleetStore(first).last_rows(), FleetStore(second).last_rows())
    code = REGRESSION if found["regressions"] else BROKEN if found["lost"] else OK
    return code, found, "\n".join(comparison_lines(found))
