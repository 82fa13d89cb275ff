"""Replays a plan through PT2E: plan -> torchao specs -> prepare -> convert -> audit."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.core.fx import constant_of, copy_graph_module, fresh_name, inherited_meta, is_state
from ingot.patches.speed_contexts import fast_convert
from ingot.plan.plan_data import Decision, Plan, QParams, QuantizationPoint, as_float32
from ingot.plan.rounded_weights import rounded_weight
from ingot.quantize.audit import audit, qdq_chain
from ingot.quantize.dynamic_activations import insert_dynamic_quantization

State = Mapping[str, tuple[str, torch.Tensor]]  # by node: path and buffer


def quantize(module: GraphModule, plan: Plan, *, float_bias: bool) -> GraphModule:
    """The Q/DQ graph of the program: a Q/DQ pair with fixed qparams at every quantization point of the plan.

    With `float_bias` a bias stays a float constant, rounded to the int32 grid that the backend will use.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    work = copy_graph_module(module)
    _correct_biases(work, plan)
    _round_weights(work, plan)
    plan = _round_biases(work, plan) if float_bias else _float32_biases(plan)
    _one_attribute_per_quantized_constant(work, plan)
    constants = {n.name: t for n in work.graph.nodes if (t := constant_of(n)) is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao warns about its own deprecations
        state = _state_as_inputs(work)
        prepared = prepare_pt2e(work, plan_quantizer(_fixed_spec, plan))
        with fast_convert():
            converted = convert_pt2e(prepared)
        _inputs_as_state(converted, state)
    _requantize_operands(converted, plan)
    _quantize_outputs(converted, plan)
    audit(converted, module, plan, constants)
    insert_dynamic_quantization(converted, module, plan)
    return converted


def _state_as_inputs(module: GraphModule) -> State:
    """Buffers that the program writes, by node: torchao would fold what reads them, at their initial values."""
    state = {n.name: (str(n.target), module.get_buffer(n.target)) for n in module.graph.nodes if is_state(n)}
    for node in [n for n in module.graph.nodes if is_state(n)]:
        node.op, node.target = "placeholder", node.name
    module.recompile()
    return state


def _inputs_as_state(module: GraphModule, state: State) -> None:
    from torch.fx.graph_module import _assign_attr

    for node in [n for n in module.graph.nodes if n.op == "placeholder" and n.name in state]:
        node.op, (node.target, buffer) = "get_attr", state[node.name]
        _assign_attr(buffer, module, node.target)
    module.recompile()


def _quantize_outputs(converted: GraphModule, plan: Plan) -> None:
    """Insert the planned Q/DQ pairs of the outputs: torchao annotates ops only."""
    last = next(n for n in reversed(converted.graph.nodes) if n.op == "output")
    places = iter(range(len(operands(last))))

    def quantized(node: Node) -> Node:
        qparams = plan.qparams("output", next(places))
        return node if qparams is None or qdq_chain(node)[0][-1:] == [qparams] else _insert_qdq(node, qparams, last)

    last.args = (torch.fx.map_arg(last.args[0], quantized),)
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


def _one_attribute_per_quantized_constant(module: GraphModule, plan: Plan) -> None:
    """torchao folds a quantized constant and deletes its attribute, even if a float one of the same name remains."""
    uses = Counter(n.target for n in module.graph.nodes if n.op == "get_attr")
    for node in [n for n in module.graph.nodes if n.op == "get_attr" and uses[n.target] > 1]:
        tensor, read = constant_of(node), (operands(u) for u in node.users)
        points = [(u, i) for u, given in zip(node.users, read, strict=True) for i, n in enumerate(given) if n is node]
        if tensor is not None and any(plan.qparams(u.name, i) is not None for u, i in points):
            node.target = fresh_name(module, str(node.target))
            module.register_buffer(node.target, tensor.detach())


def _round_weights(module: GraphModule, plan: Plan) -> None:
    """Weights that are not rounded to the nearest code: these become the numbers that their codes stand for."""
    by_name = {n.name: n for n in module.graph.nodes}
    for name, codes in plan.rounded_weights.items():
        source, qparams = operands(by_name[name])[1], plan.qparams(name, 1)
        weight = constant_of(source)
        assert weight is not None  # validated
        assert qparams is not None
        made = fresh_name(module, f"{source.name}_rounded")
        module.register_buffer(made, rounded_weight(codes, weight, qparams, name).to(weight.dtype))
        source.target = made


def _round_biases(module: GraphModule, plan: Plan) -> Plan:
    """Round each int32 bias to its grid; the returned plan has no biases."""
    by_name = {n.name: n for n in module.graph.nodes}
    for d in plan:
        if d.qparams is not None and d.qparams.dtype == "int32" and d.point.operand is not None:
            _round_bias(module, operands(by_name[d.point.node])[d.point.operand], d.qparams)
    others = tuple(d if d.qparams is None or d.qparams.dtype != "int32" else replace(d, qparams=None) for d in plan)
    return replace(plan, decisions=others)


def _float32_biases(plan: Plan) -> Plan:
    """Biases with float32 scales: the quantize op stores its scale in float32."""

    def rounded(d: Decision) -> Decision:
        if d.qparams is None or d.qparams.dtype != "int32":
            return d
        return replace(d, qparams=replace(d.qparams, scale=as_float32(d.qparams.scale)))

    return replace(plan, decisions=tuple(map(rounded, plan)))


def _round_bias(module: GraphModule, node: Node, qparams: QParams) -> None:
    bias = constant_of(node)
    assert bias is not None  # only constant biases are planned
    scale = torch.tensor(qparams.scale, dtype=torch.float64)
    steps = (bias.detach().double() / scale).round().clamp(qparams.qmin, qparams.qmax)
    name = fresh_name(module, f"{node.name}_rounded")
    module.register_buffer(name, (steps * scale).to(bias.dtype))
    node.target = name


def plan_quantizer(spec: Callable[[QuantizationPoint, QParams], Any], plan: Plan) -> Any:
    """A torchao quantizer that annotates the plan's quantization points, each with `spec(point, qparams)`."""
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    class Replay(Quantizer):
        def annotate(self, model: GraphModule) -> GraphModule:
            for node in model.graph.nodes:
                qparams = plan.qparams(node.name)
                inputs, output = _input_specs(node, plan, spec), qparams and spec(QuantizationPoint(node.name), qparams)
                if inputs or output is not None:
                    note = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)
                    node.meta[Q_ANNOTATION_KEY] = note
            return model

        def validate(self, model: GraphModule) -> None:
            return None

    return Replay()


