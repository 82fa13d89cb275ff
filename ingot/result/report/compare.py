"""Compare two castings, as plain data and as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from ingot.plan.plan_data import Plan
from ingot.result.report.text import Facts, counted, decibel, status

Side = tuple[str, Facts, Plan]  # name, facts, plan
LESS, MORE = -1, 1  # the direction that is better


def compare_castings(first: Side, second: Side) -> Facts:
    """Rows of figures, SQNR by value, quantization points that differ, host ops, versions."""
    a, b = first[1], second[1]
    return {
        "sides": [_side(name, facts) for name, facts, _ in (first, second)],
        "rows": [row for row in _rows(a, b) if row["first"] is not None or row["second"] is not None],
        "plan": [dict(zip(("point", "first", "second"), d, strict=True)) for d in first[2].differences(second[2])],
        "host_ops": _host_ops({name: facts["host_ops"] for name, facts, _ in (first, second)}),
        "versions": _versions(a["versions"], b["versions"]),
    }


def _side(name: str, facts: Facts) -> Facts:
    errors = [[i, n["sqnr_db"], n["name"]] for i, n in enumerate(facts["nodes"]) if n["sqnr_db"] is not None]
    return {"name": name, "target": facts["target"], "values": len(facts["nodes"]), "errors": errors}


def _rows(a: Facts, b: Facts) -> Iterator[Facts]:
    yield _row("target", "text", a["target"], b["target"])
    yield _row("check", "text", status(a["check"]), status(b["check"]))
    yield _row("executed on", "text", _of_check(a, "executed_on"), _of_check(b, "executed_on"))
    yield _row("judged on", "text", _of_check(a, "judged_on"), _of_check(b, "judged_on"))
    yield _row("delegates", "count", len(a["delegates"]), len(b["delegates"]), LESS)
    yield _row("host ops", "count", len(a["host_ops"]), len(b["host_ops"]), LESS)
    yield _row("bytes", "count", a["bytes"], b["bytes"], LESS)
    nothing: Facts = {}
    for one, other in zip_longest(_outputs(a), _outputs(b), fillvalue=nothing):
        name = one.get("name") or other.get("name")
        yield _row(f"SQNR of {name}", "db", one.get("sqnr_db"), other.get("sqnr_db"), MORE)
    yield _row("latency, measured", "ms", _measured(a), _measured(b), LESS)
    yield _row("latency, estimated", "ms", _estimated(a), _estimated(b), LESS)
    yield _row("casting time", "seconds", sum(a["timings"].values()), sum(b["timings"].values()))
    yield _row("requantizes", "count", _requantizes(a), _requantizes(b), LESS)
    mine, theirs = _precisions(a), _precisions(b)
    for precision in sorted(mine | theirs):
        yield _row(f"ops in {precision}", "count", mine[precision], theirs[precision])


def _of_check(facts: Facts, key: str) -> str | None:
    return facts["check"].get(key) if facts["check"] else None


def _outputs(facts: Facts) -> list[Facts]:
    return list(facts["check"]["outputs"]) if facts["check"] else []


def _measured(facts: Facts) -> float | None:
    return facts["timing"]["seconds"] if facts["timing"] else None


def _estimated(facts: Facts) -> float | None:
    """The compiler's estimate for all delegates: another machine, so not in one row with measured latency."""
    known = [p["seconds"] for p in facts["performance"] if p.get("seconds")]
    return sum(known) if known else None


def _requantizes(facts: Facts) -> int:
    return sum(read["converts"] == "requantize" for n in facts["nodes"] for read in n["reads"])


def _precisions(facts: Facts) -> Counter[str]:
    return Counter(n["precision"] for n in facts["nodes"] if n["op"] not in ("input", "output"))


def _row(what: str, as_: str, first: Any, second: Any, better: int = 0) -> Facts:
    change, trend = _change(as_, first, second, better)
    return {"what": what, "as": as_, "first": first, "second": second, "change": change, "trend": trend}


def _change(as_: str, first: Any, second: Any, better: int) -> tuple[str, str]:
    if first is None or second is None or first == second:
        return ("same" if first == second else ""), ""
    if as_ == "text":
        return "differs", "differs"
    delta = float(second) - float(first)
    trend = "" if not better else "better" if delta * better > 0 else "worse"
    if as_ == "db":
        return f"{delta:+.1f} dB", trend
    return f"{delta:+,.0f}" if as_ == "count" and abs(first) < 100 else f"{100 * delta / float(first):+.1f} %", trend


def _host_ops(by_name: dict[str, list[Facts]]) -> list[Facts]:
    """Each host op once, with the castings that have it."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, ops in by_name.items():
        for h in ops:
            found.setdefault((h["op"], h["source"], h["reason"]), []).append(name)
    keys = ("op", "source", "reason")
    return [{**dict(zip(keys, op, strict=True)), "where": _where(names)} for op, names in found.items()]


def _where(names: list[str]) -> str:
    return "both" if len(set(names)) == 2 else names[0]


def _versions(a: Facts, b: Facts) -> list[Facts]:
    return [{"what": k, "first": a.get(k, ""), "second": b.get(k, "")} for k in {**a, **b}]


def comparison_text(data: Facts) -> str:
    """A table, then the host ops and the number of quantization points that differ."""
    names = [side["name"] for side in data["sides"]]
    rows = [r for r in data["rows"] if r["what"] != "executed on"]  # too long for a column
    cells = [(r["what"], formatted(r["as"], r["first"]), formatted(r["as"], r["second"]), r["change"]) for r in rows]
    table = [("", *names, ""), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    hosts = [f"host op in {h['where']}: {h['op']} at {h['source']}: {h['reason']}" for h in data["host_ops"]]
    points = counted(len(data["plan"]), "quantization point differs", "quantization points differ")
    return "\n".join([*lines, *hosts, f"{points} (`ingot diff` lists them)" if data["plan"] else "the plans are equal"])


def formatted(as_: str, value: Any) -> str:
    """A figure in the format of the page."""
    if value is None:
        return "–"
    forms = {"count": "{:,}", "ms": "{:.3g} ms", "seconds": "{:.2f} s", "percent": "{:.1f} %", "text": "{}"}
    if as_ == "db":
        return decibel(value)
    return forms[as_].format(1e3 * value if as_ == "ms" else value)
