"""avg_pool2d(x, k) that counts its padding, or has a divisor of its own -> conv2d(x, 1 / divisor, groups=channels)

XNNPACK's pool divides by the elements that are inside of x. Zeros of the padding and any divisor are what a depthwise
convolution with equal weights has, and that one runs in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import add_constant, call, has_symbols, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target is not aten.avg_pool2d.default or node.kwargs:
        return None
    given: list[Any] = [*node.args, *_DEFAULTS[len(node.args) :]]
    x, kernel, stride, padding, ceil_mode, counts_padding, divisor = given
    kernel, padding = _pair(kernel), _pair(padding)
    of_its_own = divisor is not None and (divisor != kernel[0] * kernel[1] or any(padding))
    if ceil_mode or not (of_its_own or (counts_padding and any(padding))):
        return None
    channels = value_of(x).shape[-3]
    if has_symbols((channels,)):
        return None
    each = 1.0 / (divisor or kernel[0] * kernel[1])
    weight = add_constant(node.graph.owning_module, torch.full((channels, 1, *kernel), each), "average", node)  # type: ignore[arg-type]
    return call(node, aten.conv2d.default, x, weight, None, _pair(stride) or kernel, padding, [1, 1], channels)


_DEFAULTS: tuple[Any, ...] = (None, None, [], [0], False, True, None)


def _pair(given: Sequence[int]) -> list[int]:
    return list(given) * 2 if len(given) == 1 else list(given)


RULE = Rule("avg-pool-as-depthwise-conv", _rewrite)
