"""The rows of the families as text: a line per net, counts, and the host ops that are left, by op."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

Row = dict[str, Any]
WRONG_DB = 0.0  # no signal is left. Random int8 nets of 60 layers reach 5 to 12 dB, others 20 to 40


def families_table(rows: list[Row]) -> str:
    by_net = defaultdict[str, dict[str, Row]](dict)
    for row in rows:
        by_net[row["id"]][row["flow"]] = row
    lines = [_line(name, flows) for name, flows in by_net.items() if not _skipped(flows)]
    head = f"{'family':44} {'delegates':>13} {'host ops':>11} {'dB':>13} {'seconds':>13}"
    left_out = [f"not built: {n}: {_skipped(f)}" for n, f in by_net.items() if _skipped(f)]
    return "\n".join([head, *lines, *_counts(by_net), *_left(by_net), *left_out])


def _skipped(flows: dict[str, Row]) -> str:
    return next((r["skipped"] for r in flows.values() if "skipped" in r), "")


def _line(name: str, flows: dict[str, Row]) -> str:
    """stock / ingot in each column."""
    pair = [flows.get(f, {}) for f in ("stock", "ingot")]

    def cell(key: str, form: str) -> str:
        return " / ".join(_shown(r, key, form) for r in pair)

    columns = f"{cell('delegates', 'd'):>13} {cell('host_ops', 'd'):>11} {cell('sqnr_db', '.0f'):>13}"
    kinds = flows.get("ingot", {}).get("host_kinds") or ""
    errors = "; ".join(f"{f}: {r['error'][:160]}" for f, r in flows.items() if "error" in r)
    return f"{name[:44]:44} {columns} {cell('seconds', '.1f'):>13}  {kinds or ''} {errors}".rstrip()


def _shown(row: Row, key: str, form: str) -> str:
    return format(row[key], form) if row.get(key) is not None else "dies" if "error" in row else "-"


def verdict(row: Row) -> str:
    """whole: one delegate, and nothing on the host but what reads or gives integers: gathers, their indices, masks.

    By the kernels that the program calls: assertions on indices are in the graph, but not in the program.
    """
    if "error" in row:
        return "dies"
    if row.get("sqnr_db", 99.0) < WRONG_DB or row.get("disagrees"):
        return "wrong"
    kernels = min(row["host_ops"], row.get("kernel_calls", row["host_ops"]))
    return "whole" if row["delegates"] == 1 and kernels <= row.get("host_integer", 0) else "split"


def _counts(by_net: dict[str, dict[str, Row]]) -> list[str]:
    lines = []
    for flow in ("stock", "ingot"):
        rows = [f[flow] for f in by_net.values() if flow in f and not _skipped(f)]
        found = [verdict(r) for r in rows]
        lines += [f"{flow}: {len(rows)} nets, " + ", ".join(f"{found.count(v)} {v}" for v in sorted(set(found)))]
    ratios = [_planning(f) for f in by_net.values() if _planning(f) is not None]
    return [
        *lines,
        *([f"planning and rewriting / stock's lowering: median {statistics.median(ratios):.2f}"] if ratios else []),
    ]  # type: ignore[type-var]


def _planning(flows: dict[str, Row]) -> float | None:
    ours, stock = (flows.get(f, {}).get("timings", {}) for f in ("ingot", "stock"))
    spent = sum(ours.get(step, 0.0) for step in ("rewrite", "plan"))
    return spent / stock["lower"] if spent and stock.get("lower") else None


def _left(by_net: dict[str, dict[str, Row]]) -> list[str]:
    """Host ops of Ingot by op: in how many nets, and which."""
    nets = defaultdict[str, list[str]](list)
    for name, flows in by_net.items():
        for op in flows.get("ingot", {}).get("host_kinds", ()):
            nets[op].append(name)
    ranked = sorted(nets.items(), key=lambda item: -len(item[1]))
    return ["left on the host:", *(f"  {len(n):3} {op}: {', '.join(n)[:160]}" for op, n in ranked)] if ranked else []
