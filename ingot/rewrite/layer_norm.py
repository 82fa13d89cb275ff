"""layer_norm(x, [d], w, b) -> c = x - linear(x, 1/d); c * rsqrt(linear(c * c, 1/d, eps)) * w + b

Over several dimensions: the same with these reshaped to one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, same_constant, value_of
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of a norm: its statistics need float"


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.layer_norm.default:
        return None
    x, sizes, weight, bias, eps = _arguments(node)
    if len(sizes) == 1:
        return _normalized(node, x, sizes[0], weight, bias, eps)
    shape, width = list(value_of(x).shape), math.prod(sizes)
    if has_symbols(shape) or not all(w is None or constant_of(w) is not None for w in (weight, bias)):
        return None
    flat = call(node, aten.reshape.default, x, [*shape[: -len(sizes)], width])
    made = _normalized(node, flat, width, _flat_constant(node, weight), _flat_constant(node, bias), eps)
    return call(node, aten.reshape.default, made, shape)


def _flat_constant(node: Node, given: Any) -> Node | None:
    values = None if given is None else constant_of(given)
    return None if values is None else add_constant(_module(node), values.reshape(-1), f"{given.name}_flat", node)


def _normalized(node: Node, x: Node, width: int, weight: Any, bias: Any, eps: float) -> Node:
    centred = in_float(node, REASON, aten.sub.Tensor, x, mean_over_last(node, x, width))
    square = in_float(node, REASON, aten.mul.Tensor, centred, centred)
    variance = mean_over_last(node, square, width, eps)
    out = in_float(node, REASON, aten.mul.Tensor, centred, in_float(node, REASON, aten.rsqrt.default, variance))
    out = out if weight is None else in_float(node, REASON, aten.mul.Tensor, out, weight)
    return out if bias is None else in_float(node, REASON, aten.add.Tensor, out, bias)


def _arguments(node: Node) -> tuple[Any, Any, Any, Any, Any]:
    defaults = (None, None, None, None, 1e-5)
    given = (*node.args[:5], *defaults[len(node.args[:5]) :])
    return given  # type: ignore[return-value]


def mean_over_last(node: Node, x: Node, width: int, eps: float = 0.0) -> Node:
    """The mean over the last dimension as a linear with constant weights: backends lack this mean."""
    dtype, module = value_of(x).dtype, _module(node)
    shares = same_constant(module, torch.full((1, width), 1.0 / width, dtype=dtype), f"mean_of_{width}", node)
    bias = [same_constant(module, torch.tensor([eps], dtype=dtype), f"number_{eps:g}", node)] if eps else []
    return in_float(node, REASON, aten.linear.default, x, shares, *bias)


def _module(node: Node) -> Any:
    return node.graph.owning_module


RULE = Rule("layer-norm-as-matmul", _rewrite)
