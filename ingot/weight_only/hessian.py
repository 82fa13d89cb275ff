"""How the numbers that a layer reads vary: the mean of x x^T over what it was run on, and the largest of each."""

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
from ingot.weight_only.scheme import Layer

ENOUGH = 4  # SmolLM2 rounded with 417 tokens: KL to float 0.19 with 4 and 5, 0.20 with 1 and 2, 0.21 with 10
WIDTHS = 2  # of rows to look at: more hardly changed how SmolLM2's weights are rounded
STRIP = 256  # rows of a matrix that are computed and kept from the diagonal on: the rest is its mirror image


@dataclass(frozen=True, eq=False)
class Read:
    """What one layer reads: the mean of x x^T in strips, and the largest magnitude of each channel."""

    strips: tuple[Tensor, ...]
    peak: Tensor
    rows: int  # that were looked at
    columns: Tensor | None = None  # by which it is divided since it was recorded
    inside: Tensor | None = None  # and turned

    @property
    def second(self) -> Tensor:
        """The mean of x x^T, as far as can be told; made when asked for, a model's would be as large as the model."""
        whole = self._recorded()
        if self.columns is not None:
            factors = torch.where(self.columns == 0, 0.0, 1 / self.columns)  # nothing is known where it was silenced
            whole.mul_(factors).mul_(factors[:, None])
        return self._doubted(whole if self.inside is None else self.inside @ whole @ self.inside.T)

    def _doubted(self, whole: Tensor) -> Tensor:
        """How loud a channel is shows after a few rows; how two go together hardly does before there are many rows."""
        loud, doubt = whole.diagonal().clone(), len(whole) / (len(whole) + ENOUGH * self.rows)
        whole.mul_(1 - doubt).diagonal().copy_(loud)
        return whole

    def _recorded(self) -> Tensor:
        whole = torch.empty(len(self.peak), len(self.peak))
        for here, strip in zip(_strips(len(self.peak)), self.strips, strict=True):
            whole[here, here.start :] = strip
            whole[here.start :, here] = strip.T
        return whole

    def changed(self, columns: Tensor | None, inside: Tensor | None) -> Read:
        """Of inside @ (x / columns)."""
        return replace(self, columns=columns, inside=inside)


def _strips(width: int) -> list[slice]:
    return [slice(start, min(start + STRIP, width)) for start in range(0, width, STRIP)]


@dataclass
class Moments:
    """Sums by name, how many rows went into each, and the largest among them."""

    sums: dict[str, list[Tensor]] = field(default_factory=dict)
    peaks: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)  # layers that read what another reads, looked at once
    last: tuple[str, Any] = ("", None)
    reads: dict[str, Read] = field(default_factory=dict)  # what has been asked for

    def see(self, name: str, x: Tensor) -> None:
        if x is self.last[1] and self.last[0] != name:
            self.same[name] = self.last[0]
            return
        self.last = (name, x)
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self._add(name, rows)
        self.counts[name] = self.counts.get(name, 0) + len(rows)
        peak = rows.abs().amax(0)
        self.peaks[name] = torch.maximum(self.peaks.get(name, peak), peak)

    def _add(self, name: str, rows: Tensor) -> None:
        places = _strips(rows.shape[1])
        if name not in self.sums:
            self.sums[name] = [torch.zeros(p.stop - p.start, rows.shape[1] - p.start) for p in places]
        for here, strip in zip(places, self.sums[name], strict=True):
            strip.addmm_(rows[:, here].T, rows[:, here.start :])

    def of(self, name: str) -> Read | None:
        """The same object for all that read the same."""
        name = self.same.get(name, name)
        if name in self.sums:
            strips = tuple(strip.div_(self.counts[name]) for strip in self.sums.pop(name))
            self.reads[name] = Read(strips, self.peaks[name], self.counts[name])
        return self.reads.get(name)


@contextmanager
def watching(model: nn.Module) -> Iterator[Moments]:
    """Of every linear of a model, by its path, while it is run in eager torch."""
    found = Moments()
    linears = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.Linear)]
    hooks = [m.register_forward_pre_hook(partial(_see, found, path)) for path, m in linears]
    try:
        with torch.no_grad():
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def _see(found: Moments, path: str, _: nn.Module, given: tuple[Any, ...]) -> None:
    found.see(path, given[0])


def by_layer(module: GraphModule, layers: Iterable[Layer], seen: Moments) -> dict[str, Read]:
    """Moments of a model's modules for the layers of its program."""
    paths = {n.name: module_path(n) for n in module.graph.nodes}
    found = {layer.name: seen.of(paths[layer.name]) for layer in layers if layer.kind == "linear"}
    seen.reads.clear()  # who asked has them, and may let go of them
    return {name: m for name, m in found.items() if m is not None}


def moments_of(module: GraphModule, layers: Iterable[Layer], batches: Iterable[tuple[Any, ...]]) -> dict[str, Read]:
    """By running the program itself; what several layers read is looked at once."""
    wanted = {layer.name for layer in layers if layer.kind == "linear"}
    watch = _Watch(module, {n: str(n.args[0]) for n in module.graph.nodes if n.name in wanted})
    with torch.no_grad():
        for batch in batches:
            watch.run(*batch)
    found = {node.name: watch.seen.of(read) for node, read in watch.reads.items()}
    return {name: m for name, m in found.items() if m is not None}


class _Watch(Interpreter):
    def __init__(self, module: GraphModule, reads: dict[Node, str]) -> None:
        super().__init__(module)
        self.reads, self.seen = reads, Moments()
        self.first = {read: node for node, read in reversed(list(reads.items()))}

    def run_node(self, n: Node) -> Any:
        if n in self.reads and self.first[self.reads[n]] is n:
            self.seen.see(self.reads[n], self.fetch_args_kwargs_from_env(n)[0][0])
        return super().run_node(n)
