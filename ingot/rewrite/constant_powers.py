"""pow(x, constant of equal elements) -> pow(x, number)
pow(x, constant) -> exp(constant * log(x)) for fractional exponents

A learned exponent, as in generalized means, is a tensor. Where whole and fractional exponents are mixed the op stays:
whole powers of negative numbers have no logarithm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, constant_of, has_symbols, value_of
from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of a power: it needs float"


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.pow.Tensor_Tensor or has_symbols(value_of(node).shape):
        return None
    x, given = node.args
    exponent = constant_of(given) if isinstance(given, Node) else None
    if exponent is None or not exponent.numel() or not exponent.is_floating_point():
        return None
    x, exponent = _of_shape(node, x), exponent.detach()
    number = float(exponent.reshape(-1)[0])
    if bool((exponent == number).all()):
        return call(node, aten.pow.Tensor_Scalar, x, number)
    if bool((exponent == exponent.round()).any()):
        return None
    factor = add_constant(node.graph.owning_module, exponent, f"{node.name}_exponent", node)  # type: ignore[arg-type]
    logarithm = in_float(node, REASON, aten.log.default, x)
    return in_float(node, REASON, aten.exp.default, in_float(node, REASON, aten.mul.Tensor, logarithm, factor))


def _of_shape(node: Node, x: Any) -> Node:
    shape = list(value_of(node).shape)
    return x if list(value_of(x).shape) == shape else call(node, aten.expand.default, x, shape)


RULE = Rule("constant-power", _rewrite)
