"""scaled_dot_product_attention(q, k, v, mask) -> softmax(q * scale @ k.T + mask) @ v

A boolean mask that is computed at run time becomes (float(mask) - 1) * 1e9, a float mask max(mask, lowest float32),
once for all layers that read it. Eager gives zero for rows whose keys are all False or -inf, so the result is
multiplied by float(any key is not). Rows filled with one finite number (-1e9, lowest float32) are no such rows: eager
gives the mean of the values. Heads that share keys are in attention_groups.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, value_of
from ingot.core.symbolic_sizes import reshape_argument, same_shape
from ingot.rewrite.attention_groups import grouped_attention, shared_keys
from ingot.rewrite.rule import Rule

aten = torch.ops.aten
_MASK_FILL = -1e9  # exp of it is 0 in float32; -inf - -inf would be NaN
_LOWEST = torch.finfo(torch.float32).min
_REASON = "part of finding rows without a key: values up to the largest float need float"


def _rewrite(node: Node) -> Node | None:
    """ExecuTorch's decomposition handles fully masked rows with ops that run on the host."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    q, k, v, mask, dropout, causal, scale, grouped = _arguments(node)
    mask = None if _allows_all(mask) else mask
    shared = shared_keys(node, q, k, v)
    same_heads = all(same_shape(value_of(q).shape[:-2], value_of(x).shape[:-2]) for x in (k, v))
    if dropout or (shared is None and (grouped or not same_heads)):
        return None
    if has_symbols(value_of(q).shape[-1:]) or (causal and has_symbols((*value_of(q).shape, *value_of(k).shape[-2:]))):
        return None
    bias = _bias(node, mask, causal)
    if mask is not None and bias is None:
        return None
    factor = 1 / math.sqrt(value_of(q).shape[-1]) if scale is None else scale
    if shared is not None and shared.heads > 1:
        out = grouped_attention(node, q, shared, bias, factor)
    else:
        out = _attention(node, q, k, v, bias, factor)
    unmasked = _some_key(node, mask)
    return out if unmasked is None else call(node, aten.mul.Tensor, out, unmasked)


def _attention(node: Node, q: Node, k: Node, v: Node, bias: Node | None, factor: float) -> Node:
    """Examples and heads become one batch dimension if the mask allows it: bmm takes three dimensions."""
    heads = value_of(q).shape[:-2]
    to, flat = reshape_argument(value_of(node).shape), bias
    if bias is not None and len(heads) > 1 and to is not None:
        flat = _flat_bias(bias, heads)
    if len(heads) < 2 or to is None or (bias is not None and flat is None):
        return _softmax_attention(node, q, k, v, bias, factor)
    out = _softmax_attention(node, _flat(node, q), _flat(node, k), _flat(node, v), flat, factor)
    return call(node, aten.reshape.default, out, to)


def _softmax_attention(node: Node, q: Node, k: Node, v: Node, bias: Node | None, factor: float) -> Node:
    rank = value_of(k).dim()
    keys = call(node, aten.permute.default, k, [*range(rank - 2), rank - 1, rank - 2])
    scores = call(node, aten.mul.Tensor, call(node, aten.matmul.default, q, keys), factor)
    scores = scores if bias is None else call(node, aten.add.Tensor, scores, bias)
    return call(node, aten.matmul.default, call(node, aten.softmax.int, scores, -1), v)


def _flat(node: Node, x: Node) -> Node:
    shape = value_of(x).shape
    return call(node, aten.reshape.default, x, reshape_argument([math.prod(shape[:-2]), *shape[-2:]]))


def _flat_bias(bias: Node, heads: torch.Size) -> Node | None:
    """The mask with one batch dimension; None if it is broadcast along some of the leading dimensions only."""
    shape = (*[1] * (len(heads) + 2 - value_of(bias).dim()), *value_of(bias).shape)
    if not (same_shape(shape[:-2], (1,) * len(heads)) or same_shape(shape[:-2], heads)):
        return None
    flat, constant = reshape_argument([math.prod(shape[:-2]), *shape[-2:]]), constant_of(bias)
    if flat is None:
        return None
    if constant is not None:
        return _as_constant(bias, constant.reshape(flat))
    return _once(bias, "ingot_flat", lambda at: call(at, aten.reshape.default, bias, flat))


def _arguments(node: Node) -> tuple[Any, ...]:
    defaults = (None, None, None, None, 0.0, False, None, False)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = (*node.args, *defaults[len(node.args) :])
    return tuple(node.kwargs.get(n, g) for n, g in zip(names, given, strict=True))


