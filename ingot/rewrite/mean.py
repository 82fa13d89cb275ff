"""mean(x, dims, keepdim=False) -> reshape(mean(x, dims, keepdim=True))
mean(mean(x, a), b) -> mean(x, a and b)
mean(x, two of four dims) -> mean(permute(x), [2, 3], keepdim=True), the average pool of backends
mean(x, other dims) -> linear(permute(x), 1/d)
adaptive_avg_pool2d(x, 1) -> mean(x, [2, 3], keepdim=True)

Pooling kernels keep their dimensions. ExecuTorch decomposes adaptive_avg_pool2d of a channels-last value to as_strided.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape
from ingot.rewrite.layer_norm import mean_over_last
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is aten.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1] and value_of(node).dim() == 4:  # type: ignore[arg-type]
        return call(node, aten.mean.dim, node.args[0], [2, 3], True)
    found = _reduction(node)
    if found is None or _is_read_by_a_mean(node):
        return None
    x, dims = _of_the_mean_before(*found)
    if value_of(x).dim() == 4 and len(dims) == 2:
        return _as_global_average(node, x, dims)
    return _as_linear(node, x, dims)


def _reduction(node: Any) -> tuple[Node, list[int]] | None:
    """(x, dims) of a mean in float32 over given dimensions."""
    if not isinstance(node, Node) or node.target not in (aten.mean.dim, aten.mean.default) or node.kwargs:
        return None
    x: Any = node.args[0]
    rank = value_of(x).dim()
    given: Any = node.args[1] if len(node.args) > 1 else None
    dims = sorted(d % rank for d in given) if rank and given else list(range(rank))
    return (x, dims) if rank and value_of(x).dtype == torch.float32 else None


def _is_read_by_a_mean(node: Node) -> bool:
    """And by nothing else: that one takes all dimensions."""
    users = list(node.users)
    return len(users) == 1 and _reduction(users[0]) is not None


def _of_the_mean_before(x: Node, dims: list[int]) -> tuple[Node, list[int]]:
    """mean(3).mean(2) -> mean((2, 3)), if nothing else reads the first."""
    inner = _reduction(x)
    if inner is None or len(x.users) > 1:
        return x, dims
    source, first = inner
    kept = list(range(value_of(source).dim()))
    if value_of(x).dim() < len(kept):
        kept = [d for d in kept if d not in first]
    return _of_the_mean_before(source, sorted({*first, *(kept[d] for d in dims)}))


def _as_global_average(node: Node, x: Node, dims: list[int]) -> Node | None:
    shape, done = value_of(node).shape, node.args[0] is x and dims == [2, 3] and value_of(node).dim() == 4
    to = reshape_argument(shape)
    if done or to is None:
        return None
    kept = call(node, aten.mean.dim, _with_last(node, x, dims), [2, 3], True)
    kept.meta["ingot_value"] = node.name
    return kept if same_shape(value_of(kept).shape, shape) else call(node, aten.reshape.default, kept, to)


def _with_last(node: Node, x: Node, dims: list[int]) -> Node:
    order = [*(d for d in range(value_of(x).dim()) if d not in dims), *dims]
    return x if order == sorted(order) else call(node, aten.permute.default, x, order)


def _as_linear(node: Node, x: Node, dims: list[int]) -> Node | None:
    """As in RMS norm: a linear with constant weights, which backends have."""
    shape, rank = value_of(x).shape, value_of(x).dim()
    if has_symbols(shape[d] for d in dims):
        return None
    kept = [d for d in range(rank) if d not in dims]
    if dims == [rank - 1] and value_of(node).dim() == rank:
        return mean_over_last(node, x, shape[-1])
    to = reshape_argument(value_of(node).shape)
    if to is None or (len(dims) > 1 and has_symbols(shape)):
        return None
    width = math.prod(shape[d] for d in dims)
    turned = _with_last(node, x, dims)
    flat = turned if len(dims) == 1 else call(node, aten.reshape.default, turned, [*(shape[d] for d in kept), width])
    return call(node, aten.reshape.default, mean_over_last(node, flat, width), to)


RULE = Rule("mean-keepdim", _rewrite)
