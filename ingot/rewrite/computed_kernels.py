"""conv2d(x, w) -> bmm(w, windows of x) and conv_transpose2d(x, w) -> windows added up of bmm(w, x), for a computed w
linear(x, w, b) -> matmul(x, transposed w) + b

Kernels made by the net itself: correlation of a template with an image, mixtures of experts, modulated kernels.
Backends have convolutions and linears with constant kernels only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of
from ingot.rewrite.decomposition import Declined, Decomposition
from ingot.rewrite.windows import col2im_as_conv, im2col_as_conv

aten = torch.ops.aten
Sizes = Sequence[int]
ONE, NONE = (1,), (0,)


def has_computed_kernel(node: Node) -> bool:
    axis = weight_axis(node)
    weighted = axis is not None and (node.target is aten.linear.default or "conv" in str(node.target))
    return weighted and isinstance(node.args[1], Node) and not _made_of_constants(node.args[1])


def _made_of_constants(weight: Node) -> bool:
    """Also one that is dequantized."""
    queue, seen = [weight], set[Node]()
    while queue:
        node = queue.pop()
        if constant_of(node) is None and node not in seen:
            if node.op != "call_function":
                return False
            seen.add(node)
            queue += node.all_input_nodes
    return True


def linear_as_matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    made = aten.matmul(x, weight.mT if weight.dim() > 1 else weight)
    return made if bias is None else made + bias


def conv2d_by_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = ONE, padding: Sizes = NONE,
    dilation: Sizes = ONE, groups: int = 1,
) -> Tensor:  # fmt: skip
    if x.dim() != 4 or isinstance(padding, str):
        raise Declined
    steps, pads, gaps = (_pair(v) for v in (stride, padding, dilation))
    height, width = (_count(*each) for each in zip(x.shape[2:], weight.shape[2:], steps, pads, gaps, strict=True))
    columns = im2col_as_conv(x, list(weight.shape[2:]), gaps, pads, steps).reshape(
        x.shape[0], groups, -1, height * width
    )
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = aten.bmm(rows, columns.permute(1, 2, 0, 3).reshape(groups, rows.shape[2], -1))
    apart = made.reshape(weight.shape[0], x.shape[0], height, width).permute(1, 0, 2, 3)
    return apart if bias is None else apart + bias.reshape(1, -1, 1, 1)


def conv1d_by_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = ONE, padding: Sizes = NONE,
    dilation: Sizes = ONE, groups: int = 1,
) -> Tensor:  # fmt: skip
    if x.dim() != 3 or isinstance(padding, str):
        raise Declined
    flat, kernel = (t.reshape(*t.shape[:2], 1, t.shape[2]) for t in (x, weight))
    made = conv2d_by_windows(flat, kernel, bias, (1, *stride), (0, *padding), (1, *dilation), groups)
    return made.reshape(*made.shape[:2], made.shape[3])


def conv_transpose2d_by_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = ONE, padding: Sizes = NONE,
    output_padding: Sizes = NONE, groups: int = 1, dilation: Sizes = ONE,
) -> Tensor:  # fmt: skip
    if x.dim() != 4:
        raise Declined
    steps, pads, more, gaps = (_pair(v) for v in (stride, padding, output_padding, dilation))
    if any(m >= s for m, s in zip(more, steps, strict=True)):
        raise Declined  # a window more would fit into the result
    kernel = list(weight.shape[2:])
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + m + 1
        for n, s, p, d, k, m in zip(x.shape[2:], steps, pads, gaps, kernel, more, strict=True)
    ]
    rows = weight.reshape(groups, weight.shape[0] // groups, -1).permute(0, 2, 1)
    pixels = x.permute(1, 0, 2, 3).reshape(groups, rows.shape[2], -1)
    made = aten.bmm(rows, pixels).reshape(groups * rows.shape[1], x.shape[0], -1).permute(1, 0, 2)
    added = col2im_as_conv(made, sizes, kernel, gaps, pads, steps)
    return added if bias is None else added + bias.reshape(1, -1, 1, 1)


def _pair(value: Sizes) -> list[int]:
    return [*value] * 2 if len(value) == 1 else [*value]


def _count(size: int, kernel: int, step: int, pad: int, gap: int) -> int:
    return (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1


RULE = Decomposition(
    "conv-with-computed-kernel-as-bmm",
    {
        aten.linear.default: linear_as_matmul,
        aten.conv1d.default: conv1d_by_windows,
        aten.conv2d.default: conv2d_by_windows,
        aten.conv_transpose2d.input: conv_transpose2d_by_windows,
    },
    wanted=has_computed_kernel,
)
