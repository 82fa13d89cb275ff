"""Where a run spends its time: by the profiler of the ExecuTorch runtime, which delegates report to as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ingot.errors import IngotError
from ingot.quantize.io import quantize_inputs
from ingot.result.casting import Casting
from ingot.result.details.model import Part, Timing

RUNS = 11  # the first is left out: it still packs weights and warms caches
HOW, NATIVE = "the quickest run under ExecuTorch's event tracer, on the machine of the cast", "native_call_"


def timing_of(casting: Casting) -> Timing:
    """The quickest of some runs of one batch: what disturbs a run only makes it longer."""
    evidence = casting.evidence
    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    try:
        trace = evidence.target.runner.trace(casting.pte, quantize_inputs(batch, evidence.io.inputs), RUNS)
    except IngotError as e:
        return Timing(f"not measured: {e.what}: {e.why}")
    if trace is None:
        return Timing(f"not measured: {casting.target} was verified on an emulator or a reference model")
    try:
        return _read(trace)
    except Exception as e:  # a trace of another version; the casting is good, and is told of without this
        return Timing(f"not measured: the trace cannot be read: {type(e).__name__}: {e}")


def _read(trace: bytes) -> Timing:
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    dump = deserialize_from_etdump_flatcc(trace)
    runs = [[e.profile_event for e in r.events if e.profile_event] for r in dump.run_data if r.name == "Execute"][1:]
    if not runs:
        return Timing("not measured: this build of the ExecuTorch runtime has no event tracer")
    quickest = min(runs, key=_whole)
    return Timing(HOW, _whole(quickest), len(runs), tuple(_parts(quickest)))


def _whole(run: list[Any]) -> float:
    return max(map(_seconds, run))


def _parts(run: list[Any]) -> Iterator[Part]:
    """Ops in the order of execution, what is left of each delegate call beside them, and what is left of the run."""
    inside: dict[int, list[Part]] = {}
    left = _whole(run)
    for event in run:
        took, at = _seconds(event), event.instruction_id
        if event.delegate_debug_id_str is not None:
            inside.setdefault(at, []).append(Part(event.delegate_debug_id_str, 0, took))
        elif event.name == "DELEGATE_CALL":
            ops = inside.setdefault(at, [])
            ops.append(Part("beside its ops", 0, max(0.0, took - sum(p.seconds for p in ops))))
            left -= took
        elif (event.name or "").startswith(NATIVE):
            yield Part(event.name.removeprefix(NATIVE), 0, took)
            left -= took
    for number, at in enumerate(sorted(inside), 1):
        yield from (replace(part, place=number) for part in inside[at])
    yield Part("the runtime itself", 0, max(0.0, left))


def _seconds(event: Any) -> float:
    return float(event.end_time - event.start_time) / 1e9  # the clock of hosts counts nanoseconds
