"""linear(x, W, b) * c -> linear(x, c * W, c * b) for a constant c, one number or one for each channel

bmm(a, b) * c -> bmm(a * c, b) for one number c, if a is the smaller: the scale of attention is multiplied with the
queries, not with the scores. A division is a multiplication by 1 / c.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten
MULTIPLICATIONS = (aten.mul.Tensor, aten.mul.Scalar)
DIVISIONS = (aten.div.Tensor, aten.div.Scalar)
PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.mm.default)


def _rewrite(node: Node) -> Node | None:
    product, factor = _scaled(node)
    if product is None or factor is None or len(product.users) > 1 or not bool(torch.isfinite(factor).all()):
        return None
    if product.target is aten.linear.default:
        return _scaled_linear(node, product, factor)
    return _scaled_operand(node, product, factor) if product.target in PRODUCTS and factor.numel() == 1 else None


def _scaled(node: Node) -> tuple[Node | None, torch.Tensor | None]:
    """The product and the constant by which it is multiplied."""
    if node.target not in (*MULTIPLICATIONS, *DIVISIONS) or node.kwargs:
        return None, None
    x, c = node.args
    if node.target in MULTIPLICATIONS and (not isinstance(x, Node) or constant_of(x) is not None):
        x, c = c, x
    factor = _constant(c) if isinstance(x, Node) else None
    if factor is None or value_of(x).shape != value_of(node).shape:  # type: ignore[arg-type]
        return None, None
    return x, factor if node.target in MULTIPLICATIONS else 1 / factor  # type: ignore[return-value]


def _constant(c: Any) -> torch.Tensor | None:
    if isinstance(c, (int, float)):
        return torch.tensor(float(c))
    found = constant_of(c) if isinstance(c, Node) else None
    return found.detach() if found is not None and found.dtype == torch.float32 else None


def _scaled_linear(node: Node, linear: Node, factor: torch.Tensor) -> Node | None:
    """The weights of a mean are shared, and stay."""
    x, *constants = linear.args
    tensors = [constant_of(c) for c in constants if isinstance(c, Node)]
    if linear.meta.get("ingot_float") or not tensors or any(t is None for t in tensors):
        return None
    if factor.numel() > 1 and (factor.shape[-1] != factor.numel() or factor.numel() != tensors[0].shape[0]):  # type: ignore[union-attr]
        return None
    weight, *bias = (t.detach() * _along_channels(factor, t) for t in tensors if t is not None)
    module: Any = node.graph.owning_module
    made = [add_constant(module, t, f"{linear.name}_scaled", node) for t in (weight, *bias)]
    return call(node, aten.linear.default, x, *made, like=linear)


def _along_channels(factor: torch.Tensor, constant: torch.Tensor) -> torch.Tensor:
    flat = factor.reshape(-1)
    return flat.reshape(-1, *[1] * (constant.dim() - 1)) if flat.numel() > 1 else flat.reshape(())


def _scaled_operand(node: Node, product: Node, factor: torch.Tensor) -> Node | None:
    operands: tuple[Any, Any] = product.args[:2]  # type: ignore[assignment]
    sizes = [value_of(n).shape for n in (*operands, product)]
    if any(has_symbols(s) for s in sizes):
        return None
    left, right, out = (s.numel() for s in sizes)
    if min(left, right) >= out:
        return None
    scaled = call(node, aten.mul.Tensor, operands[left > right], float(factor))
    return call(node, product.target, *((operands[0], scaled) if left > right else (scaled, operands[1])))  # type: ignore[arg-type]


RULE = Rule("scale-into-product", _rewrite)
