"""convolution(x, w, …) -> conv1d, conv2d, conv3d, or their transposed ones: one name for each kind.

The general op is what string paddings become ("same", "valid"), and what some code calls itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import call, calls, replace, value_of

aten = torch.ops.aten
_PLAIN: dict[int, Any] = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
_TRANSPOSED: dict[int, Any] = {
    1: aten.conv_transpose1d.default,
    2: aten.conv_transpose2d.input,
    3: aten.conv_transpose3d.input,
}


def name_convolutions(module: GraphModule) -> int:
    return sum(_named(node) for node in calls(module) if node.target is aten.convolution.default)


def _named(node: Node) -> bool:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    op = (_TRANSPOSED if transposed else _PLAIN).get(value_of(weight).dim() - 2)  # type: ignore[arg-type]
    if op is None:
        return False
    rest = (padding, output_padding, groups, dilation) if transposed else (padding, dilation, groups)
    replace(node, call(node, op, x, weight, bias, stride, *rest))
    return True
