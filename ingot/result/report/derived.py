"""Figures that follow from others: where errors grow, time by kind of op, bytes by part. So pages only draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ingot.result.report.text import Facts, plain

FIRST_ROUNDING_DB = 40.0  # the level of exact inputs: the first rounding of a clean signal is nobody's fault
NUMBERED = re.compile(r" #\d+$")  # XNNPACK numbers ops of a kind


def derived(facts: Facts) -> Facts:
    falls = sorted(_falls(facts["nodes"]), key=lambda f: -f["below_db"])
    parts = facts["timing"]["parts"] if facts["timing"] else []
    return plain({"falls": falls, "kinds": _kinds(parts), "sizes": list(_sizes(facts))})


def _falls(nodes: list[Facts]) -> Iterator[Facts]:
    """Values at least half a decibel worse than the worst that they read."""
    errors = {n["name"]: float(n["sqnr_db"]) for n in nodes if n["sqnr_db"] is not None}
    for n in nodes:
        if n["name"] in errors:
            read = [errors.get(r["value"], FIRST_ROUNDING_DB) for r in n["reads"]]
            below = min([FIRST_ROUNDING_DB, *read]) - errors[n["name"]]
            if below > 0.5:
                yield {k: n[k] for k in ("name", "op", "source", "sqnr_db")} | {"below_db": below}


def _kinds(parts: list[Facts]) -> list[Facts]:
    """The same op in one place, taken together; the longest first."""
    whole = sum(p["seconds"] for p in parts) or 1.0
    sums: dict[tuple[str, int], float] = {}
    for p in parts:
        kind = NUMBERED.sub("", p["name"]), p["place"]
        sums[kind] = sums.get(kind, 0.0) + p["seconds"]
    found: list[Facts] = [
        {"name": name, "place": place, "seconds": s, "percent": 100 * s / whole} for (name, place), s in sums.items()
    ]
    return sorted(found, key=lambda k: -float(k["seconds"]))


def _sizes(facts: Facts) -> Iterator[Facts]:
    """Delegates, and what of the file is in none of them."""
    for number, d in enumerate(facts["delegates"], 1):
        yield {"place": number, "ops": d["ops"], "bytes": d["size"], "constants": _constants(facts, number)}
    rest = facts["bytes"] - sum(d["size"] for d in facts["delegates"])
    yield {"place": 0, "ops": len(facts["host_ops"]), "bytes": rest, "constants": _constants(facts, 0)}


def _constants(facts: Facts, place: int) -> int:
    found: list[Any] = [w["bytes"] for w in facts["weights"] if (w["place"] or 0) == place]
    return sum(found)
