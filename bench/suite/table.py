"""The rows of a suite as text: counts by result for both flows, refusals grouped by reason, what is wrong by name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

from tools.source_state import states_of

Row = dict[str, Any]

INGOT = {
    "fine": "handed over, executed, near eager",
    "refused": "an error of Ingot with a reason",
    "check failed": "the artefact ran and did not pass Ingot's check",
    "wrong": "handed over, far from eager",
    "crashed": "a bare exception, or the process died",
    "invalid": "the test itself does not run, or the suite skips it",
}
STOCK = {
    "SUCCESS": "delegated, executed, as its own quantized graph",
    "SUCCESS_UNDELEGATED": "nothing delegated, nothing executed: a pass for the suite",
    "SKIPPED": "the test itself does not run, or the suite skips it",
}


def table(rows: list[Row], target: str) -> str:
    ingot, stock = ([r for r in rows if r["flow"] == flow] for flow in ("ingot", "stock"))
    parts = [f"{target}: {len({r['id'] for r in rows})} tests"]
    parts += _counts(f"Ingot, {states_of(ingot)}", ingot, INGOT) if ingot else []
    parts += _delegation(ingot) if ingot else []
    parts += _counts("stock", stock, STOCK) if stock else []
    return "\n".join([*parts, *_reasons(ingot), *_named(ingot)])


def _counts(title: str, rows: list[Row], meanings: dict[str, str]) -> list[str]:
    counts = Counter(r["result"] for r in rows)
    known = [f"  {counts.pop(name, 0):5} {name:20} {meaning}" for name, meaning in meanings.items()]
    return [f"{title}:", *known, *(f"  {n:5} {name}" for name, n in sorted(counts.items()))]


def _delegation(rows: list[Row]) -> list[str]:
    """Of the models that were handed over."""
    made = [m for r in rows for m in r.get("models", []) if "delegates" in m]
    whole = sum(m["delegates"] == 1 and not m["host_ops"] for m in made)
    none = sum(not m["delegates"] for m in made)
    beyond = sum(not m["within_tolerance"] for m in made)
    return [
        f"  {len(made)} models handed over: {whole} are one delegate and nothing else, {none} have none,"
        f" {sum(m['host_ops'] for m in made)} host ops",
        f"  {beyond} of them beyond the suite's elementwise tolerance against eager float (int8 steps)",
    ]


def _reasons(rows: list[Row]) -> list[str]:
    """Refusals by reason, the commonest first, with the tests."""
    groups = defaultdict[str, list[str]](list)
    for row in rows:
        if row["result"] == "refused":
            groups[_reason(row["why"])].append(row["id"].split("::")[-1])
    lines = [f"  {len(ids):4} {why}: {', '.join(ids)}" for why, ids in sorted(groups.items(), key=lambda g: -len(g[1]))]
    return ["refused, by reason:", *lines] if lines else []


def _reason(text: str) -> str:
    """Without names of nodes, lines and numbers, which differ from test to test."""
    what = re.sub(r"where: [^·]*· ?|try: .*", "", text)
    return re.sub(r"\d+", "#", what).strip(" ·")[:200]


def _named(rows: list[Row]) -> list[str]:
    bad = [r for r in rows if r["result"] in ("check failed", "wrong", "crashed")]
    return [f"{r['result']}: {r['id']}: {r.get('why') or r.get('sqnr_db')}" for r in bad]
