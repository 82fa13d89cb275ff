"""Requantization multipliers of few bits: the exact scales in double, recovered from their float32 values.

The multiplier is input scale times weight scale over output scale. The plan moves a scale so that the multiplier fits
in few bits, and the backend multiplies by exactly that number. The plan keeps the scale in float32, with a relative
error of 2^-24. In int16 that error would round two values in a thousand to the other side of a tie.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import calls, is_call
from ingot.plan.cost_model import mac_count
from ingot.plan.noise_model import elements
from ingot.plan.plan_data import QParams
from ingot.quantize.audit import qdq_qparams
from ingot.targets.base import Target

FLOAT32_ERROR = 2.0**-22  # of a product of three float32 scales; a larger difference is another multiplier


def exact_scales(module: GraphModule, target: Target) -> dict[Node, Tensor]:
    """The scales in double, by the dequantize node that has them in float32."""
    return {n: scale for node in calls(module) for n, scale in _scales(node, target)}


def _scales(node: Node, target: Target) -> Iterator[tuple[Node, Tensor]]:
    reads, out = [_dequantize_of(n) for n in operands(node)], quantize_of(node)
    if out is None or len(reads) < 2 or reads[0] is None or reads[1] is None or not _is_matmul(node, reads[1]):
        return
    x, weight = qdq_qparams(reads[0]), qdq_qparams(reads[1])
    bits = target.numerics.multiplier_bits.get(x.dtype)
    if bits is None or isinstance(x.scale, tuple):
        return
    scale = _exact_scale(weight, x.scale / qdq_qparams(out).scale, bits)  # type: ignore[operator]
    yield reads[1], scale
    if len(reads) > 2 and reads[2] is not None:
        yield reads[2], scale * x.scale


def _is_matmul(node: Node, factor: Node) -> bool:
    """A sum of products with a weight, or with a value that nothing else reads."""
    return weight_axis(node) is not None or (len(factor.users) == 1 and mac_count(node) > elements(node))


def _exact_scale(weight: QParams, ratio: float, bits: int) -> Tensor:
    scale = torch.tensor(weight.scale, dtype=torch.float64)
    mantissa, exponent = torch.frexp(scale * ratio)
    near = torch.ldexp((mantissa * 2**bits).round(), exponent - bits) / ratio
    return torch.where((near / scale - 1).abs() < FLOAT32_ERROR, near, scale)


def _dequantize_of(node: Node) -> Node | None:
    """The dequantize that an operand comes from; a fused pad in between changes no value.

    None where the scale is chosen at run time.
    """
    while node.op == "call_function" and len(operands(node)) == 1 and "dequantize" not in str(node.target):
        node = operands(node)[0]
    fixed = is_call(node, "dequantize_per_tensor") or is_call(node, "dequantize_per_channel")
    return node if fixed else None


def quantize_of(node: Node) -> Node | None:
    """The quantize of the result; a fused clamp may come before it."""
    while len(node.users) == 1 and not is_call(node, "quantize_per_tensor"):
        node = next(iter(node.users))
    return node if is_call(node, "quantize_per_tensor") else None
