"""Activations that are quantized at run time: each token (row of the last axis) with a scale of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import inherited_meta, value_of
from ingot.plan.plan_data import Plan

INT8 = (torch.int8, -128, 127)


def insert_dynamic_quantization(converted: GraphModule, module: GraphModule, plan: Plan) -> None:
    """x -> choose_qparams, quantize, dequantize before operand 0 of the plan's dynamic ops.

    `module` is the float program. Each op gets a quantize of its own: XNNPACK puts linears that share one into separate
    delegates.
    """
    if not plan.dynamic:
        return
    import torchao.quantization  # noqa: F401  quantize_affine and its counterparts

    wanted = set(plan.dynamic)
    shapes = {n.name: value_of(operands(n)[0]).shape for n in module.graph.nodes if n.name in wanted}
    for node in [n for n in converted.graph.nodes if n.name in wanted]:
        node.update_arg(0, _quantized_per_token(node, shapes[node.name]))
    converted.recompile()


def _quantized_per_token(node: Node, shape: Sequence[int]) -> Node:
    ops, x = torch.ops.torchao, node.args[0]
    block = [1] * (len(shape) - 1) + [shape[-1]]
    kinds = (torch.finfo(torch.float32).eps, torch.float32, torch.int8)
    qparams = _call(node, ops.choose_qparams_affine.default, x, "ASYMMETRIC", block, *INT8, *kinds)
    scale, zero = (_call(node, operator.getitem, qparams, i) for i in (0, 1))
    stored = _call(node, ops.quantize_affine.default, x, block, scale, zero, *INT8)
    return _call(node, ops.dequantize_affine.default, stored, block, scale, zero, *INT8, output_dtype=torch.float32)


def _call(before: Node, op: Any, *args: Any, **named: Any) -> Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(op, args, named)
    node.meta = inherited_meta(before)
    return node
