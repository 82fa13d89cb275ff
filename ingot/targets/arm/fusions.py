"""Which ops run on integers: Arm's passes fold quantize and dequantize into the ops that its quantizer has marked."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, cast

import torch
from torch.fx import Graph, Node

from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import value_of


def mark(graph: Graph) -> None:
    """Mark every op that reads only dequantized values and whose result is quantized, as Arm's quantizer would."""
    key, note = _marks()
    for node in graph.nodes:
        if node.op == "call_function" and not is_rounding(node) and _on_integers(node):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), key: note}


def is_marked(node: Node) -> bool:
    return _marks()[0] in (node.meta.get("custom") or {})


def _marks() -> tuple[str, dict[str, object]]:
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo

    return ArmAnnotationInfo.CUSTOM_META_KEY, dict(ArmAnnotationInfo(quantized=True))


def _on_integers(node: Node) -> bool:
    """Planned so: a float op that is read by integers stands between the same roundings."""
    planned_float = (node.meta.get("custom") or {}).get("ingot") == "float"
    return not planned_float and _reads_integers(node) and _writes_integers(node)


def _reads_integers(node: Node) -> bool:
    read = [n for n in node.all_input_nodes if _first(n) is not None]
    return bool(read) and all(_arrives_as_integers(n) for n in read)


def _arrives_as_integers(node: Node) -> bool:
    """Dequantized, no float at all, or handed over inside one kernel (a getitem)."""
    val = _first(node)
    return is_dequantize(node) or (val is not None and not val.dtype.is_floating_point) or is_marked(node)


def _first(node: Node) -> torch.Tensor | None:
    """The value, or the first of several; None where it is no tensor."""
    val = value_of(node)
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return first if isinstance(first, torch.Tensor) else None


def _writes_integers(node: Node) -> bool:
    return bool(node.users) and all(_leaves_as_integers(node, user) for user in node.users)


def _leaves_as_integers(node: Node, user: Node) -> bool:
    if user.target is operator.getitem:
        return _writes_integers(user)
    return is_quantize(user)


def fuses(producer: Node, activation: Node) -> bool:
    """A clamp after a convolution or a linear: what it cuts off need not be stored (see `separate`)."""
    return weight_axis(producer) is not None and limits(activation) is not None


def limits(node: Node) -> tuple[float, float] | None:
    """(low, high) of an op that does nothing but clamp (relu, relu6, hardtanh, clamp …), found by trying it."""
    if not node.all_input_nodes or any(isinstance(a, Node) for a in (*node.args[1:], *node.kwargs.values())):
        return None
    return _limits(node.target, node.args[1:], tuple(node.kwargs.items()))


@cache
def _limits(op: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> tuple[float, float] | None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([-1e30, 1e30])])
    try:
        y = op(x, *args, **dict(kwargs))
        low, high = float(y.min()), float(y.max())
        return (low, high) if low < high and torch.equal(y, x.clamp(low, high)) else None
    except Exception:  # an op of other operands, or of other ranks
        return None


def separate(graph: Graph) -> None:
    """clamp(conv(x)) is conv(x) where storing it cuts off the same, and else what the convolution makes is stored too.

    Arm's own pass is not left to it: it drops a relu even where zero is not the lowest step, and nothing else cuts off.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.all_input_nodes]:
        producer, after = node.all_input_nodes[0], next(iter(node.users), node)
        if not is_quantize(after) or not fuses(producer, node):
            continue
        if _cut_off_by(after, limits(node) or (0.0, 0.0)):
            node.replace_all_uses_with(producer)
            graph.erase_node(node)
        else:
            _store_between(producer, node, after)


def _cut_off_by(quantize: Node, between: tuple[float, float]) -> bool:
    _, scale, zero, _, _, dtype = cast(tuple[Any, float, int, int, int, torch.dtype], quantize.args[:6])
    least, most = (x / scale + zero for x in between)
    limits = torch.iinfo(dtype)  # what kernels cut off at, however narrow the plan's range is
    return round(least) <= limits.min and round(most) >= limits.max


def _store_between(producer: Node, activation: Node, after: Node) -> None:
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with activation.graph.inserting_before(activation):
        stored = activation.graph.call_function(after.target, (producer, *after.args[1:]))  # type: ignore[arg-type]
        read = activation.graph.call_function(dequantize, (stored, *after.args[1:]))
    stored.meta, read.meta = dict(after.meta), dict(producer.meta)
    activation.replace_input_with(producer, read)


def is_quantize(node: Node) -> bool:
    return op_name(node).startswith("quantize_per")


def is_dequantize(node: Node) -> bool:
    return op_name(node).startswith("dequantize_per")


def is_rounding(node: Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def op_name(node: Node) -> str:
    """permute_copy.default, of an op of ATen or of the edge dialect."""
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")
