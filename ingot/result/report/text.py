"""The summary of a casting, as plain data and as lines for a terminal."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ingot.core.artefact import Check, Delegate
from ingot.core.goal_records import GoalResult

if TYPE_CHECKING:
    from ingot.result.casting import Casting

Facts = dict[str, Any]


def summary_facts(casting: Casting) -> Facts:
    """The casting without its details by value, ready for JSON."""
    facts = {
        "target": casting.target,
        "bytes": len(casting.pte),
        "sha256": hashlib.sha256(casting.pte).hexdigest(),
        "delegates": [_delegate_data(d) for d in casting.delegates],
        "host_ops": [asdict(h) for h in casting.host_ops],
        "io": asdict(casting.io),
        "check": None if casting.check is None else check_data(casting.check),
        "goal": None if casting.goal is None else goal_data(casting.goal),
        "performance": [p.to_dict() for p in casting.performance],
        "methods": [_method_data(c) for c in casting.methods.values()] if casting.plan.methods else [],
        "rewrites": list(casting.plan.rewrites),
        "timings": dict(casting.timings),
        "notes": list(casting.notes),
    }
    return json_ready(facts)


def _method_data(casting: Casting) -> Facts:
    """One size of a program that has several."""
    return {
        "name": casting.method,
        "inputs": [asdict(t) for t in casting.io.inputs],
        "delegates": len(casting.delegates),
        "host_ops": len(casting.host_ops),
    }


def _delegate_data(delegate: Delegate) -> Facts:
    """Its files by name and size, without their content."""
    return {**asdict(replace(delegate, files={})), "files": {name: len(data) for name, data in delegate.files.items()}}


def check_data(check: Check) -> Facts:
    """The result of verification, ready for JSON."""
    return json_ready({**asdict(check), "max_abs_error": check.max_abs_error})


def goal_data(goal: GoalResult) -> Facts:
    """Goals and the search for them, ready for JSON."""
    steps = [{**asdict(s), "met": s.met} for s in goal.steps]
    return json_ready({**asdict(goal), "steps": steps, "met": goal.met})


def json_ready(thing: Any) -> Any:
    """Only JSON types: tuples become lists, inf and nan become strings that `float()` can read."""
    if isinstance(thing, dict):
        return {str(k): json_ready(v) for k, v in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [json_ready(v) for v in thing]
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else str(thing)
    return thing if thing is None or isinstance(thing, (bool, int, str)) else str(thing)


# What a check was judged on. Reports of earlier versions do not say.
JUDGED_ON = {
    "validation": " of validation data",
    "held-out": " held out of the calibration data",
    "calibration": " that calibration has seen; give validation data to judge it on others",
    "example": ", the example inputs; give validation data to judge it on others",
    "given": " given",
    None: "",
}

MOST_LISTED = 6  # tensors, host ops, outputs or notes of a summary that is not verbose


def summary(casting: Casting, verbose: bool = True) -> str:
    """The headline, then delegates, host ops, outputs, estimates, rewrites, timings and notes."""
    facts = summary_facts(casting)
    long = (_delegates, _host_ops, output_lines, _notes)
    lines = {part: list(part(facts, verbose)) for part in long}
    order = (_goal, _methods, _delegates, _host_ops, output_lines, _estimates, _rewrites, _timings, _notes)
    return "\n".join([headline(facts), *(line for p in order for line in (lines[p] if p in lines else p(facts)))])


def _listed(things: list[Any], verbose: bool) -> tuple[list[Any], str]:
    """The first few, and how many more there are."""
    shown = things if verbose or len(things) <= MOST_LISTED else things[: MOST_LISTED - 1]
    left = len(things) - len(shown)
    return shown, f"… and {left} more (--verbose lists them)" if left else ""


def headline(facts: Facts) -> str:
    """`xnnpack: 1 delegate, 0 host ops, 41,200 bytes: passed`."""
    counts = [counted(len(facts["delegates"]), "delegate"), counted(len(facts["host_ops"]), "host op")]
    return f"{facts['target']}: {', '.join([*counts, counted(facts['bytes'], 'byte')])}: {status(facts['check'])}"


def status(check: Facts | None) -> str:
    """Passed or failed; if failed, with the value where the error starts."""
    if check is None:
        return "not executed"
    if check["passed"]:
        return "passed"
    return f"FAILED, the error starts at {check['culprit']}" if check["culprit"] else "FAILED"


def _goal(facts: Facts) -> Iterator[str]:
    """The goals, and each plan that was measured on the way."""
    if (goal := facts["goal"]) is None:
        return
    for v in goal["values"]:
        sign = ">=" if v["higher_is_better"] else "<="
        wanted = f"{sign} {v['bar']:.6g}; float model {v['float_value']:.6g}"
        yield f"goal {'met' if goal['met'] else 'NOT MET'}: {v['metric']} {v['value']:.6g} ({wanted})"
    for s in goal["steps"]:
        values = ", ".join(f"{v['metric']} {v['value']:.6g}" for v in s["values"])
        ops = ", ".join(f"{n} {p}" for p, n in s["precisions"].items())
        yield f"  plan: {values}, estimated time {s['estimated_time']:.2f} ({ops}){'' if s['met'] else ': not met'}"
    yield f"  {goal['ended']}"


def _methods(facts: Facts) -> Iterator[str]:
    """The sizes of the program; what follows is of the first."""
    for m in facts["methods"]:
        counts = [counted(m["delegates"], "delegate"), counted(m["host_ops"], "host op")]
        yield f"method {m['name']}: {', '.join(map(tensor_text, m['inputs']))}: {', '.join(counts)}"


def _delegates(facts: Facts, verbose: bool = True) -> Iterator[str]:
    for number, d in enumerate(facts["delegates"], 1):
        yield f"delegate {number}: {d['backend']}, {counted(d['ops'], 'op')}"
        yield f"  in   {_tensors(d['inputs'], verbose)}"
        yield f"  out  {_tensors(d['outputs'], verbose)}"


def _tensors(tensors: list[Facts], verbose: bool) -> str:
    shown, more = _listed(tensors, verbose)
    return ", ".join([*map(tensor_text, shown), *([more] if more else [])]) or "none"


def _host_ops(facts: Facts, verbose: bool = True) -> Iterator[str]:
    shown, more = _listed(facts["host_ops"], verbose)
    for h in shown:
        yield f"host op: {h['op']} ({h['name']}) at {h['source']}"
        yield f"  why  {h['reason']}"
        if h["hint"]:
            yield f"  try  {h['hint']}"
    if more:
        yield f"host ops: {more}"


def output_lines(facts: Facts, verbose: bool = True) -> Iterator[str]:
    """Where the program was executed, and the comparison of each output; the worst of many."""
    check = facts["check"]
    if check is None:
        return
    count = counted(check["batches"], "batch", "batches")
    yield f"executed on {check['executed_on']}, {count}{JUDGED_ON.get(check.get('judged_on'), '')}"
    ordered = sorted(check["outputs"], key=lambda o: (not o["problem"], float(o["sqnr_db"])))
    many = not verbose and len(ordered) > MOST_LISTED
    shown, more = _listed(ordered if many else check["outputs"], verbose)
    for o in shown:
        yield f"  {o['name']}: {_comparison(o)}"
        if o["problem"]:
            yield f"    {o['problem']}"
    if more:
        yield f"  {more}; these are the worst"
    yield from (f"  {note}" for note in check.get("notes", ()))


def _estimates(facts: Facts) -> Iterator[str]:
    """The compiler's estimate for each delegate."""
    for number, p in enumerate(facts["performance"], 1):
        if "segments" in p:
            sizes = ", ".join(f"{kind} {counted(n, 'byte')}" for kind, n in p["bytes"].items())
            yield f"delegate {number} is a {p['format']} of {counted(len(p['segments']), 'segment')}: {sizes}"
            continue
        where = f"{p['accelerator']}, {p['system_config']}, {p['memory_mode']}"
        yield f"{p['compiler']} estimates delegate {number} ({where}):"
        memories = ", ".join(f"{m['name']} {counted(m['used_bytes'], 'byte')}" for m in p["memories"])
        yield f"  {counted(p['cycles'], 'cycle')}, {1e3 * float(p['seconds']):.3g} ms; {memories}"


