"""What a sum of products is multiplied by, where the plan made it a number of few bits: as it was meant.

The plan moves a scale so that input scale times weight scale over output scale is such a number, and the backend
multiplies by exactly that. The scale itself is kept in float32, which misses it by 2^-24: two numbers of a thousand in
int16 would fall on the other side of a middle.
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
from ingot.plan.model import QParams
from ingot.plan.noise_model import elements
from ingot.quantize.audit import parameters
from ingot.targets.base import Target

MISSED = 2.0**-22  # by three scales in float32, and no more: another factor is another factor


def scales_meant(module: GraphModule, target: Target) -> dict[Node, Tensor]:
    """In double, by the dequantize that has them in float32."""
    return {n: scale for node in calls(module) for n, scale in _scales(node, target)}


def _scales(node: Node, target: Target) -> Iterator[tuple[Node, Tensor]]:
    reads, out = [_stored(n) for n in operands(node)], _result(node)
    if out is None or len(reads) < 2 or reads[0] is None or reads[1] is None or not _multiplies(node, reads[1]):
        return
    x, weight = parameters(reads[0]), parameters(reads[1])
    bits = target.numerics.multiplier_bits.get(x.dtype)
    if bits is None or isinstance(x.scale, tuple):
        return
    scale = _meant(weight, x.scale / parameters(out).scale, bits)  # type: ignore[operator]
    yield reads[1], scale
    if len(reads) > 2 and reads[2] is not None:
        yield reads[2], scale * x.scale


def _multiplies(node: Node, factor: Node) -> bool:
    """And adds up: by a weight, or by numbers that nothing else reads."""
    return weight_axis(node) is not None or (len(factor.users) == 1 and mac_count(node) > elements(node))


def _meant(weight: QParams, ratio: float, bits: int) -> Tensor:
    scale = torch.tensor(weight.scale, dtype=torch.float64)
    mantissa, exponent = torch.frexp(scale * ratio)
    near = torch.ldexp((mantissa * 2**bits).round(), exponent - bits) / ratio
    return torch.where((near / scale - 1).abs() < MISSED, near, scale)


def _stored(node: Node) -> Node | None:
    """Where integers become the number that is read; a pad inside a kernel only moves it."""
    while node.op == "call_function" and len(operands(node)) == 1 and "dequantize" not in str(node.target):
        node = operands(node)[0]
    return node if "dequantize" in str(node.target) else None


def _result(node: Node) -> Node | None:
    """Where it is rounded, behind a clamp inside the kernel perhaps."""
    while len(node.users) == 1 and not is_call(node, "quantize_per_tensor"):
        node = next(iter(node.users))
    return node if is_call(node, "quantize_per_tensor") else None
