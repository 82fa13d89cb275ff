"""The graph that Arm's partitioner is queried with: each op by itself, once for each precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, is_float, value_of
from ingot.targets.arm.device import FORMATS
from ingot.targets.arm.quantized_markers import is_qdq

SCALE = 1 / 64  # any scale: nothing is computed


def op_signature(node: Node) -> str:
    """All that the partitioner can look at: op, arguments, shapes and types of operands, which are constants."""

    def shape(n: Node) -> Any:
        val = value_of(n)
        kind = (tuple(map(str, val.shape)), val.dtype) if isinstance(val, torch.Tensor) else op_signature(n)
        return (kind, constant_of(n) is not None)

    return str((node.target, torch.fx.map_arg(node.args, shape), torch.fx.map_arg(node.kwargs, shape)))


@dataclass
class QueryGraph:
    """Add ops, then export. The outputs are in the order of `keys`."""

    graph: Graph = field(default_factory=Graph)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    inputs: list[torch.Tensor] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)  # (signature, precision)
    outputs: list[Node] = field(default_factory=list)

    def add(self, key: str, node: Node, precision: str) -> None:
        out = self._copy(node, precision)
        if not is_float(node) and value_of(node).dtype is torch.int64:  # the device has 32 bits: see narrow_argmax.py
            out = self.graph.call_function(torch.ops.aten._to_copy.default, (out,), {"dtype": torch.int32})
        self.outputs.append(self._quantized(out, precision) if precision != "float" and is_float(node) else out)
        self.keys.append((key, precision))

    def _copy(self, node: Node, precision: str) -> Node:
        """The op with new operands; for a getitem also the op that it reads."""
        copies = {n: self._operand(node, n, i, precision) for i, n in enumerate(operands(node))}
        args, kwargs = (torch.fx.map_arg(a, lambda n: copies[n]) for a in (node.args, node.kwargs))
        return self.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]

    def _operand(self, node: Node, n: Node, i: int, precision: str) -> Node:
        if not isinstance(value_of(n), torch.Tensor):
            return self._copy(n, precision)
        constant = constant_of(n)
        if precision == "float" or not is_float(n):
            return self._input(n, value_of(n).dtype) if constant is None else self._constant(constant)
        if constant is None:
            return self._dequantized(self._input(n, getattr(torch, precision)), precision)
        return self._quantized_constant(constant, weight_axis(node), i, precision)

    def _quantized_constant(self, constant: torch.Tensor, axis: int | None, i: int, precision: str) -> Node:
        """As the plan will have it: weights and biases per channel, other constants per tensor."""
        if axis is not None and i in (1, 2):
            return self._per_channel(constant, "int8" if i == 1 else "int32", axis if i == 1 else 0)
        integers = self._constant(torch.zeros(constant.shape, dtype=getattr(torch, precision)))
        return self._dequantized(integers, precision)

    def _input(self, n: Node, dtype: torch.dtype) -> Node:
        self.inputs.append(torch.zeros(tuple(value_of(n).shape), dtype=dtype))
        return self.graph.create_node("placeholder", f"x{len(self.inputs)}")

    def _constant(self, tensor: torch.Tensor) -> Node:
        name = f"c{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor.detach().clone())
        return self.graph.get_attr(name)

    def _quantized(self, x: Node, precision: str) -> Node:
        form, q = FORMATS[precision], torch.ops.quantized_decomposed.quantize_per_tensor.default
        return self.graph.call_function(q, (x, SCALE, 0, form.qmin, form.qmax, getattr(torch, precision)))

    def _dequantized(self, x: Node, precision: str) -> Node:
        form, dq = FORMATS[precision], torch.ops.quantized_decomposed.dequantize_per_tensor.default
        return self.graph.call_function(dq, (x, SCALE, 0, form.qmin, form.qmax, getattr(torch, precision)))

    def _per_channel(self, constant: torch.Tensor, dtype: str, axis: int) -> Node:
        kind, many = getattr(torch, dtype), constant.shape[axis]
        integers = self._constant(torch.zeros(constant.shape, dtype=kind))
        scales, zeros = self._constant(torch.full((many,), SCALE)), self._constant(torch.zeros(many, dtype=torch.int64))
        limits, dq = torch.iinfo(kind), torch.ops.quantized_decomposed.dequantize_per_channel.default
        return self.graph.call_function(dq, (integers, scales, zeros, axis, limits.min + 1, limits.max, kind))

    def exported(self) -> Any:
        import torch.ao.quantization.fx._decomposed  # declares the quantize and dequantize ops

        self.graph.output(tuple(self.outputs))
        module = _placeholders_first(self.root, self.graph)
        with torch.no_grad():
            return torch.export.export(module, tuple(self.inputs), strict=False)


def _placeholders_first(root: torch.nn.Module, graph: Graph) -> GraphModule:
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if n.op == "placeholder"]:
        if node is not first:
            first.append(node)
            first = node
    return GraphModule(root, graph)


def ops_before(output: Node) -> Iterator[Node]:
    """The ops from which an output is computed, without Q/DQ."""
    seen, todo = set(), [output]
    while todo:
        node = todo.pop()
        if node in seen or node.op != "call_function":
            continue
        seen.add(node)
        todo += node.all_input_nodes
        if not is_qdq(node):
            yield node