def _comparison(output: Facts) -> str:
    """One output against the float model and against the quantized graph."""
    to_float, to_graph, worst = (decibel(output[k]) for k in ("sqnr_db", "faithful_db", "worst_channel_db"))
    largest = f"largest error {float(output['max_abs_error']):.3g}"
    return f"SQNR {to_float} to the float model (worst channel {worst}), {to_graph} to the quantized graph, {largest}"


def _rewrites_by_rule(facts: Facts) -> dict[str, list[str]]:
    """The lines of each rule: where it was applied, and last its benefit or why it was not applied."""
    found: dict[str, list[str]] = {}
    for line in facts["rewrites"]:
        rule, _, what = line.partition(": ")
        found.setdefault(rule, []).append(what)
    return found


def _rewrites(facts: Facts) -> Iterator[str]:
    for rule, lines in _rewrites_by_rule(facts).items():
        yield (
            f"rewritten: {rule}, {counted(len(lines) - 1, 'place')}: {lines[-1]}"
            if len(lines) > 1
            else f"{rule}: {lines[0]}"
        )


def _timings(facts: Facts) -> Iterator[str]:
    if facts["timings"]:
        yield "seconds: " + ", ".join(f"{name} {float(s):.1f}" for name, s in facts["timings"].items())


def _notes(facts: Facts, verbose: bool = True) -> Iterator[str]:
    shown, more = _listed(facts["notes"], verbose)
    yield from (f"note: {note}" for note in shown)
    if more:
        yield f"notes: {more}"


def tensor_text(t: Facts) -> str:
    """`x int8 1×3×32×32 (scale 0.0123, zero point -3)`."""
    shape = "×".join(str(d) for d in t["shape"]) or "scalar"
    layout = "" if t["layout"] == "contiguous" else f" {t['layout']}"
    scale = "" if t["scale"] is None else f" (scale {float(t['scale']):.4g}, zero point {t['zero_point']})"
    return f"{t['name']} {t['dtype']} {shape}{layout}{scale}"


def decibel(value: Any) -> str:
    """`38.2 dB`; 200 dB and more mean bit-exact."""
    number = float(value)
    return "exact" if number >= 200 else f"{number:.1f} dB"


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """`1 op`, `2 ops`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
