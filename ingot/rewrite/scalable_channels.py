"""Which channels of a program may be multiplied by a factor, so that its results stay the same.

The rows of a weight (or the gain of a norm) divide a channel, ops that commute with factors carry it on, and the
columns of the weights that read it multiply it again. Nothing is matched by name: an experiment tells what an op
carries on. Channels that meet in an add have one factor. What no constant can absorb is blocked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.channel_scaling import ScaledResult, scaled_result, varying_dims
from ingot.capture.op_semantics.weighted_ops import groups_of, weight_axis
from ingot.core.fx import constant_of, is_float, value_of


@dataclass(frozen=True, eq=False)
class ConstantFactor:
    """A constant that factors change: multiplied by them (a reader's columns) or divided (power -1)."""

    node: Node
    operand: int
    channels: Tensor  # broadcasts with the constant
    power: int


@dataclass(frozen=True, eq=False)
class Clamped:
    """Values with bounds that do not move with the factors."""

    value: Node
    channels: Tensor
    bounds: tuple[float, ...]


@dataclass(eq=False)
class ScalableChannels:
    """Channel numbers of every value that weights write; channels that must have one factor are joined."""

    values: dict[Node, Tensor] = field(default_factory=dict)
    constants: list[ConstantFactor] = field(default_factory=list)
    writers: dict[Node, Tensor] = field(default_factory=dict)  # op -> the channels of its result, as a vector
    readers: dict[Node, Tensor] = field(default_factory=dict)  # op with a weight -> the channels that it reads
    clamped: list[Clamped] = field(default_factory=list)
    tied: frozenset[Node] = frozenset()  # constants that another node reads too
    parents: list[int] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)

    def new_channels(self, count: int) -> Tensor:
        start = len(self.parents)
        self.parents += range(start, start + count)
        return torch.arange(start, start + count)

    def root(self, channel: int) -> int:
        while self.parents[channel] != channel:
            self.parents[channel] = channel = self.parents[self.parents[channel]]
        return channel

    def join(self, a: Tensor, b: Tensor) -> None:
        for x, y in torch.stack(torch.broadcast_tensors(a, b)).reshape(2, -1).unique(dim=1).T.tolist():
            self.parents[self.root(x)] = self.root(y)

    def block(self, channels: Tensor) -> None:
        self.blocked.update(channels.unique().tolist())

    def roots(self) -> tuple[Tensor, Tensor]:
        """The root of each channel; and for each, whether it may have a factor."""
        found = torch.tensor([self.root(c) for c in range(len(self.parents))], dtype=torch.long)
        free = torch.ones(len(found), dtype=torch.bool)
        free[found[torch.tensor(sorted(self.blocked), dtype=torch.long)]] = False
        return found, free[found]


def scalable_channels(module: GraphModule) -> ScalableChannels:
    found = ScalableChannels(tied=tied_constants(module))
    for node in module.graph.nodes:
        if node.op == "call_function" and is_float(node):
            _pass(node, found)
        elif node.op in ("call_function", "output"):
            _block_operands(node, found)
    return found


def _pass(node: Node, found: ScalableChannels) -> None:
    if weight_axis(node) is not None:
        _weighted(node, found)
    elif any(n in found.values for n in operands(node)):
        if not _carried(node, found):
            _block_operands(node, found)
    else:
        _gain(node, found)


def _block_operands(node: Node, found: ScalableChannels, kept: tuple[Node, ...] = ()) -> None:
    for n in operands(node):
        if n in found.values and n not in kept:
            found.block(found.values[n])


def _weighted(node: Node, found: ScalableChannels) -> None:
    """It reads the channels of its input, and writes new ones."""
    read = operands(node)
    if not has_own_constants(node) or not found.tied.isdisjoint(read):
        return _block_operands(node, found)
    if read[0] in found.values:
        channels = input_channels(node, found.values[read[0]])
        if channels is None:
            found.block(found.values[read[0]])
        else:
            found.readers[node] = channels
            found.constants.append(ConstantFactor(node, 1, by_column(node, channels), 1))
    rows = found.new_channels(output_width(node))
    found.writers[node] = rows
    found.values[node] = rows.reshape([-1 if d == channel_axis(node, node) else 1 for d in range(_rank(node))])
    found.constants.append(ConstantFactor(node, 1, by_row(node, rows), -1))
    if len(read) > 2:
        found.constants.append(ConstantFactor(node, 2, rows, -1))
    return None


def has_own_constants(node: Node) -> bool:
    """Weight and bias are float32 constants, each with one reader."""
    read = operands(node)[1:3]
    tensors = [constant_of(n) for n in read]
    plain = all(t is not None and t.dtype is torch.float32 for t in tensors) and value_of(node).dtype is torch.float32
    return plain and not node.meta.get("ingot_float") and all(len(n.users) == 1 for n in read)


def tied_constants(module: GraphModule) -> frozenset[Node]:
    """Nodes of one tensor, under one name or several. With factors of its own each would be stored apart."""
    tensors = {n: t for n in module.graph.find_nodes(op="get_attr") if (t := constant_of(n)) is not None and t.numel()}
    count = Counter(t.data_ptr() for t in tensors.values())
    return frozenset(n for n, t in tensors.items() if count[t.data_ptr()] > 1)


