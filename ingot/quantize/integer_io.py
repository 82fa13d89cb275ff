"""Integer inputs and outputs: the caller quantizes inputs and dequantizes outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.artefact import TensorInfo
from ingot.core.fx import copy_graph_module, is_call, output_nodes
from ingot.plan.plan_data import Plan, QParams

OUTPUT_NODE = "output"  # the name of the output node in graphs of torch.export


def input_qparams(module: GraphModule, plan: Plan) -> list[QParams | None]:
    """By input: the qparams that the caller must apply; None for a float input."""
    return [plan.qparams(n.name) if plan.integer_io else None for n in module.graph.nodes if n.op == "placeholder"]


def output_qparams(module: GraphModule, plan: Plan) -> list[QParams | None]:
    return [plan.qparams(OUTPUT_NODE, i) if plan.integer_io else None for i in range(len(output_nodes(module)))]


def is_io_conversion(node: Node, plan: Plan) -> bool:
    """The node quantizes an input or dequantizes an output: it stays outside of delegates."""
    if is_call(node, "quantize_per_tensor"):
        return any(n.op == "placeholder" and plan.qparams(n.name) is not None for n in node.all_input_nodes)
    last = next((u for u in node.users if u.op == "output"), None)
    if last is None or not is_call(node, "dequantize_per_tensor"):
        return False
    return any(n is node and plan.qparams(OUTPUT_NODE, i) is not None for i, n in enumerate(operands(last)))


def with_integer_io(quantized: GraphModule, plan: Plan) -> GraphModule:
    """The program without the quantize of its inputs and the dequantize of its outputs, where the plan says so."""
    if not any((*input_qparams(quantized, plan), *output_qparams(quantized, plan))):
        return quantized
    module = copy_graph_module(quantized)
    for node in [n for n in module.graph.nodes if n.op == "placeholder" and plan.qparams(n.name)]:
        for user in [u for u in node.users if is_call(u, "quantize_per_tensor")]:
            user.replace_all_uses_with(node)
            module.graph.erase_node(user)
    last = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    quantized_outputs = [plan.qparams(OUTPUT_NODE, i) is not None for i in range(len(output_nodes(module)))]
    last.args = (_integer_outputs(last.args[0], iter(quantized_outputs)),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _integer_outputs(returned: Any, is_quantized: Iterator[bool]) -> Any:
    def integers(node: Node) -> Node:
        return node.all_input_nodes[0] if next(is_quantized) and is_call(node, "dequantize_per_tensor") else node

    return torch.fx.map_arg(returned, integers)


def with_qparams(info: TensorInfo, qparams: QParams | None) -> TensorInfo:
    """The tensor with its dtype, scale and zero point, for an application that fills or reads it."""
    if qparams is None:
        return info
    assert isinstance(qparams.scale, float)
    assert isinstance(qparams.zero_point, int)
    return TensorInfo(
        info.name, qparams.dtype, info.shape, info.layout, qparams.scale, qparams.zero_point, qparams.qmin, qparams.qmax
    )


# Below, `io` holds a TensorInfo or a QParams for each tensor: both have scale, zero_point, qmin and qmax.


def quantize_inputs(batch: Sequence[Tensor], io: Sequence[Any]) -> tuple[Tensor, ...]:
    """Float inputs in the dtypes that the program takes."""
    return tuple(
        _quantize(t, s) if s is not None and s.scale is not None else t for t, s in zip(batch, io, strict=True)
    )


def dequantize_outputs(outputs: Sequence[Tensor], io: Sequence[Any]) -> list[Tensor]:
    """Outputs of the program as float tensors."""
    return [_dequantize(t, s) if s is not None and s.scale is not None else t for t, s in zip(outputs, io, strict=True)]


def _quantize(t: Tensor, s: Any) -> Tensor:
    steps = (t / s.scale).round() + s.zero_point
    return steps.clamp(s.qmin, s.qmax).to(getattr(torch, s.dtype))


def _dequantize(t: Tensor, s: Any) -> Tensor:
    return (t.float() - s.zero_point) * s.scale
