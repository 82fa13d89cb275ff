"""Calibration of a program with several sizes: each batch runs in the program of its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce

from torch.fx import GraphModule

from ingot.calibrate.recorder import BATCHES_OF_A_SHARD, Recorder
from ingot.calibrate.statistics import Ranges, Stats, merged_values
from ingot.capture.export import Program
from ingot.capture.inputs import Batch, flat_inputs
from ingot.capture.method_for import MAIN_METHOD, method_for
from ingot.errors import InputError


def record_sizes(
    program: Program, batches: Iterable[Batch], on_batch: Callable[[int], None] | None, shard: int
) -> Ranges:
    """Statistics of the first size, with those of each other one that had a batch."""
    programs, counts = program.methods, dict[str, int]()
    recorders = {n: Recorder(p.module, {}, shard * BATCHES_OF_A_SHARD) for n, p in programs.items()}
    for i, batch in enumerate(batches):
        name = method_for(programs, batch)
        recorders[name].run_batch(counts.get(name, 0), flat_inputs(programs[name], batch))
        counts[name] = counts.get(name, 0) + 1
        if on_batch:
            on_batch(i)
    if not counts:
        raise InputError("no calibration batches", hint="pass at least one; a generator can be iterated only once")
    made = {n: recorders[n].ranges(programs[n].fingerprint) for n in counts}
    main = made.pop(MAIN_METHOD, None) or Ranges({}, 0, 0, program.fingerprint)
    return replace(main, methods=made)


def merged_sizes(known: dict[str, Ranges], graphs: dict[str, GraphModule]) -> dict[str, Ranges]:
    """Where graphs differ in sizes alone, their values have one record, over the batches of all of them.

    Each keeps the cached batches of its own size, which its graph can run.
    """
    shapes = {name: structure(graph) for name, graph in graphs.items()}
    return {name: _merged(name, known, [n for n in known if shapes[n] == shapes[name]]) for name in graphs}


def _merged(name: str, known: dict[str, Ranges], alike: list[str]) -> Ranges:
    own = known.get(name, Ranges({}, 0, 0))
    found = None
    for each in ([own] if own.batches else []) + [known[n] for n in alike if n != name]:
        each = replace(each, fingerprint="", rewritten={}, methods={})
        found = each if found is None else found.merge(each)
    if found is None:
        return own
    return replace(found, fingerprint=own.fingerprint, cached_batches=own.cached_batches, rewritten={})


def with_values_of_alike(
    known: dict[str, Ranges], complete: dict[str, Ranges], graphs: dict[str, GraphModule]
) -> dict[str, Ranges]:
    """`complete` has more values than `known`, each recorded at one size: over all sizes whose graphs are alike."""
    new = {n: {v: s for v, s in r.values.items() if v not in known[n].values} for n, r in complete.items()}
    shapes, made = {name: structure(graph) for name, graph in graphs.items()}, dict[str, Ranges]()
    for name, own in complete.items():
        alike = [n for n in complete if shapes[n] == shapes[name]]
        parts: list[Mapping[str, Stats]] = [new[n] for n in alike]
        values = reduce(merged_values, parts)
        sensitivity = {k: s for n in (*alike, name) for k, s in complete[n].sensitivity.items()}
        made[name] = replace(own, values={**own.values, **values}, sensitivity=sensitivity, rewritten={})
    return made


def structure(graph: GraphModule) -> tuple[tuple[object, ...], ...]:
    """Names and ops and what they read: equal for graphs that differ in sizes and other numbers alone."""
    return tuple((n.name, n.op, str(n.target), tuple(i.name for i in n.all_input_nodes)) for n in graph.graph.nodes)
