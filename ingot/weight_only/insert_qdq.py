"""Insert quantized weights into a program, as the Q/DQ ops by which backends recognize dynamic quantization."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, constant_of, delete_unused_tensors, inherited_meta, value_of
from ingot.patches.fake_result_memo import ResultMemo, memoized_result
from ingot.weight_only.rounded_weight import RoundedWeight, code_range
from ingot.weight_only.scheme import WeightLayer
from ingot.weight_only.weight_transforms import NO_TRANSFORM, WeightTransform

aten = torch.ops.aten


def insert_weights(
    module: GraphModule, layers: tuple[WeightLayer, ...], rounded: Mapping[str, RoundedWeight], dynamic: bool
) -> None:
    """Replace float weights; dequantized values have the compute type.

    Each linear gets a quantize of its own: XNNPACK puts linears that share one into separate delegates.
    """
    _register_ops()
    nodes, insert = {n.name: n for n in module.graph.nodes}, _Inserter(module)
    for layer in layers:
        node = nodes[layer.name]
        if layer.kind == "embedding":
            insert.embedding(node, layer, rounded[layer.name])
            continue
        if dynamic and not is_dequantized(node.args[0]):
            node.update_arg(0, insert.quantized_per_token(node))
        node.update_arg(1, insert.dequantized_weight(node, layer, rounded[layer.name]))
    module.graph.eliminate_dead_code()
    delete_unused_tensors(module)  # the float weights
    module.recompile()


def insert_biases(module: GraphModule, transforms: Mapping[str, WeightTransform]) -> None:
    """Transformed biases of the linears whose output is rotated or scaled."""
    for node in list(module.graph.nodes):
        transform = transforms.get(node.name, NO_TRANSFORM)
        last = node.args[2] if len(node.args) > 2 and node.target is aten.linear.default else None
        bias = constant_of(last) if isinstance(last, Node) else None
        if bias is not None and (transform.output_rotation is not None or transform.output_scales is not None):
            node.update_arg(2, add_constant(module, transform.bias(bias), f"{node.name}_bias", node))


def _register_ops() -> None:
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401  quantized embeddings
    import torch.ao.quantization.fx._decomposed  # noqa: F401
    import torchao.quantization  # noqa: F401  quantize_affine and its counterparts


def is_dequantized(x: Any) -> bool:
    """The model quantizes this activation itself: it was quantized before capture."""
    return isinstance(x, Node) and x.target is torch.ops.torchao.dequantize_affine.default


class _Inserter:
    """Inserts into one program. Fake results of equal ops are memoized, since a decoder repeats its blocks."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.known = module, ResultMemo()

    def _call(self, before: Node, op: Any, *args: Any, **named: Any) -> Node:
        with before.graph.inserting_before(before):
            node = before.graph.call_function(op, args, named)
        node.meta = inherited_meta(before)
        node.meta["val"] = memoized_result(self.known, op, torch.fx.map_arg(args, value_of), named)
        return node

    def quantized_per_token(self, node: Node) -> Node:
        """The linear's input through int8 Q/DQ, with qparams chosen per token at run time."""
        ops, x, val = torch.ops.torchao, node.args[0], value_of(node.args[0])  # type: ignore[arg-type]
        block, form = [1] * (val.dim() - 1) + [val.shape[-1]], (torch.int8, -128, 127)
        kinds = (torch.finfo(torch.float32).eps, torch.float32, torch.int8)
        qparams = self._call(node, ops.choose_qparams_affine.default, x, "ASYMMETRIC", block, *form, *kinds)
        scale, zero = (self._call(node, operator.getitem, qparams, i) for i in (0, 1))
        stored = self._call(node, ops.quantize_affine.default, x, block, scale, zero, *form)
        return self._call(
            node, ops.dequantize_affine.default, stored, block, scale, zero, *form, output_dtype=val.dtype
        )

    def dequantized_weight(self, node: Node, layer: WeightLayer, r: RoundedWeight) -> Node:
        ops, (low, high) = torch.ops.quantized_decomposed, code_range(layer.bits)
        codes = add_constant(self.module, r.codes, f"{layer.name}_codes", node)
        if layer.group == layer.width:
            scales = add_constant(self.module, r.scales[:, 0], f"{layer.name}_scales", node)
            zeros = add_constant(self.module, torch.zeros(layer.rows, dtype=torch.int64), f"{layer.name}_zeros", node)
            return self._call(node, ops.dequantize_per_channel.default, codes, scales, zeros, 0, low, high, torch.int8)
        scales = add_constant(self.module, r.scales, f"{layer.name}_scales", node)
        zeros = add_constant(self.module, r.zero_points, f"{layer.name}_zeros", node)
        form = (low, high, torch.int8, layer.group, torch.float32)
        return self._call(node, ops.dequantize_per_channel_group.default, codes, scales, zeros, *form)

    def embedding(self, node: Node, layer: WeightLayer, r: RoundedWeight) -> None:
        """A lookup of integer rows, dequantized by a kernel of the runtime."""
        ops, (low, high) = torch.ops.quantized_decomposed, code_range(layer.bits)
        scales = add_constant(
            self.module, r.scales if layer.group < layer.width else r.scales[:, 0], f"{layer.name}_scales", node
        )
        indices: Any = node.args[1]
        if layer.bits == 8:
            codes = add_constant(self.module, r.codes, f"{layer.name}_codes", node)
            made = self._call(node, ops.embedding_byte.default, codes, scales, None, low, high, indices)
        else:
            codes = add_constant(self.module, r.packed_int4, f"{layer.name}_codes", node)
            made = self._call(
                node, ops.embedding_4bit.dtype, codes, scales, None, low, high, indices, dtype=torch.float32
            )
        node.replace_all_uses_with(made)
        self.module.graph.erase_node(node)
