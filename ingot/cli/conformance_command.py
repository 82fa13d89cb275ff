"""The command for authors of targets: conformance."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ingot.cli.output import OK, WRONG, Answer
from ingot.core.progress import Progress
from ingot.testing import conformance


def conformance_command(options: argparse.Namespace) -> Answer:
    count = 0

    with Progress(quiet=options.quiet).step("cases") as tick:

        def told(_: object) -> None:
            nonlocal count
            count += 1
            tick(count, None)

        report = conformance(options.target, quick=options.quick, on_case=told)
    text = "" if options.quiet and report.passed else str(report)
    return OK if report.passed else WRONG, {**asdict(report), "passed": report.passed}, text
