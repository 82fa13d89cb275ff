"""x[k::s] -> reshape(reshape(x, [n / s, s])[:, k]): backends only slice with step 1"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    """Only if the step divides the dimension and the slice runs to its end."""
    if node.target is not aten.slice.Tensor or len(node.args) < 5 or node.args[4] == 1:
        return None
    given: tuple[Any, ...] = node.args
    x, dim, start, end, step = given
    shape = list(value_of(x).shape)
    dim %= len(shape)
    if has_symbols(shape) or not _runs_to_the_end(shape[dim], start, end, step):
        return None
    apart = call(node, aten.reshape.default, x, [*shape[:dim], shape[dim] // step, step, *shape[dim + 1 :]])
    part = call(node, aten.slice.Tensor, apart, dim + 1, start or 0, (start or 0) + 1)
    return call(node, aten.reshape.default, part, list(value_of(node).shape))


def _runs_to_the_end(size: int, start: Any, end: Any, step: Any) -> bool:
    return size % step == 0 and 0 <= (start or 0) < step and (end is None or end >= size)


RULE = Rule("strided-slice-as-reshape", _rewrite)
