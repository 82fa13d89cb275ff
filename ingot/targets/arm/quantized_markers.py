"""Markers of quantized ops. Arm's passes fold Q/DQ only into ops with the marker of Arm's quantizer."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from ingot.core.fx import converts, value_of


def mark_quantized(graph: Graph) -> None:
    """Mark each op whose inputs are all dequantized and whose result is quantized, as Arm's quantizer does."""
    key, marker = _marker()
    for node in graph.nodes:
        if node.op == "call_function" and not is_qdq(node) and _is_quantized(node):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), key: marker}


def is_marked_quantized(node: Node) -> bool:
    return _marker()[0] in (node.meta.get("custom") or {})


def _marker() -> tuple[str, dict[str, object]]:
    from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo

    return ArmAnnotationInfo.CUSTOM_META_KEY, dict(ArmAnnotationInfo(quantized=True))


def _is_quantized(node: Node) -> bool:
    """A float op between integer ops has the same Q/DQ around it: only the plan tells the two apart."""
    planned_float = (node.meta.get("custom") or {}).get("ingot") == "float"
    if planned_float or _casts_integers(node):
        return False
    return _reads_integers(node) and (_writes_integers(node) or _decides(node))


def _casts_integers(node: Node) -> bool:
    """Integers that are numbers, not codes of numbers: the cast itself is float arithmetic."""
    return converts(node) and not any(map(is_dequantize, node.all_input_nodes))


def _decides(node: Node) -> bool:
    """A comparison or an argmax of dequantized values: its result has no Q/DQ."""
    val = _first_tensor(node)
    integers = val is not None and not val.dtype.is_floating_point and not converts(node)
    return integers and any(map(is_dequantize, node.all_input_nodes))


def _reads_integers(node: Node) -> bool:
    read = [n for n in node.all_input_nodes if _first_tensor(n) is not None]
    return bool(read) and all(_is_integer_operand(n) for n in read)


def _is_integer_operand(node: Node) -> bool:
    """Dequantized, of an integer type, or the result of a marked op (for a getitem)."""
    val = _first_tensor(node)
    return is_dequantize(node) or (val is not None and not val.dtype.is_floating_point) or is_marked_quantized(node)


def _first_tensor(node: Node) -> torch.Tensor | None:
    """The value, or the first of a tuple; None: no tensor."""
    val = value_of(node)
    first = val[0] if isinstance(val, (tuple, list)) and val else val
    return first if isinstance(first, torch.Tensor) else None


def _writes_integers(node: Node) -> bool:
    return bool(node.users) and all(_is_integer_result(node, user) for user in node.users)


def _is_integer_result(node: Node, user: Node) -> bool:
    if user.target is operator.getitem:
        return _writes_integers(user)
    return is_quantize(user)


def is_quantize(node: Node) -> bool:
    return op_name(node).startswith("quantize_per")


def is_dequantize(node: Node) -> bool:
    return op_name(node).startswith("dequantize_per")


def is_qdq(node: Node) -> bool:
    return is_quantize(node) or is_dequantize(node)


def op_name(node: Node) -> str:
    """permute_copy.default, for an op of ATen or of the edge dialect."""
    name = str(getattr(node.target, "__name__", node.target))
    return name.removeprefix("aten.").removeprefix("quantized_decomposed.")