def input_channels(node: Node, channels: Tensor) -> Tensor | None:
    """Channels of an operand as a vector along the input channels of the op; None where they vary otherwise."""
    axis, shape = channel_axis(node, operands(node)[0]), value_of(operands(node)[0]).shape
    aligned = channels.reshape([1] * (len(shape) - channels.dim()) + list(channels.shape))
    if any(size > 1 for d, size in enumerate(aligned.shape) if d != axis):
        return None
    return aligned.reshape(-1).expand(int(shape[axis])).contiguous()


def input_width(node: Node) -> int:
    """How many channels an op with a weight reads."""
    return int(value_of(operands(node)[0]).shape[channel_axis(node, operands(node)[0])])


def channel_axis(node: Node, value: Node) -> int:
    """Of channels in the input or in the result: after the batch for a convolution, last for a linear."""
    return _rank(value) - _rank(operands(node)[1]) + 1


def _rank(node: Node) -> int:
    return len(value_of(node).shape)


def output_width(node: Node) -> int:
    """How many channels an op with a weight writes."""
    shape = value_of(operands(node)[1]).shape
    return int(shape[0] if weight_axis(node) == 0 else shape[1] * groups_of(node))


def by_column(node: Node, channels: Tensor) -> Tensor:
    """A vector along the input channels, in the shape of the weight: groups of rows read their own columns."""
    return _in_weight(node, channels, transposed=weight_axis(node) == 0)


def by_row(node: Node, channels: Tensor) -> Tensor:
    return _in_weight(node, channels, transposed=weight_axis(node) != 0)


def _in_weight(node: Node, channels: Tensor, *, transposed: bool) -> Tensor:
    """The first dimension of the weight has the channels of all groups, the second those of one."""
    shape, groups = value_of(operands(node)[1]).shape, groups_of(node)
    rest = [1] * (len(shape) - 2)
    if not transposed:
        return channels.reshape(-1, 1, *rest)
    each = channels.reshape(groups, 1, -1)
    each = each if groups == 1 else each.expand(-1, int(shape[0]) // groups, -1)
    return each.reshape(1 if groups == 1 else int(shape[0]), -1, *rest)


def _carried(node: Node, found: ScalableChannels) -> bool:
    """Of operands with channels: all together, or the last one alone; with or without the constants."""
    read = operands(node)
    scaled = [i for i, n in enumerate(read) if n in found.values]
    alone = [[i] for i in reversed(scaled) if read.count(read[i]) == 1] if len(scaled) > 1 else []
    for chosen in (scaled, *alone):
        channels = {i: found.values[read[i]] for i in chosen}
        for constants in ([], _float_constants(node)):
            result = _result(node, channels, constants)
            if result is not None and not (result.bounds and len(varying_dims(channels[chosen[0]])) > 1):
                _take(node, chosen, constants, result, found)
                return True
    return False


def _float_constants(node: Node) -> list[int]:
    return [i for i, n in enumerate(operands(node)) if constant_of(n) is not None and is_float(n)]


def _result(node: Node, channels: dict[int, Tensor], constants: list[int]) -> ScaledResult | None:
    """Constants have the factors of the first operand, where they stand beside it."""
    beside = next(iter(channels.values()))
    return scaled_result(node, {**channels, **dict.fromkeys(constants, beside)}, constant_of)


def _take(node: Node, chosen: list[int], constants: list[int], result: ScaledResult, found: ScalableChannels) -> None:
    read = operands(node)
    _block_operands(node, found, tuple(read[i] for i in chosen))
    first = found.values[read[chosen[0]]]
    if result.joint:
        for i in chosen[1:]:
            found.join(first, found.values[read[i]])
    if result.bounds:
        found.clamped.append(Clamped(read[chosen[0]], first, result.bounds))
    found.constants += [ConstantFactor(node, i, first, -1) for i in constants]
    found.values[node] = result.channels


def _gain(node: Node, found: ScalableChannels) -> None:
    """A product with a constant vector (the gain of a norm) writes channels, as a weight does."""
    vectors = list(_vectors(node))
    if not vectors or value_of(node).dtype is not torch.float32 or not _has_activation(node):
        return
    size = max(constant.numel() for _, constant in vectors)
    start = len(found.parents)
    numbers = torch.arange(start, start + size)
    channels = {i: numbers.reshape([-1 if s > 1 else 1 for s in c.shape]) for i, c in vectors if c.numel() == size}
    result = scaled_result(node, channels, constant_of)
    if result is not None and not result.bounds and result.channels.numel() == size:
        found.new_channels(size)
        found.writers[node], found.values[node] = numbers, result.channels
        found.constants += [ConstantFactor(node, i, c, -1) for i, c in channels.items()]


def _vectors(node: Node) -> Iterator[tuple[int, Tensor]]:
    for i in _float_constants(node):
        constant = constant_of(operands(node)[i])
        if constant is not None and sum(s > 1 for s in constant.shape) == 1:
            yield i, constant


def _has_activation(node: Node) -> bool:
    return any(is_float(n) and constant_of(n) is None for n in operands(node))
