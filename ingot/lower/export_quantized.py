"""Prepares the Q/DQ graph for a backend and exports it as an ExportedProgram."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from ingot.capture.export import Program, restore_state
from ingot.core.fx import call, copy_graph_module, copy_partial_views, delete_unused_tensors, has_symbols, value_of
from ingot.lower.constant_lifting import lift_constants
from ingot.lower.embedding_tables import fuse_embedding_tables
from ingot.lower.number_operands import keep_dtypes_beside_numbers
from ingot.lower.partition_report import mark_values
from ingot.lower.requantized_moves import moving_ops, requantize_before_moves
from ingot.plan.plan_data import Plan
from ingot.quantize.integer_io import input_qparams, quantize_inputs
from ingot.quantize.range_clamps import insert_range_clamps
from ingot.targets.base import Target


def backend_copy(program: Program, quantized: GraphModule, plan: Plan, target: Target) -> GraphModule:
    """A copy for the backend, with range clamps, and with ops that are planned in float marked."""
    quantized = copy_graph_module(quantized)
    if plan.settings.get("caller_owned_inputs"):
        _copy_returned_inputs(quantized)
    insert_range_clamps(quantized, plan, program.module, target.lowering.owned_by_another)
    fuse_embedding_tables(quantized)
    keep_dtypes_beside_numbers(quantized)
    if target.lowering.absorbs_qdq:
        requantize_before_moves(quantized, moving_ops(program.module))
    delete_unused_tensors(quantized)
    copy_partial_views(quantized)
    mark_values(quantized)
    for node in quantized.graph.nodes:
        # Provenance grows with every pass, and nothing below reads it.
        node.meta.pop("from_node", None)
        planned = node.meta.pop("quantization_annotation", None)
        if (
            planned is None
            and isinstance(node.target, torch._ops.OpOverload)
            and "quantize_per" not in str(node.target)
        ):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), "ingot": "float"}
    return quantized


def _copy_returned_inputs(module: GraphModule) -> None:
    """An input that the caller owns has no memory in the program, so an output cannot be that memory."""
    last = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    for node in [n for n in last.all_input_nodes if n.op == "placeholder"]:
        last.replace_input_with(node, call(last, torch.ops.aten.clone.default, node, like=node))
    module.recompile()


def export_quantized(program: Program, quantized: GraphModule, plan: Plan) -> torch.export.ExportedProgram:
    """The ExportedProgram that is lowered; traced by torch only where constants cannot be lifted."""
    _dequantize_per_consumer(quantized)
    restore_state(quantized, program.state)  # the file stores the initial values of buffers
    shapes = program.dynamic_shapes
    inputs = quantize_inputs(program.example_inputs, input_qparams(quantized, plan))
    exported = None if shapes or program.state else lift_constants(quantized, inputs)
    if exported is None:
        with torch.no_grad():
            exported = torch.export.export(quantized, inputs, dynamic_shapes=shapes, strict=False)
    _reshapes_to_views(exported)
    return exported


def _reshapes_to_views(exported: torch.export.ExportedProgram) -> None:
    """reshape -> view where strides allow it: the decomposition then needs no tracing.

    Other reshapes stay: decomposed into clone and view, only one of the two would be inside the Q/DQ pair.
    """
    aten = torch.ops.aten
    for node in [n for n in exported.graph.nodes if n.target is aten.reshape.default]:
        x, shape = value_of(node.args[0]), value_of(node).shape
        if not has_symbols(x.shape) and not has_symbols(shape) and _can_view(x, shape):
            node.target = aten.view.default
    exported.graph_module.recompile()


def _can_view(x: torch.Tensor, shape: Any) -> bool:
    try:
        x.view(shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _dequantize_per_consumer(quantized: GraphModule) -> None:
    """One dequantize for each consumer: XNNPACK's layout pass would give all consumers the layout that one needs."""
    for node in [n for n in quantized.graph.nodes if "dequantize_per" in str(n.target)]:
        for user in list(node.users)[1:]:
            with quantized.graph.inserting_after(node):
                user.replace_input_with(node, quantized.graph.node_copy(node))
    quantized.recompile()
