"""The facts of a cast as one self-contained page: no script, no link to anything, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ingot.casting import Casting
from ingot.report import text

GENERATOR = '<meta name="generator" content="ingot">'
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fff; --soft: #6b6b70; --line: #d8d8dc; --good: #1a7f37; --bad: #b42318 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #161618; --soft: #9a9aa0; --line: #3a3a3e; --good: #4ac26b; --bad: #ff7b72 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.passed { color: var(--good) } .failed { color: var(--bad) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 600 } td { overflow-wrap: anywhere; min-width: 4rem }
"""  # noqa: E501
TENSOR = ("name", "dtype", "shape", "layout", "scale", "zero_point", "qmin", "qmax")


def page(casting: Casting) -> str:
    """The whole page; every text that comes from the model is escaped."""
    facts = text.as_data(casting)
    title = escape(f"Ingot: {text.verdict(facts)}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{GENERATOR}'
    body = "\n".join([_verdict(facts), *_sections(facts)])
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{title}</title><style>{STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _verdict(facts: text.Facts) -> str:
    check = facts["check"]
    mood = "" if check is None else "passed" if check["passed"] else "failed"
    return f'<h1 class="{mood}">{escape(text.verdict(facts))}</h1>'


def _sections(facts: text.Facts) -> Iterable[str]:
    yield _section("Delegates", ("backend", "ops", "inputs", "outputs"), [_delegate(d) for d in facts["delegates"]])
    keys = ("op", "name", "source", "reason", "hint")
    yield _section("Left on the host", keys, [[h[k] for k in keys] for h in facts["host_ops"]])
    yield _executed(facts["check"])
    for number, p in enumerate(facts["performance"], 1):
        yield _contents(number, p) if "segments" in p else _estimate(number, p)
    yield _section("Inputs", TENSOR, [_tensor(t) for t in facts["io"]["inputs"]])
    yield _section("Outputs", TENSOR, [_tensor(t) for t in facts["io"]["outputs"]])
    rows = [[rule, "; ".join(lines[:-1]), lines[-1]] for rule, lines in text.rewritten(facts).items()]
    yield _section("Rewritten", ("rule", "where", "saved"), rows)
    yield _section("Time", ("step", "seconds"), [[n, f"{float(s):.2f}"] for n, s in facts["timings"].items()])
    yield _section("Notes", ("note",), [[n] for n in facts["notes"]])


def _executed(check: text.Facts | None) -> str:
    if check is None:
        return ""
    head = ("output", "to the float model", "worst channel", "to its own quantized graph", "largest error", "problem")
    title = f"Executed on {check['executed_on']}, {text.count(check['batches'], 'batch', 'batches')}"
    return _section(title, head, [_output(o) for o in check["outputs"]])


LAYER = ("name", "op", "source_op", "cycles", "limit", "macs", "utilisation", "sram_bytes")


def _estimate(number: int, p: text.Facts) -> str:
    where = f"{p['accelerator']}, {p['system_config']}, {p['memory_mode']}"
    title = f"Estimate of {p['compiler']} for delegate {number} ({where}): {text.count(p['cycles'], 'cycle')}"
    return _section(title, LAYER, [[_short(layer[k]) for k in LAYER] for layer in p["layers"]])


def _contents(number: int, p: text.Facts) -> str:
    held = ", ".join(f"{kind} {text.count(n, 'byte')}" for kind, n in p["bytes"].items())
    title = f"Delegate {number} is a {p['format']}: {held}"
    return _section(title, ("segment", "kind"), [[s["name"], s["kind"]] for s in p["segments"]])


def _short(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def _output(o: text.Facts) -> list[Any]:
    levels = [text.decibel(o[k]) for k in ("sqnr_db", "worst_channel_db", "faithful_db")]
    return [o["name"], *levels, f"{float(o['max_abs_error']):.3g}", o["problem"]]


def _delegate(d: text.Facts) -> list[Any]:
    return [d["backend"], d["ops"], *("; ".join(text.tensor(t) for t in d[k]) for k in ("inputs", "outputs"))]


def _tensor(t: text.Facts) -> list[Any]:
    return ["×".join(str(d) for d in t[k]) if k == "shape" else t[k] for k in TENSOR]


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A titled table, or the word none."""
    if not rows:
        return f"<h2>{escape(title)}</h2><p>none</p>"
    top = "".join(f"<th>{escape(h.replace('_', ' '))}</th>" for h in head)
    body = "\n".join(f"<tr>{''.join(_cell(v) for v in row)}</tr>" for row in rows)
    return f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{top}</tr>\n{body}\n</table></div>'


def _cell(value: Any) -> str:
    return f"<td>{'' if value is None else escape(str(value))}</td>"
