"""The ends and the mean square of each channel of some values, from a float run over kept batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node


@dataclass(eq=False)
class ChannelStatistics:
    """By channel."""

    low: Tensor
    high: Tensor
    squares: Tensor  # their sum
    count: int = 0  # elements in each channel

    @classmethod
    def of_no_data(cls, channels: int) -> ChannelStatistics:
        return cls(torch.full((channels,), torch.inf), torch.full((channels,), -torch.inf), torch.zeros(channels))

    @property
    def peak(self) -> Tensor:
        return torch.maximum(-self.low, self.high).clamp_min(0)

    @property
    def power(self) -> Tensor:
        return self.squares / max(self.count, 1)

    def add(self, x: Tensor, axis: int) -> None:
        rows = x.detach().movedim(axis, 0).flatten(1).float()
        self.low = torch.minimum(self.low, rows.amin(1))
        self.high = torch.maximum(self.high, rows.amax(1))
        self.squares += rows.square().sum(1)
        self.count += rows.shape[1]


def record_channels(
    module: GraphModule, batches: Sequence[tuple[Any, ...]], axes: Mapping[Node, int]
) -> dict[Node, ChannelStatistics]:
    """Statistics of these values along these axes."""
    run = _ChannelRecorder(module, axes)
    for batch in batches:
        run.run(*batch)
    return run.found


class _ChannelRecorder(Interpreter):
    def __init__(self, module: GraphModule, axes: Mapping[Node, int]) -> None:
        super().__init__(module)
        self.axes, self.found = axes, dict[Node, ChannelStatistics]()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self.axes and value.numel():
            channels = value.shape[self.axes[n]]
            self.found.setdefault(n, ChannelStatistics.of_no_data(channels)).add(value, self.axes[n])
        return value
