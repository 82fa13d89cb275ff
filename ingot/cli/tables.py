"""Tables for a terminal, no wider than it is."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

RIGHT = ">"  # in front of a heading: numbers


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None) -> str:
    """Plain text; a heading that starts with `>` is of a column of numbers."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        right = heading.startswith(RIGHT)
        made.add_column(heading.removeprefix(RIGHT), justify="right" if right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False)
    console.print(made)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())
