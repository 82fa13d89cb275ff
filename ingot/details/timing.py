"""Where a run spends its time: by the profiler of the ExecuTorch runtime, which delegates report to as well."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from ingot.boundary import encode
from ingot.casting import Casting
from ingot.details.model import Part, Timing
from ingot.errors import IngotError

RUNS = 11  # the first is left out: it still packs weights and warms caches


def timing_of(casting: Casting) -> Timing:
    """Medians over some runs of one batch."""
    evidence = casting.evidence
    if evidence.target.trace is None:
        return Timing(f"not measured: what stands in for {casting.target} here says nothing of its speed")
    batch = evidence.program.example_inputs if evidence.batch is None else evidence.batch
    try:
        trace = evidence.target.trace(casting.pte, encode(batch, evidence.io.inputs), RUNS)
    except IngotError as e:
        return Timing(f"not measured: {e.what}: {e.why}")
    return _read(trace)


def _read(trace: bytes) -> Timing:
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    dump = deserialize_from_etdump_flatcc(trace)
    runs = [[e.profile_event for e in r.events if e.profile_event] for r in dump.run_data if r.name == "Execute"][1:]
    if not runs:
        return Timing("not measured: this build of the ExecuTorch runtime has no event tracer")
    whole = [_seconds(e) for run in runs for e in run if e.name == "Method::execute"]
    how = "ExecuTorch's event tracer, on this machine; the median of each op"
    return Timing(how, median(whole), len(runs), tuple(_parts(runs)))


def _parts(runs: list[list[Any]]) -> Iterator[Part]:
    """Ops in the order of execution, and what is left of each delegate call beside them."""
    seconds: dict[tuple[int, str, bool], list[float]] = {}
    for run in runs:
        for key, took in _of_run(run).items():
            seconds.setdefault(key, []).append(took)
    numbers = {i: n for n, i in enumerate(sorted({i for i, _, inside in seconds if inside}), 1)}
    for (instruction, name, inside), all_ in seconds.items():
        yield Part(name, numbers[instruction] if inside else 0, median(all_))


def _of_run(run: list[Any]) -> dict[tuple[int, str, bool], float]:
    """By instruction, name and whether a delegate reports it. Only what the runtime counts for an op: no nested spans."""
    found: dict[tuple[int, str, bool], float] = {}
    for e in run:
        if e.delegate_debug_id_str is not None:
            key = (e.instruction_id, e.delegate_debug_id_str, True)
        elif e.name == "DELEGATE_CALL":
            key = (e.instruction_id, BESIDE, True)
        elif e.name and e.name.startswith(NATIVE):
            key = (e.instruction_id, e.name.removeprefix(NATIVE), False)
        else:
            continue
        found[key] = found.get(key, 0.0) + _seconds(e)
    return {key: took - _inside(found, key) for key, took in found.items()}


NATIVE, BESIDE = "native_call_", "beside its ops"


def _inside(found: dict[tuple[int, str, bool], float], key: tuple[int, str, bool]) -> float:
    if key[1] != BESIDE:
        return 0.0
    return sum(took for (i, name, inside), took in found.items() if inside and i == key[0] and name != BESIDE)


def _seconds(event: Any) -> float:
    return (event.end_time - event.start_time) / 1e9  # the clock of hosts counts nanoseconds
