"""Round all weights of a program: layers with the same input together, each with its float transform applied."""

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
from ingot.weight_only.bit_allocation import expected_noise_ratio
from ingot.weight_only.gptq import round_gptq
from ingot.weight_only.hessian import InputStatistics
from ingot.weight_only.hqq import round_hqq
from ingot.weight_only.prequantized import recover_codes
from ingot.weight_only.round_to_nearest import round_minmax, round_to_nearest
from ingot.weight_only.rounded_weight import RoundedWeight
from ingot.weight_only.scheme import WeightLayer, weight_of
from ingot.weight_only.weight_transforms import NO_TRANSFORM, WeightTransform

NOISE_SAMPLE_ROWS = 256  # rows of a weight from which its noise is estimated
WORKERS = 2  # each holds the Hessian and temporaries of one group of layers


@dataclass(frozen=True, eq=False)
class LayerRounder:
    """Rounds the layers of one program; what is known of them, by name."""

    module: GraphModule
    transforms: Mapping[str, WeightTransform]
    statistics: dict[str, InputStatistics]  # released as layers are rounded
    prequantized: Mapping[str, RoundedWeight]
    method: str

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {n.name: n for n in self.module.graph.nodes}

    def round_all(self, layers: Sequence[WeightLayer]) -> dict[str, RoundedWeight]:
        """A weight in one form is rounded once: an embedding shares the codes of the head that it is tied to."""
        keys = {n.name: self._weight_key(n) for n in layers}
        first, made = dict[Any, WeightLayer](), dict[Any, RoundedWeight]()
        for layer in sorted(layers, key=lambda n: n.kind, reverse=True):  # linears first: they have statistics
            first.setdefault(keys[layer.name], layer)
        groups = sorted(self._grouped_by_input(first.values()), key=lambda g: sum(n.rows for n in g), reverse=True)
        with _worker_pool() as workers:  # the longest first
            for group, rounded in zip(groups, workers.map(self._round_group, groups), strict=True):
                made |= zip((keys[n.name] for n in group), rounded, strict=True)
        return {name: made[key] for name, key in keys.items()}

    def _grouped_by_input(self, layers: Iterable[WeightLayer]) -> Iterable[list[WeightLayer]]:
        found = dict[Any, list[WeightLayer]]()
        for layer in layers:
            found.setdefault(self._input_key(layer), []).append(layer)
        return found.values()

    def _release_statistics(self, layers: Sequence[WeightLayer]) -> None:
        """The statistics of all layers take half as much memory as the model."""
        for layer in layers:
            self.statistics.pop(layer.name, None)
        evict_pages()

    def _weight_key(self, layer: WeightLayer) -> Any:
        return weight_of(self._nodes[layer.name]).data_ptr(), layer.bits, layer.group, self._transform(layer).key

    def _input_key(self, layer: WeightLayer) -> Any:
        """Equal for layers with the same input and form; a layer without statistics is on its own."""
        transform = self._transform(layer)
        reads = id(self.statistics.get(layer.name, layer)), id(transform.input_rotation), id(transform.input_scales)
        return *reads, layer.bits, layer.group, layer.name in self.prequantized

    def _transform(self, layer: WeightLayer) -> WeightTransform:
        return self.transforms.get(layer.name, NO_TRANSFORM)

    def _round_group(self, layers: Sequence[WeightLayer]) -> list[RoundedWeight]:
        """As one matrix, since every method rounds its rows independently."""
        if layers[0].name in self.prequantized:
            self._release_statistics(layers)
            return [self.prequantized[layer.name] for layer in layers]
        hessian = self._hessian(layers[0])
        parts = [_round_weight(rows, layers[0], self.method, hessian) for rows in self._weight_blocks(layers)]
        codes, scales = torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts])
        rows = [layer.rows for layer in layers]
        self._release_statistics(layers)
        both = zip(codes.split(rows), scales.split(rows), strict=True)
        return [RoundedWeight(c.clone(), s.clone()) for c, s in both]  # a view would serialize its whole storage

    def _hessian(self, layer: WeightLayer) -> Tensor | None:
        if layer.name not in self.statistics:
            return None
        return self._transform(layer).statistics(self.statistics[layer.name]).hessian

    def _weight_blocks(self, layers: Sequence[WeightLayer]) -> Iterator[Tensor]:
        if sum(layer.rows for layer in layers) <= ROWS_PER_CHUNK:
            yield torch.cat([self._weight(layer) for layer in layers])
            return
        for layer in layers:
            yield from (self._weight(layer, slice(i, i + ROWS_PER_CHUNK)) for i in range(0, layer.rows, ROWS_PER_CHUNK))

    def _weight(self, layer: WeightLayer, rows: slice = slice(None)) -> Tensor:
        return self._transform(layer).weight(weight_of(self._nodes[layer.name]), rows)

    def noise_ratios(self, layers: Sequence[WeightLayer]) -> dict[str, float]:
        """Expected noise over signal of each layer's result; 0 where the weight is prequantized."""
        found = dict.fromkeys(self.prequantized, 0.0)
        for group in self._grouped_by_input(n for n in layers if n.name not in self.prequantized):
            hessian = self._hessian(group[0])
            found |= {n.name: expected_noise_ratio(self._weight(n, _sample_rows(n)), n, hessian) for n in group}
            evict_pages()
        return found


@contextmanager
def _worker_pool() -> Iterator[Executor]:
    """Threads across groups of layers: columns are too short for threads within an op."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(
            WORKERS, initializer=torch.set_num_threads, initargs=(max(1, threads // WORKERS),)
        ) as workers:
            yield workers
    finally:
        torch.set_num_threads(threads)  # BLAS has one setting for the whole process


def _sample_rows(layer: WeightLayer) -> slice:
    """About NOISE_SAMPLE_ROWS rows, evenly spaced."""
    return slice(None, None, max(1, layer.rows // NOISE_SAMPLE_ROWS))


def _round_weight(weight: Tensor, layer: WeightLayer, method: str, hessian: Tensor | None) -> RoundedWeight:
    if hessian is None:
        return {"minmax": round_minmax, "hqq": round_hqq}.get(method, round_to_nearest)(weight, layer.bits, layer.group)
    return round_gptq(weight, layer.bits, layer.group, hessian)


def recover_prequantized(module: GraphModule, layers: Sequence[WeightLayer]) -> dict[str, RoundedWeight]:
    """The codes of the weights that were quantized before, by layer."""
    nodes = {n.name: n for n in module.graph.nodes}
    found = {layer.name: _recover_layer(weight_of(nodes[layer.name]).detach(), layer) for layer in layers}
    return {name: rounded for name, rounded in found.items() if rounded is not None and rounded.codes.any()}


def _recover_layer(weight: Tensor, layer: WeightLayer) -> RoundedWeight | None:
    parts = list[RoundedWeight]()
    for rows in weight.split(ROWS_PER_CHUNK):
        if (found := recover_codes(rows.float(), layer.bits, layer.group)) is None:
            return None
        parts.append(found)
    return RoundedWeight(torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts]))
