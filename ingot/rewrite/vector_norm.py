"""linalg_vector_norm(x, p, dims) -> sum(|x| ^ p, dims) ^ (1/p); amax or amin of |x| for infinite p; a count for p = 0

Arm's passes have the orders 1 and 2 and stop at others.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.linalg_vector_norm.default or node.kwargs.get("dtype") not in (None, torch.float32):
        return None
    given: tuple[Any, ...] = (*node.args, *(None, 2, None, False)[len(node.args) :])
    x, order, dims, keep = given
    val = value_of(x)
    if order in (1, 2) or val.dtype != torch.float32 or has_symbols(val.shape):
        return None
    return _norm(node, x, float(order), list(range(val.dim())) if dims is None else dims, keep)


def _norm(node: Node, x: Any, order: float, dims: Any, keep: Any) -> Node:
    if order == 0:
        counted = call(node, aten.to.dtype, call(node, aten.ne.Scalar, x, 0.0), torch.float32)
        return call(node, aten.sum.dim_IntList, counted, dims, keep)
    size = call(node, aten.abs.default, x)
    if math.isinf(order):
        return call(node, aten.amax.default if order > 0 else aten.amin.default, size, dims, keep)
    total = call(node, aten.sum.dim_IntList, call(node, aten.pow.Tensor_Scalar, size, order), dims, keep)
    return call(node, aten.pow.Tensor_Scalar, total, 1 / order)


RULE = Rule("vector-norm-decomposed", _rewrite)
