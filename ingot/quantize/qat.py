"""Training with the plan in place: one fake quantizer a class, so that what shares a scale still does afterwards.

Norms are folded and dropout is off, as in every captured program: this is for fine-tuning a trained model. Scales of
activations follow what is seen while training; weights get theirs from their own numbers at each step.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ingot.capture.export import Program
from ingot.capture.op_semantics import effect_of, operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import attribute, constant_of, copied
from ingot.errors import PlanError
from ingot.plan.model import Decision, Plan, QParams, QuantizationPoint
from ingot.plan.qparams import bias_qparams, min_weight_scale, weight_qparams
from ingot.plan.scale_groups import DisjointSets
from ingot.quantize.pt2e import annotate
from ingot.targets.base import Target

FOLLOWS = 0.01  # how fast a range follows what is seen


@dataclass(frozen=True, eq=False)
class Training:
    """`model` learns as any module does; `finish()` gives the trained program and its plan, to be lowered as ever."""

    model: nn.Module  # takes flat inputs
    program: Program
    plan: Plan
    target: Target
    scales: dict[QuantizationPoint, Any] = field(repr=False)  # slot -> the fake quantizer of its class

    def __call__(self, *inputs: Any) -> Any:
        """The program on a user's batch, with every planned rounding; one output comes alone."""
        made = self.model(*self.program.flatten(inputs))
        leaves = [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, Tensor)]
        return leaves[0] if len(leaves) == 1 else leaves

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def finish(self) -> tuple[Program, Plan]:
        module = copied(self.program.module)
        learned: dict[int, Tensor] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):  # tied weights have two names
            _put(module, name, learned.setdefault(id(parameter), parameter.detach().clone()))
        program = replace(self.program, module=module, reference=copy.deepcopy(module), rewritten_for=self.target.name)
        decisions = tuple(_learned(self.plan, module, self.scales, self.target))
        return program, replace(self.plan, decisions=decisions, fingerprint=program.fingerprint, bias_corrections={})


