"""Progress reporting on stderr: bars on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TextIO

STEPS = ("capture", "record", "plan", "quantize", "lower", "verify")
Tick = Callable[[int, int | None], None]


def nothing_to_report(done: int, total: int | None) -> None:
    """The tick of a step that reports nothing."""


class Reporter(Protocol):
    """Reports the progress of one step: `with progress.step("record") as tick: tick(done, total)`."""

    def step(self, name: str) -> AbstractContextManager[Tick]: ...


class Silent:
    """Reports nothing. The default of every step."""

    @contextmanager
    def step(self, name: str) -> Iterator[Tick]:
        yield nothing_to_report


class Progress:
    """One bar or one line per step."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.quiet, self.live = quiet, None  # type: tuple[bool, Any]
        self.bars = not quiet and self.stream.isatty()
        self._tick: Tick = nothing_to_report

    @contextmanager
    def step(self, name: str) -> Iterator[Tick]:
        """Start the step `name`. The returned tick counts finished units."""
        before, self._tick = self._tick, nothing_to_report
        try:
            with self._bar(name) if self.bars else self._line(name) as self._tick:
                yield self._tick
        finally:
            self._tick = before

    def advance(self, done: int, total: int | None = None) -> None:
        """Tick the current step."""
        self._tick(done, total)

    @contextmanager
    def _line(self, name: str) -> Iterator[Tick]:
        start, status = time.perf_counter(), "failed after "
        try:
            yield nothing_to_report
            status = ""
        finally:
            if not self.quiet:
                print(f"{name} … {status}{time.perf_counter() - start:.1f} s", file=self.stream, flush=True)

    @contextmanager
    def _bar(self, name: str) -> Iterator[Tick]:
        with self._display() as live:
            task = live.add_task(name, total=None, count="")

            def tick(done: int, total: int | None) -> None:
                live.update(task, completed=done, total=total, count=f"{done}/{total}" if total else str(done))

            yield tick
            live.update(task, completed=1, total=1)  # a failed step keeps its partial bar

    @contextmanager
    def _display(self) -> Iterator[Any]:
        """The rich display. Nested steps share it."""
        if self.live is not None:
            yield self.live
            return
        self.live = _rich(self.stream)
        try:
            with self.live:
                yield self.live
        finally:
            self.live = None


def _rich(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    count = TextColumn("{task.fields[count]}")
    columns = (TextColumn("{task.description:<8}"), BarColumn(), TimeElapsedColumn(), count)
    return Bars(*columns, console=Console(file=stream), redirect_stdout=False)


class Steps:
    """Measures the duration of each step and reports its progress."""

    def __init__(self, progress: Any, seconds: dict[str, float] | None = None):
        self.progress, self.seconds = progress, dict(seconds or {})

    def fork(self) -> Steps:
        return Steps(self.progress, self.seconds)

    @contextmanager
    def __call__(self, name: str) -> Iterator[Any]:
        start = time.perf_counter()
        with self.progress.step(name) as tick:
            yield tick
        self.seconds[name] = time.perf_counter() - start
