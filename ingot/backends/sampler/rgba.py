"""sample(image, grid) -> sample(pad(image), grid)[:, :3] for three channels: a texture has one, two or four."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ingot.core.fx import call, value_of
from ingot.rewrite.rule import Rule

aten = torch.ops.aten


def _rewrite(node: Node) -> Node | None:
    if node.target not in (aten.grid_sampler.default, aten.grid_sampler_2d.default):
        return None
    image: Any = node.args[0]
    if value_of(image).dim() != 4 or value_of(image).shape[1] != 3:
        return None
    four = call(node, aten.constant_pad_nd.default, image, [0, 0, 0, 0, 0, 1])
    sampled = call(node, node.target, four, *node.args[1:])
    return call(node, aten.slice.Tensor, sampled, 1, 0, 3)


RULE = Rule("rgba-images", _rewrite)
