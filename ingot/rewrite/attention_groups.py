"""Queries of several heads that read the same keys and values: multi-query and grouped-query attention.

Keys repeated for each head, by expand or repeat_interleave, are read before the repetition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of

aten = torch.ops.aten
_REPEATING = (aten.expand.default, aten.reshape.default, aten.repeat.default)


@dataclass(frozen=True)
class SharedKeys:
    """Keys and values of each group, and how many heads of queries read a group."""

    keys: Node
    values: Node
    heads: int


def shared_keys(at: Node, q: Node, k: Node, v: Node) -> SharedKeys | None:
    """None if heads do not fit to groups."""
    lead = list(value_of(q).shape[:-2])
    if not lead or any(has_symbols(value_of(x).shape) for x in (q, k, v)):
        return None
    keys, values = (_unrepeated(at, x) for x in (k, v))
    if value_of(keys).shape[:-2] != value_of(values).shape[:-2]:
        keys, values = k, v
    groups = list(value_of(keys).shape[:-2])
    if groups != list(value_of(values).shape[:-2]) or groups[:-1] != lead[:-1] or lead[-1] % groups[-1]:
        return None
    return SharedKeys(keys, values, lead[-1] // groups[-1])


def _unrepeated(at: Node, x: Node) -> Node:
    """The value before each head got its copy: x[.., h, :, :] is the same for `times` neighbours in h."""
    chain = list[Node]()
    source: Any = x
    while isinstance(source, Node) and source.target in _REPEATING and value_of(source).numel() == value_of(x).numel():
        chain.insert(0, source)
        source = source.args[0]
    *lead, heads, rows, width = value_of(x).shape
    times, rest = divmod(value_of(x).numel(), value_of(source).numel()) if chain else (1, 0)
    if times < 2 or rest or heads % times or not _repeats(chain, source, [math.prod(lead), heads // times, times, -1]):
        return x
    return call(at, aten.reshape.default, source, [*lead, heads // times, rows, width])


def _repeats(chain: list[Node], source: Node, split: list[int]) -> bool:
    """Seen by numbering the elements of the source."""
    numbered = torch.arange(value_of(source).numel()).reshape(tuple(value_of(source).shape))
    moved = numbered
    for node in chain:
        moved = node.target(moved, *node.args[1:])  # type: ignore[operator]
    moved = moved.reshape(split)
    return bool((moved == moved[:, :, :1]).all()) and torch.equal(moved[:, :, 0].reshape(-1), numbered.reshape(-1))


def grouped_attention(node: Node, q: Node, shared: SharedKeys, bias: Node | None, factor: float) -> Node:
    """softmax(q @ k.T) @ v with the heads of a group as rows: the keys are never copied."""
    *lead, rows, width = value_of(q).shape
    batch = math.prod(lead) // shared.heads
    queries = _shaped(node, q, [batch, shared.heads * rows, width])
    keys, values = (_shaped(node, x, [batch, *value_of(x).shape[-2:]]) for x in (shared.keys, shared.values))
    turned = call(node, aten.permute.default, keys, [0, 2, 1])
    scores = call(node, aten.mul.Tensor, call(node, aten.matmul.default, queries, turned), factor)
    flat = list(value_of(scores).shape)
    if bias is not None:
        scores = call(node, aten.add.Tensor, _shaped(node, scores, [*lead, rows, flat[-1]]), bias)
    weights = _shaped(node, call(node, aten.softmax.int, scores, -1), flat)
    return _shaped(node, call(node, aten.matmul.default, weights, values), list(value_of(node).shape))


def _shaped(node: Node, x: Node, shape: list[int]) -> Node:
    return x if list(value_of(x).shape) == shape else call(node, aten.reshape.default, x, shape)
