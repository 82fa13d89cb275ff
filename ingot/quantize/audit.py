"""Compares the Q/DQ graph with the plan at every quantization point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, is_call, source_of
from ingot.errors import PlanError
from ingot.plan.plan_data import Plan, QParams, QuantizationPoint

Constants = Mapping[str, torch.Tensor]  # by node name


def audit(converted: GraphModule, module: GraphModule, plan: Plan, constants: Constants) -> None:
    """Every operand and every output must pass exactly the planned Q/DQ pairs, in order; else PlanError.

    `constants` are what the program computes with before quantization: each must come back, rounded as planned.
    """
    made = {n.name: n for n in converted.graph.nodes}
    for node in module.graph.nodes:
        if node.op not in ("call_function", "output"):
            continue
        if node.name not in made:
            raise _mismatch(QuantizationPoint(node.name), "the op is missing", node)
        if len(operands(node)) != len(operands(made[node.name])):
            raise _mismatch(QuantizationPoint(node.name), "it has another number of operands", node)
        for i, (operand, found) in enumerate(zip(operands(node), operands(made[node.name]), strict=True)):
            _compare(QuantizationPoint(node.name, i), operand, *qdq_chain(found), plan, node)
            _compare_constant(QuantizationPoint(node.name, i), *qdq_chain(found), constants.get(operand.name), node)


def _compare(
    point: QuantizationPoint, operand: Node, found: list[QParams], start: Node, plan: Plan, node: Node
) -> None:
    stored, read = plan.qparams(operand.name), plan.qparams(point.node, point.operand)
    planned = [s for s in (stored, read if read != stored else None) if s is not None]
    if found != planned:
        raise _mismatch(point, f"planned {_text(planned)}, found {_text(found)}", node)
    if start.name != operand.name and not (start.op == "get_attr" and constant_of(operand) is not None):
        raise _mismatch(point, f"it reads {start.name}, planned {operand.name}", node)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """A NaN is the same number: decompositions of xlogy and others select it."""
    return torch.equal(a, b) or (a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def _compare_constant(
    point: QuantizationPoint, chain: list[QParams], start: Node, wanted: torch.Tensor | None, node: Node
) -> None:
    """Constants lose their names when they are quantized: their numbers tell whether one stands for another."""
    found = constant_of(start)
    if wanted is None or found is None:
        return
    if chain and not found.dtype.is_floating_point:
        wanted = _codes(wanted, chain[0])
    if found.shape != wanted.shape or not _equal(found, wanted):
        raise _mismatch(point, f"the constant {start.target} has other numbers than the one that was planned", node)


def _codes(x: torch.Tensor, s: QParams) -> torch.Tensor:
    import torch.ao.quantization.fx._decomposed

    ops, rest = torch.ops.quantized_decomposed, (s.qmin, s.qmax, getattr(torch, s.dtype))
    with torch.no_grad():
        if s.axis is None:
            return ops.quantize_per_tensor.default(x, s.scale, s.zero_point, *rest)
        scale, zero = torch.tensor(s.scale, dtype=torch.float32), torch.tensor(s.zero_point, dtype=torch.int64)
        return ops.quantize_per_channel.default(x, scale, zero, s.axis, *rest)


def _text(chain: list[QParams]) -> str:
    return ", then ".join(map(str, chain)) or "float"


def _mismatch(point: QuantizationPoint, problem: str, node: Node) -> PlanError:
    return PlanError(
        f"the quantized graph differs from the plan at {point}",
        where=source_of(node),
        why=problem,
        hint="report this model: it is a bug in Ingot",
    )


def qdq_chain(node: Node) -> tuple[list[QParams], Node]:
    """The Q/DQ pairs between the producer of a value and this node, in order, and the producer."""
    found: list[QParams] = []
    while is_call(node, "dequantize_per_tensor") or is_call(node, "dequantize_per_channel"):
        found.insert(0, qdq_qparams(node))
        node = operands(node)[0]
        if is_call(node, "quantize_per_tensor") or is_call(node, "quantize_per_channel"):
            if qdq_qparams(node) != found[0]:
                return [*found, qdq_qparams(node)], node
            node = operands(node)[0]
    return found, node


def qdq_qparams(node: Node) -> QParams:
    """The qparams of a Q or DQ node: per tensor (x, scale, zp, min, max, dtype) or per channel (… axis …)."""
    if "per_channel" in str(node.target):
        _, scale, zero, axis, low, high, dtype = node.args[:7]
        return QParams(_dtype_name(dtype), _per_channel_values(scale), _per_channel_values(zero), low, high, axis)  # type: ignore[arg-type]
    _, scale, zero, low, high, dtype = node.args[:6]
    return QParams(_dtype_name(dtype), scale, zero, low, high)  # type: ignore[arg-type]


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _per_channel_values(arg: Any) -> tuple[Any, ...]:
    tensor = constant_of(arg) if isinstance(arg, Node) else arg
    assert tensor is not None  # torchao stores per-channel scales and zero points as constants
    return tuple(tensor.tolist())
