"""Plan -> torchao specs -> prepare -> convert, then an audit that it is the plan."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, copied, fresh_name, inherited_meta
from ingot.plan.model import Decision, Plan, QParams, QuantizationPoint, as_float32
from ingot.quantize.audit import audit, qdq_chain


def quantize(module: GraphModule, plan: Plan, *, float_bias: bool) -> GraphModule:
    """The program with every slot of the plan quantized and dequantized by fixed numbers.

    With `float_bias` a bias stays a float constant, rounded to the int32 steps that the backend will count it in.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    work = copied(module)
    _correct_biases(work, plan)
    plan = _round_biases(work, plan) if float_bias else _float32_biases(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao warns about its own deprecations
        prepared = prepare_pt2e(work, plan_quantizer(_fixed_spec, plan))
        converted = convert_pt2e(prepared)
    _requantize_operands(converted, plan)
    _quantize_outputs(converted, plan)
    audit(converted, module, plan)
    return converted


def _quantize_outputs(converted: GraphModule, plan: Plan) -> None:
    """Round what is returned as the plan says; torchao looks at ops only."""
    last = next(n for n in reversed(converted.graph.nodes) if n.op == "output")
    places = iter(range(len(operands(last))))

    def stored(node: Node) -> Node:
        storage = plan.qparams("output", next(places))
        return node if storage is None or qdq_chain(node)[0][-1:] == [storage] else _insert_qdq(node, storage, last)

    last.args = (torch.fx.map_arg(last.args[0], stored),)
    converted.recompile()


def _insert_qdq(node: Node, s: QParams, before: Node) -> Node:
    import torch.ao.quantization.fx._decomposed

    ops, numbers = torch.ops.quantized_decomposed, (s.scale, s.zero_point, s.qmin, s.qmax, getattr(torch, s.dtype))
    with node.graph.inserting_before(before):
        q = node.graph.call_function(ops.quantize_per_tensor.default, (node, *numbers))
        dq = node.graph.call_function(ops.dequantize_per_tensor.default, (q, *numbers))
    q.meta, dq.meta = inherited_meta(node), inherited_meta(node)
    return dq


def _correct_biases(module: GraphModule, plan: Plan) -> None:
    by_name = {n.name: n for n in module.graph.nodes}
    for name, shift in plan.bias_corrections.items():
        node = operands(by_name[name])[2]
        bias = constant_of(node)
        assert bias is not None  # validated
        moved = fresh_name(module, f"{node.name}_shifted")
        module.register_buffer(moved, bias.detach() + torch.tensor(shift, dtype=bias.dtype))
        node.target = moved


def _round_biases(module: GraphModule, plan: Plan) -> Plan:
    """Put each int32 bias on its grid; the plan that is left to replay has none."""
    by_name = {n.name: n for n in module.graph.nodes}
    for d in plan:
        if d.qparams is not None and d.qparams.dtype == "int32" and d.point.operand is not None:
            _round_bias(module, operands(by_name[d.point.node])[d.point.operand], d.qparams)
    left = tuple(d if d.qparams is None or d.qparams.dtype != "int32" else replace(d, qparams=None) for d in plan)
    return replace(plan, decisions=left)


def _float32_biases(plan: Plan) -> Plan:
    """A bias that the graph itself quantizes has float32 scales, as its quantize op does."""

    def rounded(d: Decision) -> Decision:
        if d.qparams is None or d.qparams.dtype != "int32":
            return d
        return replace(d, qparams=replace(d.qparams, scale=as_float32(d.qparams.scale)))

    return replace(plan, decisions=tuple(map(rounded, plan)))


def _round_bias(module: GraphModule, node: Node, storage: QParams) -> None:
    bias = constant_of(node)
    assert bias is not None  # the solver plans a bias only where it is a constant
    scale = torch.tensor(storage.scale, dtype=torch.float64)
    steps = (bias.detach().double() / scale).round().clamp(storage.qmin, storage.qmax)
    name = fresh_name(module, f"{node.name}_rounded")
    module.register_buffer(name, (steps * scale).to(bias.dtype))
    node.target = name


def plan_quantizer(spec: Callable[[QuantizationPoint, QParams], Any], plan: Plan) -> Any:
    """A quantizer that annotates exactly what the plan says, with the spec that is made for each slot."""
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    class Replay(Quantizer):
        def annotate(self, model: GraphModule) -> GraphModule:
            for node in model.graph.nodes:
                stored = plan.qparams(node.name)
                inputs, output = _input_specs(node, plan, spec), stored and spec(QuantizationPoint(node.name), stored)
                if inputs or output is not None:
                    note = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)
                    node.meta[Q_ANNOTATION_KEY] = note
            return model

        def validate(self, model: GraphModule) -> None:
            return None

    return Replay()


def _input_specs(node: Node, plan: Plan, spec: Callable[[QuantizationPoint, QParams], Any]) -> dict[Node, Any]:
    """torchao keys by node, not by position: what is read at two scales is left to us."""
    reads = _points_by_operand(node, plan) if node.op == "call_function" else {}
    alike = {n: slots[0] for n, slots in reads.items() if len({plan.qparams(s.node, s.operand) for s in slots}) == 1}
    stored = {n: (slot, s) for n, slot in alike.items() if (s := plan.qparams(slot.node, slot.operand)) is not None}
    return {n: made for n, (slot, s) in stored.items() if (made := spec(slot, s)) is not None}


def _points_by_operand(node: Node, plan: Plan) -> dict[Node, list[QuantizationPoint]]:
    """The slots at which a node reads each value."""
    found: dict[Node, list[QuantizationPoint]] = {}
    for i, operand in enumerate(operands(node)):
        found.setdefault(operand, []).append(QuantizationPoint(node.name, i))
    return found


def _requantize_operands(converted: GraphModule, plan: Plan) -> None:
    """f(x, x) with a scale of its own for each position."""
    for node in [n for n in converted.graph.nodes if n.op == "call_function"]:
        for slots in _points_by_operand(node, plan).values():
            if len({plan.qparams(s.node, s.operand) for s in slots}) > 1:
                _insert_operand_qdq(node, plan)
                break


def _insert_operand_qdq(node: Node, plan: Plan) -> None:
    places = iter(range(len(operands(node))))

    def rounded(n: Node) -> Node:
        storage = plan.qparams(node.name, next(places))
        return n if storage is None or qdq_chain(n)[0][-1:] == [storage] else _insert_qdq(n, storage, node)

    node.args = torch.fx.map_arg(node.args, rounded)


def _fixed_spec(_slot: QuantizationPoint, storage: QParams) -> Any:
    """Nothing is observed: every number is given."""
    from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec, QuantizationSpec

    dtype, low, high = getattr(torch, storage.dtype), storage.qmin, storage.qmax
    if storage.axis is None:
        return FixedQParamsQuantizationSpec(
            dtype,
            storage.scale,
            storage.zero_point,
            low,
            high,
            torch.per_tensor_affine,  # type: ignore[arg-type]
        )
    observer = _fixed_per_channel_observer(storage)
    return QuantizationSpec(dtype, observer, low, high, torch.per_channel_symmetric, storage.axis)


def _fixed_per_channel_observer(storage: QParams) -> Any:
    """torchao has a fixed spec per tensor only: an observer that looks at nothing serves for channels."""
    from torchao.quantization.pt2e.observer import PerChannelMinMaxObserver

    class GivenPerChannelObserver(PerChannelMinMaxObserver):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor(storage.scale), torch.tensor(storage.zero_point, dtype=torch.int64)

    return GivenPerChannelObserver
