"""(a + bi)(c + di) -> ac - bd + (ad + bc)i; (a + bi) / (c + di) -> (a + bi)(c - di) / (cc + dd); sums part by part

A part is a node, a number, or None for the zero that a real operand has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ingot.rewrite.complex_transforms import Pair, spectral_op

aten = torch.ops.aten
Parts = tuple[Any, Any]  # real and imaginary


def complex_product(node: Node, first: Parts, second: Parts) -> Pair | None:
    """Elementwise, and of matrices."""
    (a, b), (c, d) = first, second
    ac, bd, ad, bc = (_times(node, node.target, x, y) for x, y in ((a, c), (b, d), (a, d), (b, c)))
    return _difference(node, ac, bd), _total(node, ad, bc)


def equation(node: Node, first: Parts, second: Parts) -> Pair:
    """einsum of two tensors."""
    (a, b), (c, d) = first, second
    ac, bd, ad, bc = (
        None if x is None or y is None else spectral_op(node, node.target, node.args[0], [x, y])
        for x, y in ((a, c), (b, d), (a, d), (b, c))
    )
    return _difference(node, ac, bd), _total(node, ad, bc)


def quotient(node: Node, first: Parts, second: Parts) -> Pair | None:
    (a, b), (c, d) = first, second
    if d is not None:
        pairs = ((a, c), (b, d), (b, c), (a, d), (c, c), (d, d))
        ac, bd, bc, ad, cc, dd = (_times(node, aten.mul.Tensor, x, y) for x, y in pairs)
        a, b, c = _total(node, ac, bd), _difference(node, bc, ad), _total(node, cc, dd)
    if not isinstance(a, Node) or not isinstance(b, Node):
        return None
    return spectral_op(node, aten.div.Tensor, a, c), spectral_op(node, aten.div.Tensor, b, c)


def total(node: Node, first: Parts, second: Parts) -> Pair | None:
    return _by_part(node, first, second, _total)


def difference(node: Node, first: Parts, second: Parts) -> Pair | None:
    return _by_part(node, first, second, _difference)


def polar_form(node: Node, size: Node, angle: Node) -> Pair:
    """size * (cos angle + i sin angle)"""
    r, i = (
        spectral_op(node, aten.mul.Tensor, size, spectral_op(node, op, angle))
        for op in (aten.cos.default, aten.sin.default)
    )
    return r, i


def _by_part(node: Node, first: Parts, second: Parts, op: Callable[[Node, Any, Any], Any]) -> Pair | None:
    r, i = (op(node, x, y) for x, y in zip(first, second, strict=True))
    return (r, i) if isinstance(r, Node) and isinstance(i, Node) else None


def _times(node: Node, op: Any, a: Any, b: Any) -> Any:
    """A number is the second operand of an op."""
    if a is None or b is None:
        return None
    if isinstance(a, Node) or isinstance(b, Node):
        return spectral_op(node, op, a, b) if isinstance(a, Node) else spectral_op(node, op, b, a)
    return a * b


def _difference(node: Node, a: Any, b: Any) -> Any:
    if isinstance(a, Node) and isinstance(b, Node):
        return spectral_op(node, aten.sub.Tensor, a, b)
    minus = spectral_op(node, aten.neg.default, b) if isinstance(b, Node) else None if b is None else -b
    return _total(node, a, minus)


def _total(node: Node, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    a, b = (a, b) if isinstance(a, Node) else (b, a)
    return spectral_op(node, aten.add.Tensor, a, b) if isinstance(a, Node) else a + b


ARITHMETIC = {
    **dict.fromkeys(("mul", "matmul", "mm", "bmm"), complex_product),
    "einsum": equation,
    "div": quotient,
    "add": total,
    "sub": difference,
}
