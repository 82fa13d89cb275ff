"""Calibration: one float run that records what each value was. No target and no observers in it.

A value is known by the name of its node. What is recorded is enough to plan for any target later.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.node import map_arg

from ingot.casting import whole_file
from ingot.errors import InputError
from ingot.gains import Gains, Tape
from ingot.graph import is_float, output_nodes, value_name
from ingot.histogram import RAW_BINS, Measure, Stats, flat, measure, quantile, sparse

__all__ = ["Ranges", "Stats", "quantile", "record_module"]

FORMAT, VERSION = "ingot.ranges", 2
KEPT, KEPT_BYTES = 64, 1 << 26  # batches
GAIN_BATCHES = 1  # batches that are also run backwards, to learn which errors reach the outputs


@dataclass(frozen=True)
class Ranges:
    """What every value was over the calibration data, and what of it was seen too little."""

    values: Mapping[str, Stats]
    batches: int
    samples: int  # by the first dimension of the first tensor of each batch
    fingerprint: str = ""
    notes: tuple[str, ...] = ()
    steady: Mapping[str, str] = field(default_factory=dict)  # digest of each input that was the same in every batch
    gains: Mapping[str, float | tuple[float, ...]] = field(default_factory=dict)  # by slot: see gains.py
    # The first batches, for values that only a target's rewriting makes, and what was measured so. In memory only.
    kept: tuple[tuple[Any, ...], ...] = field(default=(), repr=False, compare=False)
    again: dict[str, Ranges] = field(default_factory=dict, repr=False, compare=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        fields = ("batches", "samples", "fingerprint", "notes", "steady", "gains")
        rest = {name: getattr(self, name) for name in fields}
        body = {"format": FORMAT, "version": VERSION, **rest, "values": _packed(self.values)}
        with whole_file(path) as f:
            f.write(json.dumps(body, separators=(",", ":")).encode())
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ranges:
        body = _read(Path(path))
        try:
            values = {name: _unpacked(row) for name, row in body["values"].items()}
            rest = {k: body[k] for k in ("batches", "samples", "fingerprint", "steady")}
            gains = {k: tuple(g) if isinstance(g, list) else float(g) for k, g in body["gains"].items()}
            return cls(values, notes=tuple(body["notes"]), gains=gains, **rest)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise _foreign(Path(path), f"a part is missing or of the wrong kind ({e!r})") from e

    def merge(self, other: Ranges) -> Ranges:
        """Both recordings as if they had been one."""
        if self.fingerprint != other.fingerprint:
            why = f"one has fingerprint '{self.fingerprint}', the other '{other.fingerprint}'"
            raise InputError("these ranges are of different programs", why=why, hint="record both on the same program")
        values = {n: _joined(self.values.get(n), other.values.get(n)) for n in {**self.values, **other.values}}
        steady = {n: d for n, d in self.steady.items() if other.steady.get(n) == d}
        gains = _averaged([self.gains, other.gains])
        batches, samples = self.batches + other.batches, self.samples + other.samples
        made = _finished(values, batches, samples, self.fingerprint, steady, gains)
        return replace(made, kept=(*self.kept, *other.kept)[:KEPT])


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
    gains = {**ranges.gains, **more.gains}
    ranges.again[names] = replace(ranges, values=more.values, gains=gains, notes=(*ranges.notes, note))
    return ranges.again[names]


_ONE = np.uint32(1)


@dataclass
class _Tally:
    """The running sum of the measures of one value. 32 bits a bin last for half a million batches."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nonfinite: int = 0
    raw: np.ndarray = field(default_factory=lambda: np.zeros(RAW_BINS, dtype=np.uint32))
    seen: bool = False

    def add(self, m: Measure) -> None:
        self.seen = True
        self.low, self.high = min(self.low, m.low), max(self.high, m.high)
        self.count += m.count
        self.nonfinite += m.nonfinite
        # In place and not through bincount: few of the bins are in use, and only those are touched.
        np.add.at(self.raw, m.bins, _ONE)

    def stats(self) -> Stats:
        low, high = (self.low, self.high) if self.low <= self.high else (0.0, 0.0)
        return Stats(low, high, self.count, self.nonfinite, sparse(self.raw))


