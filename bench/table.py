"""Rows of results as an aligned table with ratios and geometric means."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

Columns = tuple[tuple[str, str, float, int, str], ...]

# heading, key, scale, digits, and what a third column says of the two
COLUMNS: Columns = (
    ("delegates", "delegates", 1, 0, ""),
    ("host ops", "host_ops", 1, 0, ""),
    ("kB", "bytes", 1e-3, 0, "ratio"),
    ("SQNR dB", "sqnr_db", 1, 1, "gain"),
    ("export s", "seconds", 1, 1, "ratio"),
    ("ms", "median_ms", 1, 2, "ratio"),
)


def table(rows: list[Row], columns: Columns = COLUMNS) -> str:
    """One line per model, stock beside Ingot; a ratio is Ingot / stock, so under 1 is better."""
    head, groups = ["model"], [1]
    for *_, relation in columns:
        head += ["stock", "ingot", *([relation] if relation else [])]
        groups.append(3 if relation else 2)
    lines = [head, *(_line(r, columns) for r in rows if "skipped" not in r), _means(rows, columns)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [_join(line, widths, groups) for line in lines]
    rule = "-" * len(text[0])
    titles = _titles(columns, widths, groups)
    return "\n".join([titles, text[0], rule, *text[1:-1], rule, text[-1], *_remarks(rows)])


def _join(cells: list[str], widths: list[int], groups: list[int]) -> str:
    """Cells right-aligned, two spaces between, a bar between groups."""
    padded = [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    parts, at = [], 0
    for size in groups:
        parts.append("  ".join(padded[at : at + size]))
        at += size
    return " | ".join(parts)


def _titles(columns: Columns, widths: list[int], groups: list[int]) -> str:
    parts, at = [], 0
    for title, size in zip(["", *(c[0] for c in columns)], groups, strict=True):
        parts.append(title.ljust(sum(widths[at : at + size]) + 2 * (size - 1)))
        at += size
    return " | ".join(parts)


def summary(rows: list[Row], columns: Columns = COLUMNS) -> Row:
    """Geometric means of ratios, the mean gain in dB, and sums, each over the models where both flows have a value."""
    out: Row = {"models": sum("skipped" not in r for r in rows)}
    for flow in ("stock", "ingot"):
        out[f"{flow}_ran"] = sum(value(r, flow, "sqnr_db") is not None for r in rows)
    for _, key, _, _, relation in columns:
        pairs = _pairs(rows, key)
        if not pairs:
            continue
        if relation == "ratio":
            out[f"{key}_ratio"] = math.exp(sum(math.log(i / s) for s, i in pairs) / len(pairs))
        elif relation == "gain":
            out[f"{key}_gain"] = sum(i - s for s, i in pairs) / len(pairs)
        else:
            out[f"{key}_sum"] = {"stock": sum(s for s, _ in pairs), "ingot": sum(i for _, i in pairs)}
        out[f"{key}_over"] = len(pairs)
    return out


def value(row: Row, flow: str, key: str) -> float | None:
    return row.get(flow, {}).get(key)


def _pairs(rows: list[Row], key: str) -> list[tuple[float, float]]:
    both = [(value(r, "stock", key), value(r, "ingot", key)) for r in rows]
    return [(s, i) for s, i in both if s is not None and i is not None]


def _line(row: Row, columns: Columns) -> list[str]:
    cells = [row["model"]]
    for _, key, scale, digits, relation in columns:
        stock, ours = value(row, "stock", key), value(row, "ingot", key)
        cells += [_number(stock, scale, digits), _number(ours, scale, digits)]
        if relation:
            unsure = key == "median_ms" and row.get("ratio_low", 2) <= 1 <= row.get("ratio_high", 0)
            cells.append(("~" if unsure else "") + _relation(stock, ours, relation))
    return cells


def _means(rows: list[Row], columns: Columns) -> list[str]:
    means = summary(rows, columns)
    cells = ["sum or mean"]
    for _, key, _, _, relation in columns:
        if relation:
            found = means.get(f"{key}_{relation}")
            cells += ["", "", "-" if found is None else f"{found:.2f}" if relation == "ratio" else f"{found:+.1f}"]
        else:
            sums = means.get(f"{key}_sum", {})
            cells += [f"{sums[f]:.0f}" if sums else "-" for f in ("stock", "ingot")]
    return cells


def _number(number: float | None, scale: float, digits: int) -> str:
    return "-" if number is None else f"{number * scale:.{digits}f}"


def _relation(stock: float | None, ours: float | None, relation: str) -> str:
    if stock is None or ours is None:
        return "-"
    return f"{ours - stock:+.1f}" if relation == "gain" else f"{ours / stock:.2f}"


def _remarks(rows: list[Row]) -> list[str]:
    """What the numbers do not say: what was skipped, failed, or contradicts itself."""
    found = []
    if any(r.get("ratio_low", 2) <= 1 <= r.get("ratio_high", 0) for r in rows):
        found.append("~ the 95 % interval of this ratio includes 1: the run cannot tell the two apart")
    for row in rows:
        if "skipped" in row:
            found.append(f"{row['model']}: left out ({row['skipped']})")
        if "error" in row:
            found.append(f"{row['model']}: {row['error']}")
        for flow in ("stock", "ingot"):
            found += [f"{row['model']}, {flow}: {text}" for text in _flow_remarks(row.get(flow, {}))]
    return ["", *found] if found else []


def _flow_remarks(result: Row) -> list[str]:
    checks: tuple[tuple[bool, Callable[[], str]], ...] = (
        ("error" in result, lambda: result["error"]),
        (result.get("check_passed") is False, lambda: f"its own check failed; culprit: {result.get('culprit')}"),
        (
            result.get("delegate_calls", result.get("delegates")) != result.get("delegates"),
            lambda: f"says {result.get('delegates')} delegates, the program holds {result['delegate_calls']}",
        ),
    )
    return [text() for wrong, text in checks if wrong]
