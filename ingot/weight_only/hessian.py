"""Calibration statistics of the inputs of linears: the Hessian (mean of x xᵀ) and the peak of each channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from ingot.core.fx import module_path
from ingot.plan.weight_rounding import shrunk
from ingot.weight_only.scheme import WeightLayer

ROWS_PER_CHANNEL = 2  # calibration rows per input channel: more hardly changed the rounding of SmolLM2
STRIP = 256  # rows of the symmetric matrix in one strip; only the part from the diagonal on is computed and stored


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """Inputs of one layer: the mean of x xᵀ in strips, and the largest magnitude of each channel."""

    strips: tuple[Tensor, ...]
    peak: Tensor
    rows: int  # that were recorded
    input_scales: Tensor | None = None  # the layer reads x / input_scales instead of x
    input_rotation: Tensor | None = None  # and rotates that

    @property
    def hessian(self) -> Tensor:
        """The mean of x xᵀ, shrunk; computed on access, since those of a whole model are as large as the model."""
        whole = self._assembled()
        if self.input_scales is not None:
            factors = torch.where(self.input_scales == 0, 0.0, 1 / self.input_scales)  # a zero scale: no statistics
            whole.mul_(factors).mul_(factors[:, None])
        rotation = self.input_rotation
        return shrunk(whole if rotation is None else rotation @ whole @ rotation.T, self.rows)

    def _assembled(self) -> Tensor:
        whole = torch.empty(len(self.peak), len(self.peak))
        for here, strip in zip(_strips(len(self.peak)), self.strips, strict=True):
            whole[here, here.start :] = strip
            whole[here.start :, here] = strip.T
        return whole

    def transformed(self, input_scales: Tensor | None, input_rotation: Tensor | None) -> InputStatistics:
        """The statistics of input_rotation @ (x / input_scales)."""
        return replace(self, input_scales=input_scales, input_rotation=input_rotation)


def _strips(width: int) -> list[slice]:
    return [slice(start, min(start + STRIP, width)) for start in range(0, width, STRIP)]


@dataclass
class HessianRecorder:
    """Running sums of x xᵀ, row counts and channel peaks, by name."""

    sums: dict[str, list[Tensor]] = field(default_factory=dict)
    peaks: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # layers with the same input tensor: recorded once
    last: tuple[str, Any] = ("", None)
    finished: dict[str, InputStatistics] = field(default_factory=dict)

    def record(self, name: str, x: Tensor) -> None:
        if x is self.last[1] and self.last[0] != name:
            self.aliases[name] = self.last[0]
            return
        self.last = (name, x)
        if not x.numel():
            return
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self._add(name, rows)
        self.counts[name] = self.counts.get(name, 0) + len(rows)
        peak = rows.abs().amax(0)
        self.peaks[name] = torch.maximum(self.peaks.get(name, peak), peak)

    def _add(self, name: str, rows: Tensor) -> None:
        strips = _strips(rows.shape[1])
        if name not in self.sums:
            self.sums[name] = [torch.zeros(p.stop - p.start, rows.shape[1] - p.start) for p in strips]
        for here, strip in zip(strips, self.sums[name], strict=True):
            strip.addmm_(rows[:, here].T, rows[:, here.start :])

    def statistics_of(self, name: str) -> InputStatistics | None:
        """One object for all layers that read the same tensor."""
        name = self.aliases.get(name, name)
        if name in self.sums:
            strips = tuple(strip.div_(self.counts[name]) for strip in self.sums.pop(name))
            self.finished[name] = InputStatistics(strips, self.peaks[name], self.counts[name])
        return self.finished.get(name)


@contextmanager
def record_linear_inputs(model: nn.Module) -> Iterator[HessianRecorder]:
    """Record the inputs of every module with a weight matrix, by module path, while the model runs in eager torch."""
    recorder = HessianRecorder()
    linears = [(path, m) for path, m in model.named_modules() if _has_matrix(m)]
    hooks = [m.register_forward_pre_hook(partial(_record_first, recorder, path)) for path, m in linears]
    try:
        with torch.no_grad():
            yield recorder
    finally:
        for hook in hooks:
            hook.remove()


def _has_matrix(module: nn.Module) -> bool:
    """A linear, also one that stores its weight transposed, as GPT-2 does."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2 and not isinstance(module, nn.Embedding)


def _record_first(recorder: HessianRecorder, path: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
    recorder.record(path, inputs[0])


def statistics_by_layer(
    module: GraphModule, layers: Iterable[WeightLayer], recorder: HessianRecorder
) -> dict[str, InputStatistics]:
    """What was recorded of a model's modules, by the layers of its exported program."""
    paths = {n.name: module_path(n) for n in module.graph.nodes}
    widths = {layer.name: layer.width for layer in layers if layer.kind == "linear"}
    found = {name: recorder.statistics_of(paths[name]) for name in widths}
    recorder.finished.clear()  # the caller owns them now, and can free them one by one
    return {name: s for name, s in found.items() if s is not None and len(s.peak) == widths[name]}


def record_program_inputs(
    module: GraphModule, layers: Iterable[WeightLayer], batches: Iterable[tuple[Any, ...]]
) -> dict[str, InputStatistics]:
    """Record by running the exported program; an input that several layers share is recorded once."""
    wanted = {layer.name for layer in layers if layer.kind == "linear"}
    run = _RecordingInterpreter(module, {n: str(n.args[0]) for n in module.graph.nodes if n.name in wanted})
    with torch.no_grad():
        for batch in batches:
            run.run(*batch)
    found = {node.name: run.recorder.statistics_of(read) for node, read in run.reads.items()}
    return {name: s for name, s in found.items() if s is not None}


class _RecordingInterpreter(Interpreter):
    def __init__(self, module: GraphModule, reads: dict[Node, str]) -> None:
        super().__init__(module)
        self.reads, self.recorder = reads, HessianRecorder()
        self.first = {read: node for node, read in reversed(list(reads.items()))}

    def run_node(self, n: Node) -> Any:
        if n in self.reads and self.first[self.reads[n]] is n:
            self.recorder.record(self.reads[n], self.fetch_args_kwargs_from_env(n)[0][0])
        return super().run_node(n)