class _Recorder:
    """Runs the graph node by node and measures what comes out; a value is freed after its last reader.

    Its own loop, because that of torch.fx.Interpreter costs as much as the measuring.
    """

    def __init__(self, module: torch.fx.GraphModule, known: Mapping[str, Stats]):
        nodes = list(module.graph.nodes)
        self.known = known
        self.inputs = [n.name for n in nodes if n.op == "placeholder"]
        self.outputs = output_nodes(module)
        self.gains: list[Gains] = []
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
        tape = Tape() if self.batches < GAIN_BATCHES else None
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
            self.gains += tape.gains(results, self.batches)

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
        gains = _averaged(self.gains)
        made = _finished({**self.known, **new}, self.batches, self.samples, fingerprint, self.steady, gains)
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


def _joined(a: Stats | None, b: Stats | None) -> Stats:
    return a.merge(b) if a and b else (a or b)  # type: ignore[return-value]


def _averaged(gains: Sequence[Mapping[str, Any]]) -> Gains:
    """By slot, over the probes that have it; rounded, since an estimate has no ten digits to store."""
    found: dict[str, list[Any]] = {}
    for one in gains:
        for slot, gain in one.items():
            found.setdefault(slot, []).append(gain)
    return {slot: _mean(found[slot]) for slot in sorted(found)}


def _mean(gains: list[Any]) -> float | tuple[float, ...]:
    if isinstance(gains[0], tuple):
        return tuple(_mean(list(channel)) for channel in zip(*gains, strict=True))  # type: ignore[misc]
    return float(f"{sum(gains) / len(gains):.4g}")


def _finished(
    values: Mapping[str, Stats],
    batches: int,
    samples: int,
    fingerprint: str,
    steady: Mapping[str, str],
    gains: Gains,
) -> Ranges:
    notes = tuple(_notes(values, batches, samples, steady))
    return Ranges(values, batches, samples, fingerprint, notes, dict(steady), dict(gains))


def _notes(values: Mapping[str, Stats], batches: int, samples: int, steady: Mapping[str, str]) -> Iterable[str]:
    """What was seen too little of, or looked wrong: one sentence a kind."""
    if batches == 1:
        yield f"only one batch was recorded ({samples} by its first dimension): the ranges are those of that batch"
    elif steady:
        yield f"the same in all {batches} batches, so its variety was not seen: {_names(steady)}"
    never = [n for n, s in values.items() if s.count and not s.finite]
    if never:
        yield f"never finite, so it has no range: {_names(never)}"
    partly = [n for n, s in values.items() if s.nonfinite and s.finite]
    if partly:
        yield f"not finite in some elements, which were left out of its range: {_names(partly)}"
    constant = [f"{n} ({s.min:g})" for n, s in values.items() if s.finite > 1 and s.min == s.max]
    if constant:
        yield f"one and the same number at all times: {_names(constant)}"


def _names(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _packed(values: Mapping[str, Stats]) -> dict[str, list[Any]]:
    """One short row a value: min, max, count, nonfinite, keys, counts."""
    return {
        n: [s.min, s.max, s.count, s.nonfinite, list(s.histogram), list(s.histogram.values())]
        for n, s in values.items()
    }


def _unpacked(row: list[Any]) -> Stats:
    low, high, count, nonfinite, keys, counts = row
    return Stats(float(low), float(high), int(count), int(nonfinite), dict(zip(keys, counts, strict=True)))


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise _foreign(path, str(e)) from e
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _foreign(path, "it is JSON of another kind")
    if body.get("version") != VERSION:
        raise _foreign(path, f"it has version {body.get('version')}, this Ingot reads {VERSION}")
    return body


def _foreign(path: Path, why: str) -> InputError:
    return InputError(f"{path} is no file of ranges", why=why, hint="record again and save it with Ranges.save")
