"""Calibration: one float run that records statistics of every value. Independent of targets; no observer modules.

Values are identified by node name. The record suffices to plan for any target.
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

from ingot.calibrate.branches import ALWAYS, is_needed, needs_of
from ingot.calibrate.histogram import RAW_BINS, Observation, Stats, flatten_dense, observe, sparse_histogram
from ingot.calibrate.sensitivity import GradientTape, Sensitivity
from ingot.calibrate.statistics import (
    MAX_CACHED_BATCHES,
    MAX_CACHED_BYTES,
    Ranges,
    batch_bytes,
    build_ranges,
    mean_sensitivity,
)
from ingot.capture.element_origin import joined_groups
from ingot.core.fx import is_float_op, is_state, output_nodes, value_name
from ingot.core.tensor_bytes import raw_bytes
from ingot.errors import InputError

SENSITIVITY_BATCHES = 1  # batches with a backward pass
BATCHES_OF_A_SHARD = 1 << 20  # numbers of batches that are set aside for each shard; more of them repeat samples


def record_module(
    module: torch.fx.GraphModule,
    batches: Iterable[tuple[Any, ...]],
    *,
    fingerprint: str = "",
    on_batch: Callable[[int], None] | None = None,
    known: Ranges | None = None,
    reset: Callable[[], None] | None = None,
    shard: int = 0,
) -> Ranges:
    """Run `module` on every batch, once and in order, and record its floating-point values.

    Values in `known` keep their statistics and are not observed. `reset` is called before each batch. Shards of one
    data set have numbers, so that each samples other elements; the first of them estimates the sensitivity.
    """
    recorder = Recorder(module, known.values if known else {}, shard * BATCHES_OF_A_SHARD)
    for i, batch in enumerate(batches):
        if reset:
            reset()
        recorder.run_batch(i, batch)
        if on_batch:
            on_batch(i)
    return recorder.ranges(fingerprint)


def record_rewritten_values(
    module: torch.fx.GraphModule, ranges: Ranges, restore: Callable[[], None], untaken: frozenset[str] = frozenset()
) -> Ranges:
    """Ranges with the values that a rewrite created, observed on the cached batches. Others keep their statistics.

    `restore` resets the state of the program to its initial values. `untaken`: values that have no statistics, because
    no batch took their branch; a rewrite may have made the choice an arithmetic one.
    """
    nodes = [n for n in module.graph.nodes if is_float_op(n)]
    names = " ".join(f"{value_name(n)}={n.target}{n.args}" for n in nodes)  # another target's may have equal names
    if names in ranges.rewritten:
        return ranges.rewritten[names]
    new = {value_name(n) for n in nodes} - ranges.values.keys() - untaken
    if not new or not ranges.cached_batches:
        return ranges
    restore()
    more = record_module(module, ranges.cached_batches, known=ranges)
    restore()
    batches = len(ranges.cached_batches)
    note = f"{len(new)} values created by rewrites: recorded in a second float run over {batches} batches"
    sensitivity = {**ranges.sensitivity, **more.sensitivity}
    values = {name: stats for name, stats in more.values.items() if name not in untaken}
    ranges.rewritten[names] = replace(ranges, values=values, sensitivity=sensitivity, notes=(*ranges.notes, note))
    return ranges.rewritten[names]


_ONE = np.uint32(1)


@dataclass
class _Accumulator:
    """Sums the observations of one value. 32-bit bin counts suffice for half a million batches."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nonfinite: int = 0
    neginf: int = 0
    raw: np.ndarray = field(default_factory=lambda: np.zeros(RAW_BINS, dtype=np.uint32))
    observed: bool = False

    def add(self, m: Observation) -> None:
        self.observed = True
        self.low, self.high = min(self.low, m.low), max(self.high, m.high)
        self.count += m.count
        self.nonfinite += m.nonfinite
        self.neginf += m.neginf
        # Updates the used bins only; bincount would touch all of them.
        np.add.at(self.raw, m.bins, _ONE)

    def stats(self) -> Stats:
        low, high = (self.low, self.high) if self.low <= self.high else (0.0, 0.0)
        return Stats(low, high, self.count, self.nonfinite, self.neginf, sparse_histogram(self.raw))


