"""The summary of a casting as an HTML table: what a notebook shows for it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ingot.result.report.text import Facts, decibel, headline, summary_facts, tensor_text

if TYPE_CHECKING:
    from ingot.result.casting import Casting

GOOD, BAD = "#2e7d32", "#c62828"
MOST_ROWS = 12  # outputs or host ops


def notebook_html(casting: Casting) -> str:
    """What the casting already knows; nothing is executed. Styles are inline, since notebooks drop others."""
    facts = summary_facts(casting)
    check = facts["check"]
    color = "inherit" if check is None else GOOD if check["passed"] else BAD
    title = f'<b style="color:{color}">{escape(headline(facts))}</b>'
    parts = [
        title,
        *_table("inputs and outputs", _io(facts)),
        *_table("outputs against the float model", _outputs(facts)),
    ]
    return "<div>" + "".join([*parts, *_table("host ops", _host_ops(facts))]) + "</div>"


def _io(facts: Facts) -> Iterator[tuple[str, ...]]:
    for side in ("inputs", "outputs"):
        yield from ((side.removesuffix("s"), tensor_text(t)) for t in facts["io"][side])


def _outputs(facts: Facts) -> Iterator[tuple[str, ...]]:
    for o in (facts["check"] or {}).get("outputs", ()):
        worst = f"worst channel {decibel(o['worst_channel_db'])}"
        yield o["name"], f"SQNR {decibel(o['sqnr_db'])}", worst, o["problem"] or ""


def _host_ops(facts: Facts) -> Iterator[tuple[str, ...]]:
    yield from ((h["op"], h["source"], h["reason"]) for h in facts["host_ops"])


def _table(caption: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    found = list(rows)
    if not found:
        return
    yield f'<table style="margin:.5em 0"><caption style="text-align:left">{caption}</caption>'
    for row in found[:MOST_ROWS]:
        yield "<tr>" + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in row) + "</tr>"
    if (left := len(found) - MOST_ROWS) > 0:
        yield f"<tr><td>… and {left} more</td></tr>"
    yield "</table>"
