"""Calibration: one float run that records what each value was. No target and no observers in it.

A value is known by the name of its node. What is recorded is enough to plan for any target later.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import map_arg

from ingot.calibrate.histogram import RAW_BINS, Measure, Stats, flat, measure, sparse
from ingot.calibrate.sensitivity import Sensitivity, Tape
from ingot.calibrate.statistics import KEPT, KEPT_BYTES, Ranges, averaged, finished
from ingot.core.fx import is_float, output_nodes, value_name
from ingot.errors import InputError

SENSITIVITY_BATCHES = 1  # batches that are also run backwards, to learn which errors reach the outputs


def record_module(
    module: torch.fx.GraphModule,
    batches: Iterable[tuple[Any, ...]],
    *,
    fingerprint: str = "",
    on_batch: Callable[[int], None] | None = None,
    known: Ranges | None = None,
    reset: Callable[[], None] | None = None,
) -> Ranges:
    """Run `module` on every batch, once and in order, and record its floating values.

    `known` values keep their record and are not measured again. `reset` is called before each batch.
    """
    recorder = _Recorder(module, known.values if known else {})
    for i, batch in enumerate(batches):
        if reset:
            reset()
        recorder.run_batch(i, batch)
        if on_batch:
            on_batch(i)
    return recorder.ranges(fingerprint)


def measured_again(module: torch.fx.GraphModule, ranges: Ranges, restore: Callable[[], None]) -> Ranges:
    """With the values that only rewriting made, measured on the batches that were kept; all others keep their record.

    `restore` puts the state of the program back to where it starts.
    """
    nodes = [n for n in module.graph.nodes if n.op == "call_function" and is_float(n)]
    names = " ".join(map(value_name, nodes))
    if names in ranges.again:
        return ranges.again[names]
    new = {value_name(n) for n in nodes} - ranges.values.keys()
    if not new or not ranges.kept:
        return ranges
    restore()
    more = record_module(module, ranges.kept, known=ranges)
    restore()
    note = f"{len(new)} values that rewriting made were measured in another float run over {len(ranges.kept)} batches"
    gains = {**ranges.sensitivity, **more.sensitivity}
    ranges.again[names] = replace(ranges, values=more.values, sensitivity=gains, notes=(*ranges.notes, note))
    return ranges.again[names]


_ONE = np.uint32(1)


@dataclass
class _Tally:
    """The running sum of the measures of one value. 32 bits a bin last for half a million batches."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nonfinite: int = 0
    neginf: int = 0
    raw: np.ndarray = field(default_factory=lambda: np.zeros(RAW_BINS, dtype=np.uint32))
    seen: bool = False

    def add(self, m: Measure) -> None:
        self.seen = True
        self.low, self.high = min(self.low, m.low), max(self.high, m.high)
        self.count += m.count
        self.nonfinite += m.nonfinite
        self.neginf += m.neginf
        # In place and not through bincount: few of the bins are in use, and only those are touched.
        np.add.at(self.raw, m.bins, _ONE)

    def stats(self) -> Stats:
        low, high = (self.low, self.high) if self.low <= self.high else (0.0, 0.0)
        return Stats(low, high, self.count, self.nonfinite, self.neginf, sparse(self.raw))


