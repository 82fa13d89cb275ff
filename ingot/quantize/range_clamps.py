"""QParams that uses fewer numbers than its type holds: integer kernels know the type's limits only.

An int8 convolution that stores snorm8 gives -128 where the plan says -127, and a texture reads the two as the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import Kind, effect_of, operands
from ingot.core.fx import constant_of, inherited_meta, is_call
from ingot.plan.model import Plan, QParams

QDQArgs = tuple[Any, ...]  # of a rounding: scale, zero point, lowest, highest, type


def insert_range_clamps(quantized: GraphModule, plan: Plan, module: GraphModule, owned: Callable[[Node], bool]) -> None:
    """A clamp before each quantize whose range was asked for and is narrower than its type; in place.

    Not where the numbers were in that range before and are only moved, nor where an op cannot leave it; and another
    backend quantizes what it gives by itself, and is given the range. `module` is what was quantized.
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
    """Stored in the whole type first: a clamp of one scale is a kernel that every backend has."""
    ops, graph = torch.ops.quantized_decomposed, quantize.graph
    scale, zero, dtype = cast(tuple[float, int, torch.dtype], (*quantize.args[1:3], quantize.args[5]))
    whole = (scale, zero, torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype)
    with graph.inserting_before(quantize):
        stored = graph.call_function(ops.quantize_per_tensor.default, (source, *whole))
        read = graph.call_function(ops.dequantize_per_tensor.default, (stored, *whole))
        clamped = graph.call_function(torch.ops.aten.clamp.default, (read, *_real_range(quantize)))
    for made in (stored, read, clamped):
        made.meta = inherited_meta(quantize)
    clamped.meta["quantization_annotation"] = True  # planned to be on integers
    quantize.update_arg(0, clamped)


def _output_is_within(node: Node, quantize: Node) -> bool:
    """tanh needs no clamp to stay between -1 and 1: tried, for ops of one value and plain numbers."""
    plain = len(node.all_input_nodes) == 1 and not any(isinstance(a, Node) for a in node.args[1:]) and not node.kwargs
    try:
        reach = _output_range(node.target, node.args[1:]) if plain else None
    except TypeError:  # a list among its arguments
        reach = None
    half = 0.499 * cast(float, quantize.args[1])  # of a step: what rounds to the last number is inside
    low, high = _real_range(quantize)
    return reach is not None and low - half <= reach[0] and reach[1] <= high + half


@cache
def _output_range(op: Any, args: tuple[Any, ...]) -> tuple[float, float] | None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([-1e30, 1e30])])
    try:
        y = op(x, *args)
        return float(y.min()), float(y.max())
    except Exception:  # an op of other operands, or of other ranks
        return None
