"""Second moments of what weights are multiplied with: x xᵀ over tokens, or over windows of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import argument_of, groups_of, is_convolution
from ingot.core.fx import is_call, value_of

MAX_ROWS = 1 << 13  # of one batch that are used: more windows of one image say little more


@dataclass(eq=False)
class SecondMoments:
    """By group of a convolution: groups x width x width, the sum over rows."""

    total: Tensor
    rows: int = 0

    @property
    def mean(self) -> Tensor:
        return self.total / max(self.rows, 1)


def has_rows(node: Node) -> bool:
    """What its weight is multiplied with can be written as rows: of a linear, or a convolution with plain padding."""
    if is_call(node, "linear"):
        return True
    return is_convolution(node) and value_of(operands(node)[1]).dim() in (3, 4) and _pads_by_numbers(node)


def _pads_by_numbers(node: Node) -> bool:
    return not isinstance(argument_of(node, "padding"), str)


def record_second_moments(
    module: GraphModule, batches: Sequence[tuple[Any, ...]], nodes: Sequence[Node]
) -> dict[Node, SecondMoments]:
    run = _MomentRecorder(module, nodes)
    for batch in batches:
        run.run(*batch)
    return run.found


class _MomentRecorder(Interpreter):
    def __init__(self, module: GraphModule, nodes: Sequence[Node]) -> None:
        super().__init__(module)
        self.rows_of: dict[Node, Callable[[Tensor], Tensor]] = {n: _rows_of(n) for n in nodes}
        self.found: dict[Node, SecondMoments] = {}

    def run_node(self, n: Node) -> Any:
        if n in self.rows_of:
            self._add(n, self.rows_of[n](self.env[operands(n)[0]].detach().float()))
        return super().run_node(n)

    def _add(self, n: Node, rows: Tensor) -> None:
        rows = rows[:, :: -(-rows.shape[1] // MAX_ROWS)]
        moment = rows.transpose(1, 2) @ rows
        found = self.found.setdefault(n, SecondMoments(torch.zeros_like(moment)))
        found.total += moment
        found.rows += rows.shape[1]


def _rows_of(node: Node) -> Callable[[Tensor], Tensor]:
    """x -> groups x rows x width."""
    if is_call(node, "linear"):
        return lambda x: x.reshape(1, -1, x.shape[-1])
    kernel, groups = value_of(operands(node)[1]).shape[2:], groups_of(node)
    settings = {name: _pair(argument_of(node, name)) for name in ("stride", "padding", "dilation")}

    def windows(x: Tensor) -> Tensor:
        image = x if len(kernel) == 2 else x[..., None, :]
        found = F.unfold(image, tuple(kernel) if len(kernel) == 2 else (1, kernel[0]), **_plane(settings, len(kernel)))
        return found.unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)

    return windows


def _pair(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (int(value),)


def _plane(settings: dict[str, tuple[int, ...]], dims: int) -> dict[str, tuple[int, int]]:
    """Of a signal: an image of height one."""
    alone = {"stride": 1, "padding": 0, "dilation": 1}
    full = {name: value * dims if len(value) == 1 else value for name, value in settings.items()}
    return {name: v if dims == 2 else (alone[name], v[0]) for name, v in full.items()}  # type: ignore[misc]
