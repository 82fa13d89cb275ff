"""batch_norm(conv(x, w, b)) -> conv(x, w', b'), exactly; also for grouped and transposed convolutions and linear.

batch_norm(x, w, b, m, v) -> (x - m) * rsqrt(v + eps) * w + b where the net computes its statistics or factors
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import add_constant, call, calls, constant_of, value_of

aten = torch.ops.aten
_WIDE = (torch.float32, torch.float64)  # rounding the folded weights to these is not seen


def fold_batch_norm(module: GraphModule) -> int:
    """batch_norm(conv(x, w, b)) -> conv(x, w', b'), or a depthwise convolution where no op can absorb it."""
    return sum(
        _fold(module, node)
        for node in calls(module)
        if node.target is aten._native_batch_norm_legit_no_training.default
    )


def _fold(module: GraphModule, norm: Node) -> bool:
    if not _only_first_output(norm):
        return False
    if any(isinstance(a, Node) and constant_of(a) is None for a in norm.args[1:5]):
        return _put_in_place(norm, _as_arithmetic(norm))
    scale, shift = _affine(norm)
    before: Any = norm.args[0]
    if _can_fold_into(before) and len(before.users) == 1:
        _fold_into_weights(module, before, scale, shift)
        new = before
    else:
        new = _as_depthwise_conv(module, norm, scale, shift)
        if new is None:
            return False
    return _put_in_place(norm, new)


def _put_in_place(norm: Node, new: Node) -> bool:
    for item in list(norm.users):
        item.replace_all_uses_with(new)
        norm.graph.erase_node(item)
    norm.graph.erase_node(norm)
    return True


def _as_arithmetic(norm: Node) -> Node:
    x: Any = norm.args[0]
    shape = [1, -1, *[1] * (value_of(x).dim() - 2)]
    weight, bias, mean, var = (a if a is None else call(norm, aten.reshape.default, a, shape) for a in norm.args[1:5])
    scale = call(norm, aten.rsqrt.default, call(norm, aten.add.Tensor, var, norm.args[6]))
    made = call(norm, aten.mul.Tensor, call(norm, aten.sub.Tensor, x, mean), scale)
    made = made if weight is None else call(norm, aten.mul.Tensor, made, weight)
    return made if bias is None else call(norm, aten.add.Tensor, made, bias)


def _only_first_output(norm: Node) -> bool:
    return all(u.target is operator.getitem and u.args[1] == 0 for u in norm.users)


def _affine(norm: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm as y = scale * x + shift per channel. In float64, so that folding rounds once."""
    weight, bias, mean, var = (_double(a) for a in norm.args[1:5])
    eps: Any = norm.args[6]
    assert mean is not None
    assert var is not None
    scale = (var + eps).rsqrt() * (1.0 if weight is None else weight)
    return scale, (0.0 if bias is None else bias) - mean * scale


def _double(arg: Any) -> torch.Tensor | None:
    tensor = constant_of(arg) if isinstance(arg, Node) else None
    return None if tensor is None else tensor.detach().double()


def _can_fold_into(node: Any) -> bool:
    """f(input, weight, bias, …) with constant weight and bias, linear in both."""
    if not isinstance(node, Node) or weight_axis(node) is None:
        return False
    bias = node.args[2] if len(node.args) > 2 else None
    weight: Any = node.args[1]
    if value_of(node).dtype not in _WIDE:
        return False
    # The channels of the norm are axis 1; a linear over tokens has them last.
    if value_of(node).dim() != value_of(weight).dim():
        return False
    return constant_of(node.args[1]) is not None and (bias is None or constant_of(bias) is not None)  # type: ignore[arg-type]


def _fold_into_weights(module: GraphModule, node: Node, scale: torch.Tensor, shift: torch.Tensor) -> None:
    weight = constant_of(node.args[1])  # type: ignore[arg-type]
    bias = constant_of(node.args[2]) if len(node.args) > 2 and node.args[2] is not None else None  # type: ignore[arg-type]
    assert weight is not None
    folded = _scale_weight(node, weight.detach().double(), scale)
    new_bias = shift if bias is None else shift + bias.detach().double() * scale
    args = list(node.args) + [None] * (3 - len(node.args))
    args[1] = add_constant(module, folded.to(weight.dtype), f"{node.name}_weight", node)
    args[2] = add_constant(module, new_bias.to(weight.dtype), f"{node.name}_bias", node)
    node.args = tuple(args)


def _scale_weight(node: Node, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiply along output channels. A transposed convolution stores (in, out / groups), group by group."""
    if weight_axis(node) == 0:
        return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    groups = scale.numel() // weight.shape[1]
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (grouped * scale.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))).reshape(weight.shape)


def _as_depthwise_conv(module: GraphModule, norm: Node, scale: torch.Tensor, shift: torch.Tensor) -> Node | None:
    """batch_norm(x) -> conv2d(x, diag(scale), shift): one int8 op where no preceding op can absorb the norm.

    Of half precision in float32, as torch computes it: weights rounded to half precision change the result.
    """
    x: Any = norm.args[0]
    if value_of(x).dim() != 4:
        return None
    asked = value_of(x).dtype
    dtype = asked if asked in _WIDE else torch.float32
    x = x if asked is dtype else call(norm, aten.to.dtype, x, dtype, like=norm)
    weight = add_constant(module, scale.to(dtype).reshape(-1, 1, 1, 1), f"{norm.name}_weight", norm)
    bias = add_constant(module, shift.to(dtype), f"{norm.name}_bias", norm)
    made = call(norm, aten.conv2d.default, x, weight, bias, [1, 1], [0, 0], [1, 1], scale.numel(), like=norm)
    return made if asked is dtype else call(norm, aten.to.dtype, made, asked, like=norm)
