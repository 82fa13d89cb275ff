"""Linears and embeddings of a program with integer weights, in the ops that backends know dynamic quantization by."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.core.fx import add_constant, constant_of, drop_unused, inherited_meta, value_of
from ingot.patches.fake_result_memo import ResultMemo, memoized_result
from ingot.weight_only.gptq import Rounded, limits
from ingot.weight_only.scheme import Layer
from ingot.weight_only.weight_transforms import NONE, Change

aten = torch.ops.aten


def put_weights(made: GraphModule, layers: tuple[Layer, ...], rounded: Mapping[str, Rounded], dynamic: bool) -> None:
    """Into the program; what is dequantized has the type that it is computed in.

    Each linear rounds what it reads by itself: of those that share it XNNPACK makes delegates of their own.
    """
    _declare()
    nodes, put = {n.name: n for n in made.graph.nodes}, _Put(made)
    for layer in layers:
        node = nodes[layer.name]
        if layer.kind == "embedding":
            put.embedding(node, layer, rounded[layer.name])
            continue
        if dynamic and not rounded_by_model(node.args[0]):
            node.update_arg(0, put.by_token(node))
        node.update_arg(1, put.weight(node, layer, rounded[layer.name]))
    made.graph.eliminate_dead_code()
    drop_unused(made)  # the float weights
    made.recompile()


def put_biases(made: GraphModule, changes: Mapping[str, Change]) -> None:
    """Of linears that give another value than they did."""
    for node in list(made.graph.nodes):
        change = changes.get(node.name, NONE)
        last = node.args[2] if len(node.args) > 2 and node.target is aten.linear.default else None
        bias = constant_of(last) if isinstance(last, Node) else None
        if bias is not None and (change.outside is not None or change.rows is not None):
            node.update_arg(2, add_constant(made, change.bias(bias), f"{node.name}_bias", node))


def _declare() -> None:
    import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401  embeddings of integers
    import torch.ao.quantization.fx._decomposed  # noqa: F401
    import torchao.quantization  # noqa: F401  quantize_affine and its kin


def rounded_by_model(x: Any) -> bool:
    """The model does so itself: somebody quantized it before."""
    return isinstance(x, Node) and x.target is torch.ops.torchao.dequantize_affine.default


class _Put:
    """What is put into one program; results of ops that look the same are looked up, a decoder repeats itself."""

    def __init__(self, module: GraphModule) -> None:
        self.module, self.known = module, ResultMemo()

    def _call(self, before: Node, op: Any, *args: Any, **named: Any) -> Node:
        with before.graph.inserting_before(before):
            node = before.graph.call_function(op, args, named)
        node.meta = inherited_meta(before)
        node.meta["val"] = memoized_result(self.known, op, torch.fx.map_arg(args, value_of), named)
        return node

    def by_token(self, node: Node) -> Node:
        """What it reads, rounded to int8, the range of each token found when it runs."""
        ops, x, val = torch.ops.torchao, node.args[0], value_of(node.args[0])  # type: ignore[arg-type]
        block, numbers = [1] * (val.dim() - 1) + [val.shape[-1]], (torch.int8, -128, 127)
        kinds = (torch.finfo(torch.float32).eps, torch.float32, torch.int8)
        chosen = self._call(node, ops.choose_qparams_affine.default, x, "ASYMMETRIC", block, *numbers, *kinds)
        scale, zero = (self._call(node, operator.getitem, chosen, i) for i in (0, 1))
        stored = self._call(node, ops.quantize_affine.default, x, block, scale, zero, *numbers)
        return self._call(
            node, ops.dequantize_affine.default, stored, block, scale, zero, *numbers, output_dtype=val.dtype
        )

    def weight(self, node: Node, layer: Layer, r: Rounded) -> Node:
        ops, (low, high) = torch.ops.quantized_decomposed, limits(layer.bits)
        codes = add_constant(self.module, r.codes, f"{layer.name}_codes", node)
        if layer.group == layer.width:
            scales = add_constant(self.module, r.scales[:, 0], f"{layer.name}_scales", node)
            zeros = add_constant(self.module, torch.zeros(layer.rows, dtype=torch.int64), f"{layer.name}_zeros", node)
            return self._call(node, ops.dequantize_per_channel.default, codes, scales, zeros, 0, low, high, torch.int8)
        scales = add_constant(self.module, r.scales, f"{layer.name}_scales", node)
        zeros = add_constant(self.module, r.zeros, f"{layer.name}_zeros", node)
        numbers = (low, high, torch.int8, layer.group, torch.float32)
        return self._call(node, ops.dequantize_per_channel_group.default, codes, scales, zeros, *numbers)

    def embedding(self, node: Node, layer: Layer, r: Rounded) -> None:
        """Rows are looked up as integers; the kernel is the runtime's own."""
        ops, (low, high) = torch.ops.quantized_decomposed, limits(layer.bits)
        scales = add_constant(
            self.module, r.scales if layer.group < layer.width else r.scales[:, 0], f"{layer.name}_scales", node
        )
        indices: Any = node.args[1]
        if layer.bits == 8:
            codes = add_constant(self.module, r.codes, f"{layer.name}_codes", node)
            made = self._call(node, ops.embedding_byte.default, codes, scales, None, low, high, indices)
        else:
            codes = add_constant(self.module, r.packed, f"{layer.name}_codes", node)
            made = self._call(
                node, ops.embedding_4bit.dtype, codes, scales, None, low, high, indices, dtype=torch.float32
            )
        node.replace_all_uses_with(made)
        self.module.graph.erase_node(node)