def _input_specs(node: Node, plan: Plan, spec: Callable[[QuantizationPoint, QParams], Any]) -> dict[Node, Any]:
    """By operand: its spec. torchao keys by node, so an operand that is read at two scales is left out here."""
    reads = _points_by_operand(node, plan) if node.op == "call_function" else {}
    alike = {n: points[0] for n, points in reads.items() if len({plan.qparams(s.node, s.operand) for s in points}) == 1}
    stored = {n: (point, s) for n, point in alike.items() if (s := plan.qparams(point.node, point.operand)) is not None}
    return {n: made for n, (point, s) in stored.items() if (made := spec(point, s)) is not None}


def _points_by_operand(node: Node, plan: Plan) -> dict[Node, list[QuantizationPoint]]:
    """By operand: the quantization points at which the node reads it."""
    found: dict[Node, list[QuantizationPoint]] = {}
    for i, operand in enumerate(operands(node)):
        found.setdefault(operand, []).append(QuantizationPoint(node.name, i))
    return found


def _requantize_operands(converted: GraphModule, plan: Plan) -> None:
    """Q/DQ pairs for an op that reads one value at two scales, as in f(x, x)."""
    for node in [n for n in converted.graph.nodes if n.op == "call_function"]:
        for points in _points_by_operand(node, plan).values():
            if len({plan.qparams(s.node, s.operand) for s in points}) > 1:
                _insert_operand_qdq(node, plan)
                break


def _insert_operand_qdq(node: Node, plan: Plan) -> None:
    places = iter(range(len(operands(node))))

    def rounded(n: Node) -> Node:
        qparams = plan.qparams(node.name, next(places))
        return n if qparams is None or qdq_chain(n)[0][-1:] == [qparams] else _insert_qdq(n, qparams, node)

    node.args = torch.fx.map_arg(node.args, rounded)


def _fixed_spec(_point: QuantizationPoint, qparams: QParams) -> Any:
    """A spec with fixed qparams: nothing is observed."""
    from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec, QuantizationSpec

    dtype, low, high = getattr(torch, qparams.dtype), qparams.qmin, qparams.qmax
    if qparams.axis is None:
        return FixedQParamsQuantizationSpec(
            dtype,
            qparams.scale,
            qparams.zero_point,
            low,
            high,
            torch.per_tensor_affine,  # type: ignore[arg-type]
        )
    observer = _fixed_per_channel_observer(qparams)
    return QuantizationSpec(dtype, observer, low, high, torch.per_channel_symmetric, qparams.axis)


def _fixed_per_channel_observer(qparams: QParams) -> Any:
    """torchao has fixed specs per tensor only: per channel, an observer returns the planned qparams."""
    from torchao.quantization.pt2e.observer import PerChannelMinMaxObserver

    class FixedPerChannelObserver(PerChannelMinMaxObserver):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor(qparams.scale, dtype=torch.float32), torch.tensor(qparams.zero_point, dtype=torch.int64)

    return FixedPerChannelObserver
