"""hardsigmoid(x) -> hardtanh(x + 3, 0, 6) * (1 / 6)"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.rewrite.rule import Rule, in_float

aten = torch.ops.aten
REASON = "part of a hard sigmoid: its intermediate ranges are not recorded"


def _rewrite(node: Node) -> Node | None:
    """ExecuTorch's decomposition adds and divides by integers, which the host converts to float at every call."""
    if node.target is not aten.hardsigmoid.default:
        return None
    x: Any = node.args[0]
    shifted = in_float(node, REASON, aten.add.Tensor, x, 3.0)
    return in_float(
        node, REASON, aten.mul.Tensor, in_float(node, REASON, aten.hardtanh.default, shifted, 0.0, 6.0), 1 / 6
    )


RULE = Rule("hardsigmoid-decomposed", _rewrite)
