"""Figures derived from others: SQNR drops, time by kind of op, bytes by delegate. The page only draws them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ingot.result.report.text import Facts, json_ready

FIRST_ROUNDING_DB = 40.0  # SQNR assumed for exact inputs, so that the first rounding is not listed as a drop
MIN_DROP_DB = 0.5
NUMBERED = re.compile(r" #\d+$")  # XNNPACK numbers the ops of one kind


def derived(facts: Facts) -> Facts:
    drops = sorted(_sqnr_drops(facts["nodes"]), key=lambda f: -f["below_db"])
    parts = facts["timing"]["parts"] if facts["timing"] else []
    return json_ready({"sqnr_drops": drops, "kinds": _time_by_kind(parts), "sizes": list(_sizes(facts))})


def _sqnr_drops(nodes: list[Facts]) -> Iterator[Facts]:
    """Values whose SQNR is more than MIN_DROP_DB below that of their worst operand."""
    errors = {n["name"]: float(n["sqnr_db"]) for n in nodes if n["sqnr_db"] is not None}
    for n in nodes:
        if n["name"] in errors:
            read = [errors.get(r["value"], FIRST_ROUNDING_DB) for r in n["reads"]]
            below = min([FIRST_ROUNDING_DB, *read]) - errors[n["name"]]
            if below > MIN_DROP_DB:
                yield {k: n[k] for k in ("name", "op", "source", "sqnr_db")} | {"below_db": below}


def _time_by_kind(parts: list[Facts]) -> list[Facts]:
    """The sum over all ops of one kind in one delegate; the longest first."""
    total = sum(p["seconds"] for p in parts) or 1.0
    sums: dict[tuple[str, int], float] = {}
    for p in parts:
        kind = NUMBERED.sub("", p["name"]), p["place"]
        sums[kind] = sums.get(kind, 0.0) + p["seconds"]
    found: list[Facts] = [
        {"name": name, "place": place, "seconds": s, "percent": 100 * s / total} for (name, place), s in sums.items()
    ]
    return sorted(found, key=lambda k: -float(k["seconds"]))


def _sizes(facts: Facts) -> Iterator[Facts]:
    """Bytes of each delegate, and of the rest of the file."""
    for number, d in enumerate(facts["delegates"], 1):
        yield {"place": number, "ops": d["ops"], "bytes": d["size"], "constants": _constants(facts, number)}
    rest = facts["bytes"] - sum(d["size"] for d in facts["delegates"])
    yield {"place": 0, "ops": len(facts["host_ops"]), "bytes": rest, "constants": _constants(facts, 0)}


def _constants(facts: Facts, place: int) -> int:
    found: list[Any] = [w["bytes"] for w in facts["weights"] if (w["place"] or 0) == place]
    return sum(found)