def prepare(program: Program, plan: Plan, target: Target) -> Training:
    """`program` is the one the plan was made for, as the target sees it."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    if program.state:
        names = ", ".join(program.state)
        raise PlanError("a program with state cannot be trained", why=f"it carries {names} from one batch to the next")
    module = _trainable(program.module)
    quantizers = _quantizers(plan, program.module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepare_qat_pt2e(module, annotate(lambda slot, storage: _spec(slot, storage, quantizers), plan))
    if not any(p.requires_grad for p in model.parameters()):
        raise PlanError("there is nothing to train", why="the program has no weights")
    return Training(model, program, plan, target, quantizers)


def _trainable(module: GraphModule) -> GraphModule:
    """Weights and biases as parameters of their own; one that is used twice stays one."""
    made, shared = copied(module), dict[int, nn.Parameter]()
    for node in (n for n in made.graph.nodes if n.op == "call_function" and weight_axis(n) is not None):
        for source in operands(node)[1:3]:
            tensor = constant_of(source)
            if tensor is not None and tensor.dtype.is_floating_point:
                parameter = shared.setdefault(tensor.data_ptr(), nn.Parameter(tensor.detach().clone()))
                _put(made, str(source.target), parameter)
    return made


def _put(module: nn.Module, path: str, value: Tensor) -> None:
    """Set a tensor by its dotted name, whatever was there."""
    home, _, name = path.rpartition(".")
    owner = attribute(module, home) if home else module
    for table in (owner._parameters, owner._buffers):
        table.pop(name, None)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value)


def _quantizers(plan: Plan, module: GraphModule) -> dict[QuantizationPoint, Any]:
    """One fake quantizer for each class of activations, starting from the planned range."""
    classes, made, nodes = _classes(plan, module), dict[QuantizationPoint, Any](), _by_name(module)
    for d in plan:
        if d.qparams is not None and d.qparams.axis is None and not _is_constant(d, nodes):
            root = classes.find(d.point)
            if root not in made:
                made[root] = _activation(d.qparams)
            if d.fixed:
                made[root].disable_observer()
            made[d.point] = made[root]
    return made


def _is_constant(d: Decision, nodes: dict[str, Node]) -> bool:
    """A weight or a bias: it has its numbers at hand."""
    return bool(d.point.operand) and weight_axis(nodes[d.point.node]) is not None


def _classes(plan: Plan, module: GraphModule) -> DisjointSets[QuantizationPoint]:
    """Read off the plan: a slot that is stored as what it reads, or as what an op only carries on, is one with it."""
    classes: DisjointSets[QuantizationPoint] = DisjointSets()
    nodes = _by_name(module)
    classes.add(d.point for d in plan if d.qparams is not None)
    for d in (d for d in plan if d.qparams is not None and d.point.operand is not None):
        carries = _carries(nodes[d.point.node], d.point.operand or 0)
        for other in (QuantizationPoint(str(d.reads)), *([QuantizationPoint(d.point.node)] if carries else [])):
            if plan.qparams(other.node) == d.qparams:
                classes.union(d.point, other)
    return classes


def _carries(node: Node, operand: int) -> bool:
    return node.op == "call_function" and weight_axis(node) is None and operand in effect_of(node, constant_of).carriers


def _by_name(module: GraphModule) -> dict[str, Node]:
    return {n.name: n for n in module.graph.nodes}


def _activation(storage: QParams) -> Any:
    from torchao.quantization.pt2e.fake_quantize import FakeQuantize

    kind = torch.per_tensor_symmetric if storage.dtype == "int16" else torch.per_tensor_affine
    made = FakeQuantize(
        _following(),
        quant_min=storage.qmin,
        quant_max=storage.qmax,
        dtype=getattr(torch, storage.dtype),
        qscheme=kind,
    )
    low, high = storage.representable_range
    made.activation_post_process.min_val.fill_(low)
    made.activation_post_process.max_val.fill_(high)
    made.scale.fill_(storage.scale)
    made.zero_point.fill_(storage.zero_point)
    return made


def _following() -> Any:
    from torchao.quantization.pt2e.observer import MinMaxObserver

    class FollowingObserver(MinMaxObserver):
        """Slots of different ranges share it: a range grows at once to hold what is seen, and shrinks slowly."""

        def forward(self, x: Tensor) -> Tensor:
            low, high = x.detach().float().aminmax()
            self.min_val.copy_(torch.minimum(low, self.min_val + FOLLOWS * (low - self.min_val)))
            self.max_val.copy_(torch.maximum(high, self.max_val + FOLLOWS * (high - self.max_val)))
            return x

    return FollowingObserver


class _Given:
    """Where torchao makes an observer for each slot, this hands out the one of its class."""

    __name__ = "FakeQuantize"  # torchao looks at it

    def __init__(self, module: Any):
        self.module = module

    def with_args(self, **_: Any) -> _Given:
        return self

    def __call__(self) -> Any:
        return self.module


def _spec(slot: QuantizationPoint, storage: QParams, quantizers: dict[QuantizationPoint, Any]) -> Any:
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

    dtype, low, high = getattr(torch, storage.dtype), storage.qmin, storage.qmax
    if slot in quantizers:
        return QuantizationSpec(dtype, _Given(quantizers[slot]), low, high, torch.per_tensor_affine)  # type: ignore[arg-type]
    if storage.dtype == "int32":
        return None  # a bias is rounded so finely that training need not know
    return QuantizationSpec(dtype, _of_weight(storage), low, high, _scheme(storage), storage.axis)


def _scheme(storage: QParams) -> Any:
    return torch.per_tensor_symmetric if storage.axis is None else torch.per_channel_symmetric


def _of_weight(storage: QParams) -> Any:
    """Its scale is that of the weight as it is at each step."""
    from torchao.quantization.pt2e.fake_quantize import FakeQuantize
    from torchao.quantization.pt2e.observer import MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

    if storage.axis is None:
        return FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, averaging_constant=1.0)
    return FakeQuantize.with_args(
        observer=MovingAveragePerChannelMinMaxObserver, averaging_constant=1.0, ch_axis=storage.axis
    )


def _learned(
    plan: Plan, module: GraphModule, scales: dict[QuantizationPoint, Any], target: Target
) -> Iterator[Decision]:
    """The decisions with what training left: ranges of the classes, scales of the new weights, biases from both."""
    fixed = {d.point for d in plan if d.fixed}
    nodes, now = _by_name(module), {slot: _storage_now(s, slot in fixed) for slot, s in scales.items()}
    for d in plan:
        if d.qparams is None or d.fixed:
            yield d
        elif d.point in scales:
            yield replace(d, qparams=now[d.point](d.qparams), because=(*d.because, "range as training left it"))
        else:
            yield replace(d, qparams=_of_constant(d, nodes[d.point.node], plan, now, target))


def _storage_now(quantizer: Any, fixed: bool) -> Any:
    scale, zero = quantizer.calculate_qparams()

    def stored(before: QParams) -> QParams:
        return before if fixed else replace(before, scale=float(scale[0]), zero_point=int(zero[0]))

    return stored


def _of_constant(d: Decision, node: Node, plan: Plan, now: dict[QuantizationPoint, Any], target: Target) -> QParams:
    slot = (
        QuantizationPoint(node.name, 0) if plan.qparams(node.name, 0) else QuantizationPoint(operands(node)[0].name, 0)
    )
    x = now[slot](plan.qparams(slot.node, 0))
    weight, bias = (constant_of(n) for n in (*operands(node)[1:3], node)[:2])
    assert weight is not None
    storage = weight_qparams(
        weight, target.numerics.weight, target.kernels.weight_axis(node), min_weight_scale(bias, x)
    )
    return storage if d.point.operand == 1 else bias_qparams(x, storage)
