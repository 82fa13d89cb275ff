"""All weights of a program, rounded: those that read the same together, each as it will be when the program runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.core.host_memory import ROWS_PER_CHUNK, evict_pages
from ingot.weight_only.bit_allocation import noise
from ingot.weight_only.gptq import Rounded, gptq, hqq, minmax, nearest
from ingot.weight_only.hessian import Read
from ingot.weight_only.prequantized import recovered
from ingot.weight_only.scheme import Layer, weight_of
from ingot.weight_only.weight_transforms import NONE, Change

TELLING = 256  # rows by which it is judged how much a layer loses


@dataclass(frozen=True, eq=False)
class Rounding:
    """What is known of the layers of a program, by name."""

    module: GraphModule
    changes: Mapping[str, Change]
    read: dict[str, Read]  # until they are rounded
    known: Mapping[str, Rounded]  # somebody rounded these before
    method: str

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {n.name: n for n in self.module.graph.nodes}

    def all(self, layers: Sequence[Layer]) -> dict[str, Rounded]:
        """One weight in one form is rounded once: an embedding has the numbers of a head that it is tied to."""
        keys, first, made = {n.name: self._key(n) for n in layers}, dict[Any, Layer](), dict[Any, Rounded]()
        for layer in sorted(layers, key=lambda n: n.kind, reverse=True):  # linears first: they have read something
            first.setdefault(keys[layer.name], layer)
        groups = sorted(self._together(first.values()), key=lambda g: sum(n.rows for n in g), reverse=True)
        with _side_by_side() as workers:  # the longest first
            for alike, rounded in zip(groups, workers.map(self._rounded, groups), strict=True):
                made |= zip((keys[n.name] for n in alike), rounded, strict=True)
        return {name: made[key] for name, key in keys.items()}

    def _together(self, layers: Iterable[Layer]) -> Iterable[list[Layer]]:
        found = dict[Any, list[Layer]]()
        for layer in layers:
            found.setdefault(self._company(layer), []).append(layer)
        return found.values()

    def _forget(self, layers: Sequence[Layer]) -> None:
        """What they read: of a whole model that is as large as half of it."""
        for layer in layers:
            self.read.pop(layer.name, None)
        evict_pages()

    def _key(self, layer: Layer) -> Any:
        return weight_of(self._nodes[layer.name]).data_ptr(), layer.bits, layer.group, self._change(layer).key

    def _company(self, layer: Layer) -> Any:
        """Alike for those that read the same numbers in the same form; who reads nothing is alone."""
        change = self._change(layer)
        reads = id(self.read.get(layer.name, layer)), id(change.inside), id(change.columns)
        return *reads, layer.bits, layer.group, layer.name in self.known

    def _change(self, layer: Layer) -> Change:
        return self.changes.get(layer.name, NONE)

    def _rounded(self, layers: Sequence[Layer]) -> list[Rounded]:
        """As one: rows do not know of each other."""
        if layers[0].name in self.known:
            self._forget(layers)
            return [self.known[layer.name] for layer in layers]
        moments = self._moments(layers[0])
        parts = [_newly_rounded(rows, layers[0], self.method, moments) for rows in self._rows(layers)]
        codes, scales = torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts])
        many = [layer.rows for layer in layers]
        self._forget(layers)
        both = zip(codes.split(many), scales.split(many), strict=True)
        return [Rounded(c.clone(), s.clone()) for c, s in both]  # a file takes whole storages

    def _moments(self, layer: Layer) -> Tensor | None:
        return self._change(layer).read(self.read[layer.name]).second if layer.name in self.read else None

    def _rows(self, layers: Sequence[Layer]) -> Iterator[Tensor]:
        if sum(layer.rows for layer in layers) <= ROWS_PER_CHUNK:
            yield torch.cat([self._weight(layer) for layer in layers])
            return
        for layer in layers:
            yield from (self._weight(layer, slice(i, i + ROWS_PER_CHUNK)) for i in range(0, layer.rows, ROWS_PER_CHUNK))

    def _weight(self, layer: Layer, some: slice = slice(None)) -> Tensor:
        return self._change(layer).weight(weight_of(self._nodes[layer.name]), some)

    def noises(self, layers: Sequence[Layer]) -> dict[str, float]:
        """The share of each layer's result that will be error; none where it came rounded."""
        found = dict.fromkeys(self.known, 0.0)
        for alike in self._together(n for n in layers if n.name not in self.known):
            moments = self._moments(alike[0])
            found |= {n.name: noise(self._weight(n, _some(n)), n, moments) for n in alike}
            evict_pages()
        return found


@contextmanager
def _side_by_side() -> Iterator[Executor]:
    """Columns are short: threads within an op mostly wait for each other. No more at once, for the memory of each."""
    many = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(max(1, many // 2),)) as workers:
            yield workers
    finally:
        torch.set_num_threads(many)  # BLAS counts for all threads


def _some(layer: Layer) -> slice:
    """Rows that tell how the others are."""
    return slice(None, None, max(1, layer.rows // TELLING))


def _newly_rounded(weight: Tensor, layer: Layer, method: str, moments: Tensor | None) -> Rounded:
    if moments is None:
        return {"minmax": minmax, "hqq": hqq}.get(method, nearest)(weight, layer.bits, layer.group)
    return gptq(weight, layer.bits, layer.group, moments)


def on_grids(module: GraphModule, layers: Sequence[Layer]) -> dict[str, Rounded]:
    """Of the weights that somebody rounded before."""
    nodes = {n.name: n for n in module.graph.nodes}
    found = {layer.name: _on_grid(weight_of(nodes[layer.name]).detach(), layer) for layer in layers}
    return {name: rounded for name, rounded in found.items() if rounded is not None and rounded.codes.any()}


def _on_grid(weight: Tensor, layer: Layer) -> Rounded | None:
    parts = list[Rounded]()
    for rows in weight.split(ROWS_PER_CHUNK):
        if (found := recovered(rows.float(), layer.bits, layer.group)) is None:
            return None
        parts.append(found)
    return Rounded(torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts]))
