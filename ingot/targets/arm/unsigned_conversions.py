"""dequantize(uint8 x) -> dequantize(quantize_int8(dequantize(x))) before a float op; quantize to uint8 likewise

TOSA has no uint8: a RESCALE between two integer types reads or writes it, a conversion from or to float does not, and
took numbers above 127 for negative ones. The int8 value is the same number: scale s, zero point z - 128.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.core.fx import value_of
from ingot.targets.arm.quantized_markers import is_dequantize, is_quantize

OFFSET = 128  # between the same number in uint8 and in int8
Q = torch.ops.quantized_decomposed


def convert_through_int8(graph: Graph) -> None:
    for node in list(graph.nodes):
        if is_dequantize(node) and _is_uint8(node.args[0]) and not all(map(is_quantize, node.users)):
            _reread_as_int8(node)
        elif is_quantize(node) and _is_uint8(node) and not is_dequantize(node.all_input_nodes[0]):
            _requantize_from_int8(node)


def _is_uint8(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.dtype is torch.uint8


def _reread_as_int8(dequantize: Node) -> None:
    readers = [user for user in dequantize.users if not is_quantize(user)]
    with dequantize.graph.inserting_before(dequantize.next):
        stored, read = _int8_pair(dequantize.graph, dequantize, dequantize)
    for reader in readers:
        reader.replace_input_with(dequantize, read)
    stored.meta["val"] = value_of(dequantize).to(torch.int8)


def _requantize_from_int8(quantize: Node) -> None:
    """quantize(x) -> quantize(dequantize(quantize_int8(x)))"""
    x = quantize.all_input_nodes[0]
    with quantize.graph.inserting_before(quantize):
        stored, read = _int8_pair(quantize.graph, x, quantize)
    quantize.replace_input_with(x, read)
    stored.meta["val"] = value_of(quantize).to(torch.int8)
    read.meta["val"] = value_of(x)


def _int8_pair(graph: Graph, x: Node, like: Node) -> tuple[Node, Node]:
    scale, zero, low, high = like.args[1:5]
    qparams: Any = (scale, zero - OFFSET, low - OFFSET, high - OFFSET, torch.int8)  # type: ignore[operator]
    stored = graph.call_function(Q.quantize_per_tensor.default, (x, *qparams))
    read = graph.call_function(Q.dequantize_per_tensor.default, (stored, *qparams))
    stored.meta, read.meta = dict(like.meta), dict(like.meta)
    return stored, read