def _allows_all(mask: Any) -> bool:
    constant = constant_of(mask) if mask is not None else None
    return constant is not None and constant.dtype == torch.bool and bool(constant.all())


def _bias(node: Node, mask: Any, causal: bool) -> Any:
    """The term added to the scores: a constant for a causal or constant mask, else computed from the mask."""
    if causal:
        queries, keys = value_of(node.args[0]).shape[-2], value_of(node.args[1]).shape[-2]  # type: ignore[arg-type]
        return _constant(node, torch.ones(queries, keys, dtype=torch.bool).tril())
    constant = constant_of(mask) if mask is not None else None
    if constant is not None and constant.dtype == torch.bool:
        return _constant(node, constant) if bool(constant.any(-1).all()) else None
    if constant is not None:
        return _finite(node, constant) if bool((constant > _MASK_FILL).any(-1).all()) else None
    if mask is None:
        return None
    if value_of(mask).dtype == torch.bool:
        return _once(mask, "ingot_bias", lambda at: _from_booleans(at, mask, value_of(node).dtype))
    return _once(mask, "ingot_bias", lambda at: call(at, aten.clamp.default, mask, _LOWEST))


def _from_booleans(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    allowed = _as_float(at, mask, dtype)
    return call(at, aten.mul.Tensor, call(at, aten.sub.Tensor, allowed, 1.0), -_MASK_FILL)


def _some_key(node: Node, mask: Any) -> Node | None:
    """1.0 for rows with an unmasked key, 0.0 for others; None for a constant mask, which has none of these rows."""
    if mask is None or constant_of(mask) is not None:
        return None
    return _once(mask, "ingot_some", lambda at: _has_unmasked_key(at, mask, value_of(node).dtype))


def _has_unmasked_key(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    if value_of(mask).dtype != torch.bool and has_symbols(value_of(mask).shape):
        return _finite_key(at, mask)
    allowed = mask if value_of(mask).dtype == torch.bool else call(at, aten.ge.Scalar, mask, _LOWEST)
    return _as_float(at, call(at, aten.any.dim, allowed, -1, True), dtype)


def _finite_key(at: Node, mask: Node) -> Node:
    """clamp(mask - lowest + 1, 0, 1) is 0 for -inf and 1 for the rest; `any` of a dynamic size is a sum, clamped."""
    above = _in_float(at, mask, aten.add.Tensor, _in_float(at, mask, aten.sub.Tensor, mask, _LOWEST), 1.0)
    found = _in_float(at, mask, aten.clamp.default, above, 0.0, 1.0)
    total = _in_float(at, mask, aten.sum.dim_IntList, found, [-1], True)
    return _in_float(at, mask, aten.clamp.default, total, 0.0, 1.0)


def _in_float(at: Node, mask: Node, target: Any, *args: Any) -> Node:
    """Part of the mask to partitioners, not of the layer that comes next in the program."""
    new = call(at, target, *args, like=mask)
    new.meta["ingot_float"] = _REASON
    return new


def _as_float(at: Node, mask: Node, dtype: torch.dtype) -> Node:
    return call(at, aten.to.dtype, mask, dtype)


def _once(mask: Node, key: str, make: Callable[[Node], Node]) -> Node:
    """Computed right after the mask, and reused by the next layer that reads it."""
    if key not in mask.meta:
        mask.meta[key] = make(mask.next)
    return mask.meta[key]


def _constant(node: Node, allowed: torch.Tensor) -> Node:
    return _finite(node, torch.where(allowed, 0.0, _MASK_FILL))


def _finite(node: Node, bias: torch.Tensor) -> Node:
    return _as_constant(node, bias.clamp(min=_MASK_FILL).to(value_of(node).dtype))


def _as_constant(node: Node, tensor: torch.Tensor) -> Node:
    return add_constant(node.graph.owning_module, tensor, f"{node.name}_mask", node)  # type: ignore[arg-type]


def _with_fewer_keys(node: Node) -> Node | None:
    """Where keys have fewer heads than queries: Arm's own decomposition does not broadcast them."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    q, k = (value_of(n).shape[:-2] for n in _arguments(node)[:2])
    return None if same_shape(q, k) else _rewrite(node)


def _with_constant_booleans(node: Node) -> Node | None:
    """Arm's own decomposition gives other values where a row has no key."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return None
    mask = _arguments(node)[3]
    constant = constant_of(mask) if mask is not None else None
    return _rewrite(node) if constant is not None and constant.dtype == torch.bool else None


RULE = Rule("attention-decomposed", _rewrite)
CONSTANT_MASKS = Rule("attention-with-constant-mask", _with_constant_booleans)
SHARED_KEYS = Rule("attention-with-shared-keys", _with_fewer_keys)