class Recorder:
    """Runs the graph node by node and observes every value. A value is freed after its last use.

    torch.fx.Interpreter is not used: its overhead is as large as that of the observation.
    """

    def __init__(self, module: torch.fx.GraphModule, known: Mapping[str, Stats], first: int = 0):
        nodes = list(module.graph.nodes)
        self.known, self.first = known, first  # the number of the first batch
        self.inputs = [n.name for n in nodes if n.op == "placeholder"]
        self.outputs, self.groups = output_nodes(module), _groups(module)
        self.sensitivity: list[Sensitivity] = []
        self.stopped: set[str] = set()
        self.cached_batches: list[tuple[Any, ...]] = []
        self.schedule = _schedule(nodes)
        self.needs = needs_of(nodes)
        self.attributes = {n: _owner(module, n.target) for n in nodes if n.op == "get_attr"}
        self.names = {n: value_name(n) for n in nodes if n.op in _OBSERVED_OPS or is_state(n)}
        self.accumulators = {name: _Accumulator() for name in self.names.values() if name not in known}
        self.constant_inputs: dict[str, str] = {}
        self.batches = self.samples = 0
        self.current_node = ""  # name, for error messages
        self.env: dict[torch.fx.Node, Any] = {}
        # Observations of this batch by node, each with the version counter of its tensor.
        self.observed: dict[torch.fx.Node, tuple[int, Observation]] = {}

    def run_batch(self, index: int, batch: tuple[Any, ...]) -> None:
        self._check(index, batch)
        self._track_constant_inputs(index, batch)
        try:
            with torch.no_grad():
                self._run(batch)
        except Exception as e:
            hint = "use the shapes and dtypes of the example inputs"
            raise InputError(f"batch {index} failed", where=self.current_node, why=str(e), hint=hint) from e
        self._cache(batch)
        self.batches, self.samples = index + 1, self.samples + _samples(batch)

    def _cache(self, batch: tuple[Any, ...]) -> None:
        cached = sum(map(batch_bytes, self.cached_batches))
        if len(self.cached_batches) < MAX_CACHED_BATCHES and cached + batch_bytes(batch) <= MAX_CACHED_BYTES:
            self.cached_batches.append(tuple(t.clone() if isinstance(t, Tensor) else t for t in batch))

    def _run(self, batch: tuple[Any, ...]) -> None:
        self.env, self.observed = {}, {}
        tape = GradientTape(groups=self.groups) if self.first + self.batches < SENSITIVITY_BATCHES else None
        inputs = iter(batch)
        for n, dead in self.schedule:
            self.current_node = n.name
            value = self.env[n] = self._run_node(n, inputs, tape)
            accumulator = self.accumulators.get(self.names.get(n, ""))
            if accumulator is not None and _is_floating(value) and is_needed(self.needs.get(n, ALWAYS), self.env):
                accumulator.add(self._observe(n, value))
            for freed in dead:
                del self.env[freed]
        if tape:
            results = [(n, self.env[n]) for n in self.outputs if isinstance(self.env[n], Tensor)]
            self.sensitivity += tape.sensitivity(results, self.batches)
            self.stopped |= tape.stopped

    def _run_node(self, n: torch.fx.Node, inputs: Iterator[Any], tape: GradientTape | None) -> Any:
        if n.op == "get_attr":
            return getattr(*self.attributes[n])
        if n.op == "placeholder":
            return next(inputs)
        if tape:
            return tape.run(n, self.env)
        args, kwargs = map_arg((n.args, n.kwargs), self.env.__getitem__)
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _observe(self, n: torch.fx.Node, t: Tensor) -> Observation:
        elements = flatten_dense(t)
        version = t._version
        m = self._reuse_view(n, elements, version) or observe(elements, self.first + self.batches)
        self.observed[n] = (version, m)
        return m

    def _reuse_view(self, n: torch.fx.Node, elements: Tensor, version: int) -> Observation | None:
        """The observation of an operand with the same memory and elements: a view does not change them."""
        for source in n.all_input_nodes:
            if source in self.observed and self.observed[source][0] == version:
                before = self.env.get(source)
                if isinstance(before, Tensor) and _same_elements(elements, before):
                    return self.observed[source][1]
        return None

    def _check(self, index: int, batch: tuple[Any, ...]) -> None:
        if not isinstance(batch, (tuple, list)):
            why = f"it is a {type(batch).__name__}, expected a tuple of the program's inputs"
            raise InputError(f"batch {index} is invalid", why=why, hint="yield (x,) instead of x")
        if len(batch) != len(self.inputs):
            why = f"it has {len(batch)} inputs, the program takes {len(self.inputs)}: {', '.join(self.inputs)}"
            raise InputError(f"batch {index} is invalid", why=why, hint="remove labels; pass every input")

    def _track_constant_inputs(self, index: int, batch: tuple[Any, ...]) -> None:
        """Keep the digest of each input that is equal in all batches so far. Inputs that varied are not hashed."""
        for name, value in zip(self.inputs, batch, strict=True):
            if index == 0:
                self.constant_inputs[name] = _digest(value)
            elif name in self.constant_inputs and self.constant_inputs[name] != _digest(value):
                del self.constant_inputs[name]

    def ranges(self, fingerprint: str) -> Ranges:
        if not self.batches:
            hint = "pass at least one batch; a generator can be iterated only once"
            raise InputError("no calibration batches", hint=hint)
        new = {name: accumulator.stats() for name, accumulator in self.accumulators.items() if accumulator.observed}
        values, sensitivity = {**self.known, **new}, mean_sensitivity(self.sensitivity)
        facts = (values, self.batches, self.samples, fingerprint, self.constant_inputs, sensitivity)
        built = build_ranges(*facts, stopped=self.stopped)
        return replace(built, cached_batches=tuple(self.cached_batches))


