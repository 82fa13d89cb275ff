"""Progress of a sweep: a bar and the failures on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, TextIO

from ingot.fleet.rows import PASSED, Row


class SweepProgress:
    """Counts cells. On a terminal passed cells only move the bar; what failed is printed above it."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None):
        self.stream, self.quiet = stream or sys.stderr, quiet
        self.counts: Counter[str] = Counter()
        self.total = 0
        self.bar: Any = None

    def begin(self, total: int) -> None:
        self.total = total
        if not self.quiet and self.stream.isatty():
            self.bar = _rich_bar(self.stream, total)
            self.bar.start()

    def ended(self, row: Row) -> None:
        self.counts[row["verdict"]] += 1
        if self.quiet:
            return
        if self.bar is None:
            print(f"[{self.counts.total()}/{self.total}] {row_line(row)}", file=self.stream, flush=True)
            return
        if row["verdict"] != PASSED:
            self.bar.console.print(row_line(row), markup=False, highlight=False)
        self.bar.update(self.bar.task_ids[0], completed=self.counts.total(), state=counts_line(self.counts))

    def end(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def row_line(row: Row) -> str:
    """`digits · xnnpack · default: passed, 1 delegate, 0 host ops, 41,200 bytes, 38.2 dB`."""
    head = f"{row['model']} · {row['target']} · {row['recipe']}: {row['verdict']}"
    if "error" in row:
        return f"{head}: {row['error']['text']}"
    sqnr = row["sqnr_db"]
    quality = f", {sqnr:.1f} dB" if isinstance(sqnr, float) else ""
    return f"{head}, {row['delegates']} delegates, {row['host_ops']} host ops, {row['bytes']:,} bytes{quality}"


def counts_line(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())


def _rich_bar(stream: TextIO, total: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    state = TextColumn("{task.fields[state]}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), state)
    bar = Progress(*columns, console=Console(file=stream))
    bar.add_task("cells", total=total, state="")
    return bar
