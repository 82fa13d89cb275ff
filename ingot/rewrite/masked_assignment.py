"""x[mask] = value, index_put(x, [mask], value) -> where(mask, value, x), for one value or one for each channel"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    args: Any = node.args
    if node.target is not aten.index_put.default or len(args[1]) != 1 or (len(args) > 3 and args[3]):
        return None
    base, (mask,), value = args[:3]
    if value_of(mask).dtype != torch.bool or has_symbols([*value_of(base).shape, *value_of(mask).shape]):
        return None
    rest = list(value_of(base).shape[value_of(mask).dim() :])
    if value_of(value).numel() != 1 and list(value_of(value).shape) != rest:
        return None  # as many values as there are marked places
    shaped = call(node, aten.reshape.default, mask, [*value_of(mask).shape, *[1] * len(rest)])
    chosen = (
        value if value_of(value).numel() > 1 else call(node, aten.reshape.default, value, [1] * value_of(base).dim())
    )
    return call(node, aten.where.self, shaped, chosen, base)


RULE = Rule("masked-assignment-as-where", _rewrite)
