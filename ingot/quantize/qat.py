"""Quantization-aware training of a plan: one fake quantizer for each scale group, so shared scales stay shared.

Batch norms are folded and dropout is off, as in every captured program: this fine-tunes a trained model. Ranges of
activations follow the training data; weight scales are computed from the weights at each step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ingot.capture.export import Program
from ingot.capture.inputs import Inputs
from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.channel_factors import ChannelFactors
from ingot.core.fx import constant_of, copy_graph_module, get_attribute
from ingot.errors import PlanError
from ingot.plan.plan_data import Decision, Plan, QParams, QuantizationPoint
from ingot.plan.qparams import bias_qparams, min_weight_scale, weight_qparams
from ingot.plan.scale_groups import DisjointSets
from ingot.quantize.pt2e import plan_quantizer
from ingot.targets.base import Target

RANGE_MOMENTUM = 0.01  # share of a new batch when a range shrinks


class Training(nn.Module):
    """The program with fake quantization, a module like any other; `finish()` gives the trained program and its plan.

    Dropout is off and norms are folded, so `train()` and `eval()` change nothing but the flag.
    """

    def __init__(
        self, model: nn.Module, program: Program, plan: Plan, target: Target, scales: dict[QuantizationPoint, Any]
    ) -> None:
        super().__init__()
        self.model = model  # takes flat inputs
        self.program, self.plan, self.target = program, plan, target
        self.scales = scales  # the fake quantizer of each point's scale group

    def forward(self, *args: object, **kwargs: object) -> Tensor | list[Tensor]:
        """Run the program on a batch; a single output is not in a list."""
        device = next(self.model.parameters()).device
        flat = (x.to(device) if isinstance(x, Tensor) else x for x in self.program.flatten(Inputs(*args, **kwargs)))
        leaves = [t for t in torch.utils._pytree.tree_leaves(self.model(*flat)) if isinstance(t, Tensor)]
        return leaves[0] if len(leaves) == 1 else leaves

    def train(self, mode: bool = True) -> Training:
        self.training = mode  # the graph inside has no modes
        return self

    def finish(self) -> tuple[Program, Plan]:
        """Ready to lower: `ingot.lower(*training.finish())`."""
        module = copy_graph_module(self.program.module)
        learned: dict[int, Tensor] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):  # tied weights have two names
            _set_tensor(module, name, learned.setdefault(id(parameter), parameter.detach().cpu().clone()))
        program = replace(
            self.program, module=module, reference=copy.deepcopy(module), rewritten_for=self.target.name, exported=None
        )
        decisions = tuple(_trained_decisions(self.plan, module, self.scales, self.target))
        # The weights have the corrections now.
        plan = replace(self.plan, bias_corrections={}, channel_factors=ChannelFactors(), rounded_weights={})
        return program, replace(plan, decisions=decisions, fingerprint=program.fingerprint)


def prepare_qat(program: Program, plan: Plan, target: Target) -> Training:
    """`program` is the one that the plan was made for, after the target's rewrites."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    if program.state:
        names = ", ".join(program.state)
        raise PlanError("a program with state cannot be trained", why=f"its buffers {names} change with each batch")
    module = _trainable(program.module)
    quantizers = _fake_quantizers(plan, program.module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepare_qat_pt2e(
            module, plan_quantizer(lambda point, qparams: _qat_spec(point, qparams, quantizers), plan)
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise PlanError("there is nothing to train", why="the program has no weights")
    return Training(model, program, plan, target, quantizers)


def _trainable(module: GraphModule) -> GraphModule:
    """A copy with weights and biases as parameters; tied weights stay tied."""
    made, shared = copy_graph_module(module), dict[int, nn.Parameter]()
    for node in (n for n in made.graph.nodes if n.op == "call_function" and weight_axis(n) is not None):
        for source in operands(node)[1:3]:
            tensor = constant_of(source)
            if tensor is not None and tensor.dtype.is_floating_point:
                parameter = shared.setdefault(tensor.data_ptr(), nn.Parameter(tensor.detach().clone()))
                _set_tensor(made, str(source.target), parameter)
    return made


def _set_tensor(module: nn.Module, path: str, value: Tensor) -> None:
    """Set a parameter or buffer by its dotted name."""
    home, _, name = path.rpartition(".")
    owner = get_attribute(module, home) if home else module
    for table in (owner._parameters, owner._buffers):
        table.pop(name, None)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value)


def _fake_quantizers(plan: Plan, module: GraphModule) -> dict[QuantizationPoint, Any]:
    """One fake quantizer for each scale group of activations. It starts with the planned range."""
    groups, made, nodes = _scale_groups(plan, module), dict[QuantizationPoint, Any](), _by_name(module)
    for d in plan:
        if d.qparams is not None and d.qparams.axis is None and not _is_weight_or_bias(d, nodes):
            root = groups.find(d.point)
            if root not in made:
                made[root] = _activation_fake_quantize(d.qparams)
            if d.fixed:
                made[root].disable_observer()
            made[d.point] = made[root]
    return made


def _is_weight_or_bias(d: Decision, nodes: dict[str, Node]) -> bool:
    return bool(d.point.operand) and weight_axis(nodes[d.point.node]) is not None


def _scale_groups(plan: Plan, module: GraphModule) -> DisjointSets[QuantizationPoint]:
    """A point joins the value it reads, and the output of an op that passes values through, if qparams are equal."""
    groups: DisjointSets[QuantizationPoint] = DisjointSets()
    nodes = _by_name(module)
    groups.add(d.point for d in plan if d.qparams is not None)
    for d in (d for d in plan if d.qparams is not None and d.point.operand is not None):
        passes = _passes_values_through(nodes[d.point.node], d.point.operand or 0)
        for other in (QuantizationPoint(str(d.reads)), *([QuantizationPoint(d.point.node)] if passes else [])):
            if plan.qparams(other.node) == d.qparams:
                groups.union(d.point, other)
    return groups


def _passes_values_through(node: Node, operand: int) -> bool:
    return node.op == "call_function" and weight_axis(node) is None and operand in effect_of(node, constant_of).carriers


def _by_name(module: GraphModule) -> dict[str, Node]:
    return {n.name: n for n in module.graph.nodes}


def _activation_fake_quantize(qparams: QParams) -> Any:
    from torchao.quantization.pt2e.fake_quantize import FakeQuantize

    kind = torch.per_tensor_symmetric if qparams.dtype == "int16" else torch.per_tensor_affine
    made = FakeQuantize(
        _range_observer(),
        quant_min=qparams.qmin,
        quant_max=qparams.qmax,
        dtype=getattr(torch, qparams.dtype),
        qscheme=kind,
    )
    low, high = qparams.representable_range
    made.activation_post_process.min_val.fill_(low)
    made.activation_post_process.max_val.fill_(high)
    made.scale.fill_(qparams.scale)
    made.zero_point.fill_(qparams.zero_point)
    return made


def _range_observer() -> Any:
    from torchao.quantization.pt2e.observer import MinMaxObserver

    class SlowShrinkObserver(MinMaxObserver):
        """Points of different ranges share it: a range grows at once and shrinks slowly."""

        def forward(self, x: Tensor) -> Tensor:
            low, high = x.detach().float().aminmax()
            self.min_val.copy_(torch.minimum(low, self.min_val + RANGE_MOMENTUM * (low - self.min_val)))
            self.max_val.copy_(torch.maximum(high, self.max_val + RANGE_MOMENTUM * (high - self.max_val)))
            return x

    return SlowShrinkObserver


class _SharedFakeQuantize:
    """A constructor for torchao that returns the existing fake quantizer of a scale group."""

    __name__ = "FakeQuantize"  # torchao reads it

    def __init__(self, module: Any):
        self.module = module

    def with_args(self, **_: Any) -> _SharedFakeQuantize:
        return self

    def __call__(self) -> Any:
        return self.module


def _qat_spec(point: QuantizationPoint, qparams: QParams, quantizers: dict[QuantizationPoint, Any]) -> Any:
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

    dtype, low, high = getattr(torch, qparams.dtype), qparams.qmin, qparams.qmax
    if point in quantizers:
        return QuantizationSpec(dtype, _SharedFakeQuantize(quantizers[point]), low, high, torch.per_tensor_affine)  # type: ignore[arg-type]
    if qparams.dtype == "int32":
        return None  # int32 rounding of a bias does not matter for training
    return QuantizationSpec(dtype, _weight_fake_quantize(qparams), low, high, _weight_qscheme(qparams), qparams.axis)


def _weight_qscheme(qparams: QParams) -> Any:
    return torch.per_tensor_symmetric if qparams.axis is None else torch.per_channel_symmetric


def _weight_fake_quantize(qparams: QParams) -> Any:
    """The scale is computed from the weight at each step."""
    from torchao.quantization.pt2e.fake_quantize import FakeQuantize
    from torchao.quantization.pt2e.observer import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

    if qparams.axis is None:
        return FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, averaging_constant=1.0)
    return FakeQuantize.with_args(
        observer=MovingAveragePerChannelMinMaxObserver, averaging_constant=1.0, ch_axis=qparams.axis
    )


