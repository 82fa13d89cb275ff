"""An ETRecord: with it ExecuTorch's Inspector maps the events of an ETDump to the user's lines."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.core.fx import source_of
from ingot.core.torch_modes import in_neutral_modes
from ingot.errors import ArtefactError
from ingot.lower.edge import MAIN_METHOD, LoweringRecord, record_lowering
from ingot.lower.partition_report import marked_value
from ingot.quantize.integer_io import quantize_inputs
from ingot.result.details.timing import events_by_call
from ingot.verify.check import Evidence

if TYPE_CHECKING:
    from ingot.result.casting import Casting

RUNS, TIMED_RUNS = 2, 11  # the first loads and packs weights


@in_neutral_modes
def etrecord(casting: Casting) -> bytes:
    """Lowers once more, and runs the program under the tracer to learn how its backend names the events."""
    evidence = _evidence(casting)
    made = record_lowering(evidence.program, evidence.quantized, casting.plan, evidence.target)
    if made.pte != casting.pte:
        why = "lowering gives another file than the one that was cast: other versions, or it recovered from a failure"
        raise ArtefactError("no record of this program", why=why, hint="cast again, then write the record")
    _map_delegates(made, _events(casting, evidence, RUNS), evidence)
    return _saved(made.etrecord)


def seconds_by_value(casting: Casting) -> dict[str, float]:
    """By value of the program: the time of its kernels in the fastest of several runs. Empty without a profiler."""
    evidence = _evidence(casting)
    made = record_lowering(evidence.program, evidence.quantized, casting.plan, evidence.target)
    events = _events(casting, evidence, TIMED_RUNS)
    found: dict[str, float] = {}
    values = _values(made.etrecord.edge_dialect_program)
    for instruction, handles in _handles(made, events, evidence).items():
        for name, seconds in events[instruction]:
            value = next((values[h] for h in handles.get(name, ()) if h in values), None)
            if value is not None:
                found[value] = found.get(value, 0.0) + seconds
    return found


def _values(program: Any) -> dict[int, str]:
    """By debug handle: the value of the program that the op computes."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and "debug_handle" in n.meta]
    return {n.meta["debug_handle"]: value for n in nodes if (value := marked_value(n))}


def _evidence(casting: Casting) -> Evidence:
    evidence = casting.needed_evidence
    if casting.others or evidence.program.kv_buffers is not None:
        why = "it is written for programs with one method that keep no KV cache"
        raise ArtefactError("no ETRecord of this program", why=why, hint="ETDumps can be read without one")
    return evidence


Events = Mapping[int, list[tuple[str, float]]]  # by delegate call: names and seconds


def _events(casting: Casting, evidence: Evidence, runs: int) -> Events:
    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    trace = evidence.target.runner.trace(casting.pte, quantize_inputs(batch, evidence.io.inputs), runs)
    return {} if trace is None else events_by_call(trace)


def _handles(made: LoweringRecord, events: Events, evidence: Evidence) -> dict[int, Mapping[str, tuple[int, ...]]]:
    """By delegate call of the target: the debug handles of each of its events."""
    calls = sorted(made.etrecord._delegate_map.get(MAIN_METHOD, {}).items())
    ours = evidence.target.lowering.backend_id
    return {
        at: evidence.target.runner.event_handles(payload, [name for name, _ in events[at]])
        for (at, call), payload in zip(calls, made.payloads, strict=True)
        if at in events and call["name"] == ours and not call["delegate_map"]
    }


def _map_delegates(made: LoweringRecord, events: Events, evidence: Evidence) -> None:
    """Fill in what the backend left empty: its event -> the debug handles of its ops."""
    calls, lines = made.etrecord._delegate_map.get(MAIN_METHOD, {}), _with_lines(made.etrecord.edge_dialect_program)
    for at, found in _handles(made, events, evidence).items():
        calls[at]["delegate_map"] = {name: _useful(handles, lines) for name, handles in found.items()}


def _with_lines(program: Any) -> set[int]:
    """The debug handles of ops that have a line of the user's."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function" and "debug_handle" in n.meta]
    return {n.meta["debug_handle"] for n in nodes if ".py:" in source_of(n)}


def _useful(handles: tuple[int, ...], lines: set[int]) -> list[int]:
    """The op's own handle; where that has no line, also the nearest one that has."""
    if not handles or handles[0] in lines:
        return list(handles[:1])
    nearest = next((h for h in handles if h in lines), None)
    return [handles[0], *([nearest] if nearest is not None else [])]


def _saved(record: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.bin"
        record.save(str(file))
        return file.read_bytes()
