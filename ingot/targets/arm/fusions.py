"""Which ops fuse on Ethos-U and VGF: a clamp (relu, relu6, hardtanh …) into the convolution or linear before it."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch.fx import Graph, Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.targets.arm.quantized_markers import is_quantize


def fuses(producer: Node, consumer: Node) -> bool:
    """One kernel, one output scale. Where saturation does not replace the clamp, `resolve_fused_clamps` keeps both."""
    return weight_axis(producer) is not None and clamp_limits(consumer) is not None


def clamp_limits(node: Node) -> tuple[float, float] | None:
    """(low, high) of an op that only clamps, found by running it on numbers; None: it does something else."""
    if not node.all_input_nodes or any(isinstance(a, Node) for a in (*node.args[1:], *node.kwargs.values())):
        return None
    return _clamp_limits(node.target, node.args[1:], tuple(node.kwargs.items()))


@cache
def _clamp_limits(op: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> tuple[float, float] | None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([-1e30, 1e30])])[:, None]  # reshape(-1) changes the shape
    try:
        y = op(x, *args, **dict(kwargs))
        low, high = float(y.min()), float(y.max())
        clamps = low < high and torch.equal(y, x.clamp(low, high)) and not torch.equal(y, x)
        return (low, high) if clamps else None
    except Exception:  # an op with other operands or of another rank
        return None


def resolve_fused_clamps(graph: Graph) -> None:
    """quantize(clamp(conv(x))) -> quantize(conv(x)) where the stored integers saturate at the clamp's limits.

    Elsewhere quantize(clamp(dequantize(quantize(conv(x))))). Arm's own pass drops a relu even where zero is not the
    lowest integer, and then nothing clamps.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.all_input_nodes]:
        producer, after = node.all_input_nodes[0], next(iter(node.users), node)
        if not is_quantize(after) or not fuses(producer, node):
            continue
        if _saturates_at(after, clamp_limits(node) or (0.0, 0.0)):
            node.replace_all_uses_with(producer)
            graph.erase_node(node)
        else:
            _quantize_between(producer, node, after)


def _saturates_at(quantize: Node, limits: tuple[float, float]) -> bool:
    _, scale, zero, _, _, dtype = cast(tuple[Any, float, int, int, int, torch.dtype], quantize.args[:6])
    low, high = (x / scale + zero for x in limits)
    integers = torch.iinfo(dtype)  # kernels saturate at the type's limits, even if qmin and qmax are narrower
    return round(low) <= integers.min and round(high) >= integers.max


def _quantize_between(producer: Node, activation: Node, after: Node) -> None:
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with activation.graph.inserting_before(activation):
        q = activation.graph.call_function(after.target, (producer, *after.args[1:]))  # type: ignore[arg-type]
        dq = activation.graph.call_function(dequantize, (q, *after.args[1:]))
    q.meta, dq.meta = dict(after.meta), dict(producer.meta)
    activation.replace_input_with(producer, dq)