class _Recorder:
    """Runs the graph node by node and measures what comes out; a value is freed after its last reader.

    Its own loop, because that of torch.fx.Interpreter costs as much as the measuring.
    """

    def __init__(self, module: torch.fx.GraphModule, known: Mapping[str, Stats]):
        nodes = list(module.graph.nodes)
        self.known = known
        self.inputs = [n.name for n in nodes if n.op == "placeholder"]
        self.outputs = output_nodes(module)
        self.sensitivity: list[Sensitivity] = []
        self.kept: list[tuple[Any, ...]] = []
        self.steps = _steps(nodes)
        self.homes = {n: _home(module, n.target) for n in nodes if n.op == "get_attr"}
        self.names = {n: value_name(n) for n in nodes if n.op in _MEASURED}
        self.tallies = {name: _Tally() for name in self.names.values() if name not in known}
        self.steady: dict[str, str] = {}
        self.batches = self.samples = 0
        self.at = ""  # the node under way
        self.env: dict[torch.fx.Node, Any] = {}
        # What was measured in this batch, by node, with the version of the tensor it was measured at.
        self.measured: dict[torch.fx.Node, tuple[int, Measure]] = {}

    def run_batch(self, index: int, batch: tuple[Any, ...]) -> None:
        self._check(index, batch)
        self._compare(index, batch)
        try:
            with torch.no_grad():
                self._run(batch)
        except Exception as e:
            hint = "give batches of the shapes and dtypes the program was captured with"
            raise InputError(f"batch {index} does not run", where=self.at, why=str(e), hint=hint) from e
        if len(self.kept) < KEPT and sum(map(_bytes, self.kept)) + _bytes(batch) <= KEPT_BYTES:
            self.kept.append(tuple(t.clone() if isinstance(t, Tensor) else t for t in batch))
        self.batches, self.samples = index + 1, self.samples + _samples(batch)

    def _run(self, batch: tuple[Any, ...]) -> None:
        self.env, self.measured = {}, {}
        tape = Tape() if self.batches < SENSITIVITY_BATCHES else None
        inputs = iter(batch)
        for n, dead in self.steps:
            self.at = n.name
            value = self.env[n] = self._value(n, inputs, tape)
            tally = self.tallies.get(self.names.get(n, ""))
            if tally is not None and _is_floating(value):
                tally.add(self._measure(n, value))
            for gone in dead:
                del self.env[gone]
        if tape:
            results = [(n, self.env[n]) for n in self.outputs if _is_floating(self.env[n])]
            self.sensitivity += tape.sensitivity(results, self.batches)

    def _value(self, n: torch.fx.Node, inputs: Iterator[Any], tape: Tape | None) -> Any:
        if n.op == "get_attr":
            return getattr(*self.homes[n])
        if n.op == "placeholder":
            return next(inputs)
        if tape:
            return tape.run(n, self.env)
        args, kwargs = map_arg((n.args, n.kwargs), self.env.__getitem__)
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _measure(self, n: torch.fx.Node, t: Tensor) -> Measure:
        elements = flat(t)
        version = t._version
        m = self._carried(n, elements, version) or measure(elements, self.batches)
        self.measured[n] = (version, m)
        return m

    def _carried(self, n: torch.fx.Node, elements: Tensor, version: int) -> Measure | None:
        """The measure of an input that lies in the very same memory: a view only renames its elements."""
        for source in n.all_input_nodes:
            if source in self.measured and self.measured[source][0] == version:
                before = self.env.get(source)
                if isinstance(before, Tensor) and _same_elements(elements, before):
                    return self.measured[source][1]
        return None

    def _check(self, index: int, batch: tuple[Any, ...]) -> None:
        if not isinstance(batch, (tuple, list)):
            why = f"it is a {type(batch).__name__}, and a batch is a tuple of the program's inputs"
            raise InputError(f"batch {index} does not fit", why=why, hint="yield (x,) instead of x")
        if len(batch) != len(self.inputs):
            why = f"it has {len(batch)} inputs, the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            raise InputError(f"batch {index} does not fit", why=why, hint="leave out labels, keep every input")

    def _compare(self, index: int, batch: tuple[Any, ...]) -> None:
        """Keep the digest of an input for as long as it is the same; once it varied nothing is hashed any more."""
        for name, value in zip(self.inputs, batch, strict=True):
            if index == 0:
                self.steady[name] = _digest(value)
            elif name in self.steady and self.steady[name] != _digest(value):
                del self.steady[name]

    def ranges(self, fingerprint: str) -> Ranges:
        if not self.batches:
            hint = "give calibration at least one batch; a generator that was read before is empty the second time"
            raise InputError("there is nothing to record: no batches came", hint=hint)
        new = {name: tally.stats() for name, tally in self.tallies.items() if tally.seen}
        gains = averaged(self.sensitivity)
        made = finished({**self.known, **new}, self.batches, self.samples, fingerprint, self.steady, gains)
        return replace(made, kept=tuple(self.kept))


_MEASURED = ("placeholder", "call_function")


def _steps(nodes: list[torch.fx.Node]) -> list[tuple[torch.fx.Node, list[torch.fx.Node]]]:
    """The nodes to run, each with the values that nobody reads after it; those returned stay."""
    last = {source: n for n in nodes for source in (*n.all_input_nodes, n)}
    dead: dict[torch.fx.Node, list[torch.fx.Node]] = {n: [] for n in nodes}
    for source, n in last.items():
        dead[n].append(source)
    return [(n, dead[n]) for n in nodes if n.op != "output"]


def _home(module: torch.nn.Module, target: Any) -> tuple[torch.nn.Module, str]:
    """Where an attribute lives. It is read anew for each batch, since a reset may replace it."""
    path, _, name = str(target).rpartition(".")
    return module.get_submodule(path), name


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided


def _same_elements(a: Tensor, before: Tensor) -> bool:
    # `before` is alive, so equal addresses mean shared memory; flat() copied, and moved, what is not dense.
    if a.dtype != before.dtype or a.numel() != before.numel() or a.data_ptr() != before.data_ptr():
        return False
    return flat(before).data_ptr() == a.data_ptr()


def _bytes(batch: tuple[Any, ...]) -> int:
    return sum(t.numel() * t.element_size() for t in batch if isinstance(t, Tensor))


def _samples(batch: tuple[Any, ...]) -> int:
    first = next((t for t in batch if isinstance(t, Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else 1


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    data: Any = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=16, person=b"ingot").hexdigest() + str(tuple(value.shape))
