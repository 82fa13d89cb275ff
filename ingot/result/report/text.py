"""The facts of a cast as plain data, and as a few lines for a terminal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ingot.core.artefact import Check, Delegate

if TYPE_CHECKING:
    from ingot.result.casting import Casting

Facts = dict[str, Any]


def as_data(casting: Casting) -> Facts:
    """Everything a script may want to know, ready for JSON."""
    facts = {
        "target": casting.target,
        "bytes": len(casting.pte),
        "sha256": hashlib.sha256(casting.pte).hexdigest(),
        "delegates": [_delegate_data(d) for d in casting.delegates],
        "host_ops": [asdict(h) for h in casting.host_ops],
        "io": asdict(casting.io),
        "check": None if casting.check is None else check_data(casting.check),
        "performance": [p.to_dict() for p in casting.performance],
        "rewrites": list(casting.plan.rewrites),
        "timings": dict(casting.timings),
        "notes": list(casting.notes),
    }
    return plain(facts)


def _delegate_data(delegate: Delegate) -> Facts:
    """Its files by name and size: what is in them is in files of their own."""
    return {**asdict(replace(delegate, files={})), "files": {name: len(data) for name, data in delegate.files.items()}}


def check_data(check: Check) -> Facts:
    """What running showed, ready for JSON."""
    return plain({**asdict(check), "max_abs_error": check.max_abs_error})


def plain(thing: Any) -> Any:
    """Only what JSON has: tuples become lists, and inf and nan strings, which `float()` reads like the numbers."""
    if isinstance(thing, dict):
        return {str(k): plain(v) for k, v in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [plain(v) for v in thing]
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else str(thing)
    return thing if thing is None or isinstance(thing, (bool, int, str)) else str(thing)


def summary(casting: Casting, verbose: bool = True) -> str:
    """The verdict first, then what stands behind it."""
    facts = as_data(casting)
    parts = (_delegates, _host_ops, outputs, estimates, _rewrites, _timings, _notes)
    return "\n".join([verdict(facts), *(line for part in parts for line in part(facts))])


def verdict(facts: Facts) -> str:
    """`xnnpack: 1 delegate, 0 host ops, 41,200 bytes: passed`."""
    counts = [count(len(facts["delegates"]), "delegate"), count(len(facts["host_ops"]), "host op")]
    return f"{facts['target']}: {', '.join([*counts, count(facts['bytes'], 'byte')])}: {outcome(facts['check'])}"


def outcome(check: Facts | None) -> str:
    """One word, or the culprit."""
    if check is None:
        return "not executed"
    if check["passed"]:
        return "passed"
    return f"FAILED, the error starts at {check['culprit']}" if check["culprit"] else "FAILED"


def _delegates(facts: Facts) -> Iterator[str]:
    for number, d in enumerate(facts["delegates"], 1):
        yield f"delegate {number}: {d['backend']}, {count(d['ops'], 'op')}"
        yield f"  in   {', '.join(tensor(t) for t in d['inputs']) or 'nothing'}"
        yield f"  out  {', '.join(tensor(t) for t in d['outputs']) or 'nothing'}"


def _host_ops(facts: Facts) -> Iterator[str]:
    for h in facts["host_ops"]:
        yield f"on the host: {h['op']} ({h['name']}) at {h['source']}"
        yield f"  why  {h['reason']}"
        if h["hint"]:
            yield f"  try  {h['hint']}"


def outputs(facts: Facts, verbose: bool = True) -> Iterator[str]:
    """What ran where, and how each output compares."""
    check = facts["check"]
    if check is None:
        return
    yield f"executed on {check['executed_on']}, {count(check['batches'], 'batch', 'batches')}"
    for o in check["outputs"]:
        yield f"  {o['name']}: {comparison(o)}"
        if o["problem"]:
            yield f"    {o['problem']}"


def estimates(facts: Facts) -> Iterator[str]:
    """What the compiler expects of each delegate."""
    for number, p in enumerate(facts["performance"], 1):
        if "segments" in p:
            held = ", ".join(f"{kind} {count(n, 'byte')}" for kind, n in p["bytes"].items())
            yield f"delegate {number} is a {p['format']} of {count(len(p['segments']), 'segment')}: {held}"
            continue
        where = f"{p['accelerator']}, {p['system_config']}, {p['memory_mode']}"
        yield f"{p['compiler']} estimates delegate {number} ({where}):"
        memories = ", ".join(f"{m['name']} {count(m['used_bytes'], 'byte')}" for m in p["memories"])
        yield f"  {count(p['cycles'], 'cycle')}, {1e3 * float(p['seconds']):.3g} ms; {memories}"


def comparison(output: Facts) -> str:
    """One output against the float model and against its own quantized graph."""
    near, own, worst = (decibel(output[k]) for k in ("sqnr_db", "faithful_db", "worst_channel_db"))
    largest = f"largest error {float(output['max_abs_error']):.3g}"
    return f"{near} to the float model (worst channel {worst}), {own} to its own quantized graph, {largest}"


def rewritten(facts: Facts) -> dict[str, list[str]]:
    """The lines of each rule: where it was used, and at last what that saved or why it was not."""
    found: dict[str, list[str]] = {}
    for line in facts["rewrites"]:
        rule, _, what = line.partition(": ")
        found.setdefault(rule, []).append(what)
    return found


def _rewrites(facts: Facts) -> Iterator[str]:
    for rule, lines in rewritten(facts).items():
        yield (
            f"rewritten: {rule}, {count(len(lines) - 1, 'place')}: {lines[-1]}"
            if len(lines) > 1
            else f"{rule}: {lines[0]}"
        )


def _timings(facts: Facts) -> Iterator[str]:
    if facts["timings"]:
        yield "seconds: " + ", ".join(f"{name} {float(s):.1f}" for name, s in facts["timings"].items())


def _notes(facts: Facts) -> Iterator[str]:
    for note in facts["notes"]:
        yield f"note: {note}"


def tensor(t: Facts) -> str:
    """`x int8 1×3×32×32 (scale 0.0123, zero point -3)`."""
    shape = "×".join(str(d) for d in t["shape"]) or "scalar"
    layout = "" if t["layout"] == "contiguous" else f" {t['layout']}"
    scale = "" if t["scale"] is None else f" (scale {float(t['scale']):.4g}, zero point {t['zero_point']})"
    return f"{t['name']} {t['dtype']} {shape}{layout}{scale}"


def decibel(value: Any) -> str:
    """`38.2 dB`; 200 and more stand for equality to the last bit."""
    number = float(value)
    return "exact" if number >= 200 else f"{number:.1f} dB"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 op`, `2 ops`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