def _trained_decisions(
    plan: Plan, module: GraphModule, scales: dict[QuantizationPoint, Any], target: Target
) -> Iterator[Decision]:
    """The decisions after training: ranges of scale groups, scales of the new weights, biases from both."""
    fixed = {d.point for d in plan if d.fixed}
    nodes, now = _by_name(module), {point: _trained_qparams(s, point in fixed) for point, s in scales.items()}
    for d in plan:
        if d.qparams is None or d.fixed:
            yield d
        elif d.point in scales:
            yield replace(d, qparams=now[d.point](d.qparams), because=(*d.because, "range from training"))
        else:
            yield replace(d, qparams=_weight_or_bias_qparams(d, nodes[d.point.node], plan, now, target))


def _trained_qparams(quantizer: Any, fixed: bool) -> Any:
    scale, zero = quantizer.calculate_qparams()

    def update(before: QParams) -> QParams:
        return before if fixed else replace(before, scale=float(scale[0]), zero_point=int(zero[0]))

    return update


def _weight_or_bias_qparams(
    d: Decision, node: Node, plan: Plan, now: dict[QuantizationPoint, Any], target: Target
) -> QParams:
    if node.name in plan.dynamic:  # its input has no scale in the plan, and its bias is float
        return weight_qparams(_weight_of(node), target.numerics.weight, target.kernels.weight_axis(node))
    point = (
        QuantizationPoint(node.name, 0) if plan.qparams(node.name, 0) else QuantizationPoint(operands(node)[0].name, 0)
    )
    x = now[point](plan.qparams(point.node, 0))
    bias = constant_of((*operands(node)[2:3], node)[0])
    axis, smallest = target.kernels.weight_axis(node), min_weight_scale(bias, x)
    qparams = weight_qparams(_weight_of(node), target.numerics.weight, axis, smallest)
    return qparams if d.point.operand == 1 else bias_qparams(x, qparams)


def _weight_of(node: Node) -> Tensor:
    weight = constant_of(operands(node)[1])
    assert weight is not None  # only constant weights are planned
    return weight