def _groups(module: torch.fx.GraphModule) -> dict[torch.fx.Node, Tensor]:
    try:
        return joined_groups(module)
    except Exception:  # an op may raise anything when it is run on ids: then each output is one group
        return {}


_OBSERVED_OPS = ("placeholder", "call_function")


def _schedule(nodes: list[torch.fx.Node]) -> list[tuple[torch.fx.Node, list[torch.fx.Node]]]:
    """The nodes to run, each with the values that are dead after it. Returned values are never dead."""
    last = {source: n for n in nodes for source in (*n.all_input_nodes, n)}
    dead: dict[torch.fx.Node, list[torch.fx.Node]] = {n: [] for n in nodes}
    for source, n in last.items():
        dead[n].append(source)
    return [(n, dead[n]) for n in nodes if n.op != "output"]


def _owner(module: torch.nn.Module, target: Any) -> tuple[torch.nn.Module, str]:
    """Module and attribute name of a get_attr target. It is read for each batch: `reset` may replace the attribute."""
    path, _, name = str(target).rpartition(".")
    return module.get_submodule(path), name


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.layout == torch.strided


def _same_elements(a: Tensor, before: Tensor) -> bool:
    # `before` is alive, so equal addresses mean shared memory. flatten_dense() copies tensors that are not dense.
    if a.dtype != before.dtype or a.numel() != before.numel() or a.data_ptr() != before.data_ptr():
        return False
    return flatten_dense(before).data_ptr() == a.data_ptr()


def _samples(batch: tuple[Any, ...]) -> int:
    first = next((t for t in batch if isinstance(t, Tensor)), None)
    return first.shape[0] if first is not None and first.dim() else 1


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    data: Any = raw_bytes(value).numpy()
    return hashlib.blake2b(data, digest_size=16, person=b"ingot").hexdigest() + str(tuple(value.shape))
