"""scaled_dot_product_attention(q, k, v, mask) -> softmax(q * scale @ k.T + mask) @ v

A mask of booleans made at run time becomes (float(mask) - 1) * 1e9, one of floats max(mask, -1e9), once for all layers
that read it; rows with every key masked are zero in eager, so the result is multiplied by float(any key is not masked).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ingot.graph import add_constant, call, constant_of, has_symbols, value_of
from ingot.legalize.rule import Rule

aten = torch.ops.aten
NEVER = -1e9  # exp of it is zero in float32, and unlike -inf it survives a subtraction


def rewrite(node: Node) -> Node | None:
    """The backend's own decomposition guards against rows with every key masked, which splits the program."""
    if node.target is not aten.scaled_dot_product_attention.default or has_symbols(value_of(node).shape):
        return None
    q, k, v, mask, dropout, causal, scale, grouped = _arguments(node)
    if dropout or grouped or value_of(q).shape[:-2] != value_of(k).shape[:-2]:
        return None
    bias = _bias(node, mask, causal)
    if mask is not None and bias is None:
        return None
    rank = value_of(k).dim()
    keys = call(node, aten.permute.default, k, [*range(rank - 2), rank - 1, rank - 2])
    factor = 1 / math.sqrt(value_of(q).shape[-1]) if scale is None else scale
    scores = call(node, aten.mul.Tensor, call(node, aten.matmul.default, q, keys), factor)
    scores = scores if bias is None else call(node, aten.add.Tensor, scores, bias)
    out = call(node, aten.matmul.default, call(node, aten.softmax.int, scores, -1), v)
    seen = _some_key(node, mask)
    return out if seen is None else call(node, aten.mul.Tensor, out, seen)


def _arguments(node: Node) -> tuple[Any, ...]:
    defaults = (None, None, None, None, 0.0, False, None, False)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = (*node.args, *defaults[len(node.args) :])
    return tuple(node.kwargs.get(n, g) for n, g in zip(names, given, strict=True))


def _bias(node: Node, mask: Any, causal: bool) -> Any:
    """What is added to the scores: a constant for a causal or constant mask, the mask itself if it is float."""
    if causal:
        queries, keys = value_of(node.args[0]).shape[-2], value_of(node.args[1]).shape[-2]  # type: ignore[arg-type]
        return _constant(node, torch.ones(queries, keys, dtype=torch.bool).tril())
    constant = constant_of(mask) if mask is not None else None
    if constant is not None and constant.dtype == torch.bool:
        return _constant(node, constant) if bool(constant.any(-1).all()) else None
    if constant is not None:
        return _finite(node, constant) if bool((constant > NEVER).any(-1).all()) else None
    if mask is None:
        return None
    if value_of(mask).dtype == torch.bool:
        return _once(mask, "ingot_bias", lambda at: _from_booleans(at, mask, value_of(node).dtype))
    return _once(mask, "ingot_bias", lambda at: call(at, aten.clamp.default, mask, NEVER))


def _from_booleans(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    allowed = _as_float(at, mask, dtype)
    return call(at, aten.mul.Tensor, call(at, aten.sub.Tensor, allowed, 1.0), -NEVER)


def _some_key(node: Node, mask: Any) -> Node | None:
    """1.0 for rows with a key to attend to, 0.0 for the others; only a mask made at run time needs it."""
    if mask is None or constant_of(mask) is not None:
        return None
    return _once(mask, "ingot_some", lambda at: _seen(at, mask, value_of(node).dtype))


def _seen(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    allowed = mask if value_of(mask).dtype == torch.bool else call(at, aten.gt.Scalar, mask, NEVER)
    return _as_float(at, call(at, aten.any.dim, allowed, -1, True), dtype)


def _as_float(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    return call(at, aten.to.dtype, mask, dtype)


def _once(mask: Node, key: str, make: Callable[[Node], Node]) -> Node:
    """Made right after the mask, and found again by the next layer."""
    if key not in mask.meta:
        mask.meta[key] = make(mask.next)
    return mask.meta[key]


def _constant(node: Node, allowed: torch.Tensor) -> Node:
    return _finite(node, torch.where(allowed, 0.0, NEVER))


def _finite(node: Node, bias: torch.Tensor) -> Node:
    tensor = bias.clamp(min=NEVER).to(value_of(node).dtype)
    return add_constant(node.graph.owning_module, tensor, f"{node.name}_mask", node)  # type: ignore[arg-type]


RULE = Rule("attention in plain steps", rewrite)
