"""Clamps for qparams whose range is narrower than the dtype: integer kernels saturate at the dtype's limits.

Example: snorm8 is int8 without -128. A convolution would still give -128, and a texture reads -128 and -127 as equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.core.fx import constant_of, inherited_meta, is_call
from ingot.plan.plan_data import Plan, QParams

QDQArgs = tuple[Any, ...]  # of a Q or DQ node: scale, zero point, qmin, qmax, dtype


def insert_range_clamps(quantized: GraphModule, plan: Plan, module: GraphModule, owned: Callable[[Node], bool]) -> None:
    """Insert a clamp before each quantize whose range is fixed by the user and narrower than its dtype.

    Not needed where an op only moves data that is within the range, or where its output cannot exceed the range. Ops
    that an extra backend owns get the range with their qparams. `module` is the graph before quantization.
    """
    wanted = {
        _qdq_args(d.qparams) for d in plan if d.fixed and d.qparams is not None and _is_narrower_than_dtype(d.qparams)
    }
    ops = {n.name: n for n in module.graph.nodes}
    for node in [n for n in quantized.graph.nodes if is_call(n, "quantize_per_tensor") and n.args[1:6] in wanted]:
        source = node.all_input_nodes[0]
        inside = owned(source) or _output_is_within(source, node) or _only_moves_data(source, node, ops)
        if source.op == "call_function" and not inside:
            _insert_clamp(source, node)
    quantized.recompile()


def _only_moves_data(source: Node, quantize: Node, ops: dict[str, Node]) -> bool:
    alike = all(is_call(n, "dequantize_per_tensor") and n.args[1:6] == quantize.args[1:6] for n in operands(source))
    op = ops.get(source.name) if alike else None
    return op is not None and effect_of(op, constant_of).kind in (Kind.MOVES, Kind.SELECTS)


def _qdq_args(s: QParams) -> QDQArgs:
    return s.scale, s.zero_point, s.qmin, s.qmax, getattr(torch, s.dtype)


def _is_narrower_than_dtype(s: QParams) -> bool:
    limits = torch.iinfo(getattr(torch, s.dtype))
    return s.axis is None and (s.qmin, s.qmax) != (limits.min, limits.max)


def _real_range(quantize: Node) -> tuple[float, float]:
    scale, zero, low, high = cast(tuple[float, int, int, int], quantize.args[1:5])
    return (low - zero) * scale, (high - zero) * scale


def _insert_clamp(source: Node, quantize: Node) -> None:
    """Quantize to the full dtype first, then clamp at the same scale: every backend has that kernel."""
    ops, graph = torch.ops.quantized_decomposed, quantize.graph
    scale, zero, dtype = cast(tuple[float, int, torch.dtype], (*quantize.args[1:3], quantize.args[5]))
    full = (scale, zero, torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype)
    with graph.inserting_before(quantize):
        stored = graph.call_function(ops.quantize_per_tensor.default, (source, *full))
        read = graph.call_function(ops.dequantize_per_tensor.default, (stored, *full))
        clamped = graph.call_function(torch.ops.aten.clamp.default, (read, *_real_range(quantize)))
    for made in (stored, read, clamped):
        made.meta = inherited_meta(quantize)
    clamped.meta["quantization_annotation"] = True  # it runs on integers
    quantize.update_arg(0, clamped)


def _output_is_within(node: Node, quantize: Node) -> bool:
    """The op's output stays in the range, as tanh does in [-1, 1]. Unary ops only, found by evaluating them."""
    plain = len(node.all_input_nodes) == 1 and not any(isinstance(a, Node) for a in node.args[1:]) and not node.kwargs
    try:
        output = _output_range(node.target, node.args[1:]) if plain else None
    except TypeError:  # a list argument is not hashable
        output = None
    half = 0.499 * cast(float, quantize.args[1])  # of a quantization step: what rounds to qmin or qmax is inside
    low, high = _real_range(quantize)
    return output is not None and low - half <= output[0] and output[1] <= high + half


@cache
def _output_range(op: Any, args: tuple[Any, ...]) -> tuple[float, float] | None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([-1e30, 1e30])])
    try:
        y = op(x, *args)
        return float(y.min()), float(y.max())
    except Exception:  # it takes other operands or another rank
        return None
