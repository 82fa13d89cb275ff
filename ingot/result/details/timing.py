"""Profile a run by op, with the event tracer of the ExecuTorch runtime; delegates report to it as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ingot.errors import IngotError
from ingot.quantize.integer_io import quantize_inputs
from ingot.result.details.records import TimedOp, Timing

if TYPE_CHECKING:
    from ingot.result.casting import Casting

RUNS = 11  # the first is not counted: it packs weights and warms caches
HOW = "fastest run under ExecuTorch's event tracer, on the machine of the cast"
NATIVE = "native_call_"  # prefix of host ops in a trace


def timing_of(casting: Casting) -> Timing:
    """The fastest of several runs of one batch: disturbances only make a run longer."""
    evidence = casting.needed_evidence
    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    try:
        trace = evidence.target.runner.trace(casting.pte, quantize_inputs(batch, evidence.io.inputs), RUNS)
    except IngotError as e:
        return Timing(f"not measured: {e.what}: {e.why}")
    if trace is None:
        return Timing(f"not measured: {casting.target} was verified on an emulator or a reference model")
    try:
        return _parsed(trace)
    except Exception as e:  # a trace of another version; the casting is good: report it without this part
        return Timing(f"not measured: the trace cannot be read: {type(e).__name__}: {e}")


def events_by_call(trace: bytes) -> dict[int, list[tuple[str, float]]]:
    """By delegate call, as the number of its instruction: names and seconds of its events in the fastest run."""
    found: dict[int, list[tuple[str, float]]] = {}
    for event in min(_runs(trace), key=_total, default=[]):
        if event.delegate_debug_id_str is not None:
            found.setdefault(event.instruction_id, []).append((event.delegate_debug_id_str, _seconds(event)))
    return found


def _runs(trace: bytes) -> list[list[Any]]:
    """The profile events of each run but the first."""
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    dump = deserialize_from_etdump_flatcc(trace)
    return [[e.profile_event for e in r.events if e.profile_event] for r in dump.run_data if r.name == "Execute"][1:]


def _parsed(trace: bytes) -> Timing:
    runs = _runs(trace)
    if not runs:
        return Timing("not measured: this build of the ExecuTorch runtime has no event tracer")
    fastest = min(runs, key=_total)
    return Timing(HOW, _total(fastest), len(runs), tuple(_ops(fastest)))


def _total(run: list[Any]) -> float:
    return max(map(_seconds, run))


def _ops(run: list[Any]) -> Iterator[TimedOp]:
    """Ops in the order of execution, then the overhead of each delegate call and of the runtime."""
    inside: dict[int, list[TimedOp]] = {}
    rest = _total(run)
    for event in run:
        took, at = _seconds(event), event.instruction_id
        if event.delegate_debug_id_str is not None:
            inside.setdefault(at, []).append(TimedOp(event.delegate_debug_id_str, 0, took))
        elif event.name == "DELEGATE_CALL":
            ops = inside.setdefault(at, [])
            ops.append(TimedOp("delegate call overhead", 0, max(0.0, took - sum(p.seconds for p in ops))))
            rest -= took
        elif (event.name or "").startswith(NATIVE):
            yield TimedOp(event.name.removeprefix(NATIVE), 0, took)
            rest -= took
    for number, at in enumerate(sorted(inside), 1):
        yield from (replace(op, place=number) for op in inside[at])
    yield TimedOp("runtime overhead", 0, max(0.0, rest))


def _seconds(event: Any) -> float:
    return float(event.end_time - event.start_time) / 1e9  # host clocks count nanoseconds
