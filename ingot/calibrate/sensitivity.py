"""How much of a small error reaches the outputs: measured backwards through the recorded run, for every slot.

Errors of mean square e at the elements of a slot add about gain * e to the noise-to-signal ratio of the outputs. The
gain is the squared norm of the Jacobian from the slot to the outputs, each output scaled to length one, estimated by
pulling random signs back through it (Hutchinson). One backward pass serves all slots. A weight has one gain for each
output channel, since each will have a scale of its own.

It is a first-order estimate with errors taken as independent: within 3 dB on most nets that were measured, too hopeful
by more where a net is so steep that int8 errors are no longer small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import value_name

PROBES = 2  # backward passes a batch: gains are wanted to a factor of two, not to a percent


Sensitivity = dict[str, "float | tuple[float, ...]"]  # by slot


def key(reader: str, value: str, operand: int) -> str:
    """The name of a gain at a use: what `reader` takes as its operand number `operand`."""
    return f"{reader}[{operand}]<{value}"


@dataclass
class Tape:
    """Runs ops as given, and keeps for each how to go back from its result to each of its operands."""

    steps: list[tuple[Node, list[tuple[int, Node, Tensor]], Tensor]] = field(default_factory=list)
    room: int = 2 << 30  # bytes of activations that may be kept for the way back

    def run(self, node: Node, env: dict[Node, Any]) -> Any:
        """What node computes; its float operands are leaves of their own, so that uses are told apart."""
        leaves: list[tuple[int, Node, Tensor]] = []
        try:
            with torch.enable_grad():
                args, kwargs = map_arg((node.args, node.kwargs), _leaf_maker(env, leaves))
                out = node.target(*args, **kwargs)  # type: ignore[operator]
        except RuntimeError:  # an op that writes into its operand, or has no derivative: no gain goes through it
            args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(out, Tensor) and out.requires_grad:
            self._keep(node, leaves, out)
            return out.detach()
        return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, out)

    def _keep(self, node: Node, leaves: list[tuple[int, Node, Tensor]], out: Tensor) -> None:
        self.room -= out.numel() * out.element_size()
        if self.room > 0:
            self.steps.append((node, leaves, out))
        else:
            self.steps.clear()

    def sensitivity(self, outputs: Sequence[tuple[Node, Tensor]], turn: int) -> list[Sensitivity]:
        """For each probe the squared length of what arrives at each slot; none where the batch was too big to keep."""
        if self.room <= 0:
            return []
        generators = (torch.Generator().manual_seed(1000 * turn + probe) for probe in range(PROBES))
        return [self._back(outputs, g) for g in generators]

    def _back(self, outputs: Sequence[tuple[Node, Tensor]], generator: torch.Generator) -> Sensitivity:
        found: Sensitivity = {}
        arrived = _seeds(outputs, generator)
        for node, leaves, out in reversed(self.steps):
            if node not in arrived:
                continue
            back = arrived.pop(node)
            found[value_name(node)] = _square(back)
            pulled = _pulled(out, [x for _, _, x in leaves], back)
            for (i, source, _), g in zip(leaves, pulled, strict=True):
                if g is not None and math.isfinite(gain := _square(g)):
                    found[key(value_name(node), value_name(source), i)] = (
                        _by_channel(node, g) if _is_weight(node, i) else gain
                    )
                    arrived[source] = arrived[source] + g if source in arrived else g
        return {**found, **{value_name(n): _square(g) for n, g in arrived.items()}}


def _pulled(out: Tensor, leaves: list[Tensor], back: Tensor) -> Sequence[Tensor | None]:
    try:
        return torch.autograd.grad(out, leaves, back, retain_graph=True, allow_unused=True)
    except RuntimeError:  # state that the program overwrote is gone: what depends on it has no gain
        return [None] * len(leaves)


def _leaf_maker(env: dict[Node, Any], leaves: list[tuple[int, Node, Tensor]]) -> Callable[[Node], Any]:
    count = iter(range(1 << 30))

    def leaf(source: Node) -> Any:
        value, i = env[source], next(count)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        own = value.detach().requires_grad_()
        leaves.append((i, source, own))
        return own

    return leaf


def _seeds(outputs: Sequence[tuple[Node, Tensor]], generator: torch.Generator) -> dict[Node, Tensor]:
    """Random signs, scaled so that every output weighs the same; infinite elements (a mask) weigh nothing."""
    seeds: dict[Node, Tensor] = {}
    for node, y in outputs:
        y = torch.nan_to_num(y.detach(), posinf=0.0, neginf=0.0)
        length = float(y.double().norm())
        if length > 0:
            signs = torch.randint(0, 2, y.shape, generator=generator).to(y.dtype) * 2 - 1
            seeds[node] = seeds.get(node, 0) + signs / length
    return seeds


def _is_weight(node: Node, operand: int) -> bool:
    return operand == 1 and weight_axis(node) is not None


def _by_channel(node: Node, g: Tensor) -> tuple[float, ...]:
    return tuple(g.transpose(0, weight_axis(node) or 0).flatten(1).square().sum(1).tolist())


def _square(t: Tensor) -> float:
    return float(torch.linalg.vector_norm(t)) ** 2
