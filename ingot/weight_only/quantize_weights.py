"""Choose and round the weights of a program, insert them, and add the decisions to its plan. Entry: cast_weights.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from ingot.core.fx import copy_graph_module, mark_transformed
from ingot.errors import PlanError
from ingot.plan.plan_data import Decision, Plan, QuantizationPoint
from ingot.weight_only.bit_allocation import allocate_bits, int4_linears
from ingot.weight_only.hessian import HessianRecorder, InputStatistics, record_program_inputs, statistics_by_layer
from ingot.weight_only.insert_qdq import insert_biases, insert_weights
from ingot.weight_only.options import Weights
from ingot.weight_only.rotation import Rotation, find_rotation, why_not_rotated
from ingot.weight_only.round_layers import LayerRounder, recover_prequantized
from ingot.weight_only.rounded_weight import RoundedWeight
from ingot.weight_only.scheme import WeightLayer, find_weight_layers
from ingot.weight_only.smoothquant import Smoothing, add_smoothing, find_smoothing
from ingot.weight_only.weight_transforms import WeightTransform, untie_transformed

Batch = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """The rounded weight of each layer, by name, and the rotation and smoothing that it was rounded for."""

    layers: tuple[WeightLayer, ...]
    rounded: Mapping[str, RoundedWeight]
    rotation: Rotation | None
    smoothing: Sequence[Smoothing]
    dynamic: bool
    notes: tuple[str, ...] = ()

    @property
    def transforms(self) -> dict[str, WeightTransform]:
        return add_smoothing(self.rotation.transforms if self.rotation else {}, self.smoothing)

    def apply_to(self, module: GraphModule) -> GraphModule:
        """A copy of the program, or of another method of the same model, with these weights."""
        missing = {layer.name for layer in self.layers} - {n.name for n in module.graph.nodes}
        if missing:
            why = f"{min(missing)} is in one of them only"
            raise PlanError("the methods of this model have different layers", why=why)
        made = copy_graph_module(module)
        changed = {} if self.rotation is None else self.rotation.apply_to(made, self.layers)
        for smoothing in self.smoothing:
            changed |= smoothing.apply_to(made)
        insert_biases(made, self.transforms)
        insert_weights(made, self.layers, self.rounded, self.dynamic)
        for node, back in changed.items():
            mark_transformed(node, back)
        return made


def quantize_weights(
    module: GraphModule,
    weights: Weights,
    batches: Sequence[Batch],
    recorded: HessianRecorder | None = None,
    keep_norm_gains: bool = False,
) -> QuantizedWeights:
    """Round every layer of the scheme, by GPTQ where there is calibration data.

    `recorded` holds statistics of the model's modules, where it ran before capture; else `batches` are run.
    """
    bits = weights.spec.bits
    head_and_table = (weights.embedding_bits or bits, weights.head_bits or bits)
    layers = find_weight_layers(module, bits, weights.group, *head_and_table)
    if not layers:
        why = "no linear and no embedding has a constant weight that could be rounded"
        raise PlanError(f"{weights.scheme}: no weights to quantize", why=why, hint="weights=None, and calibration data")
    statistics = _statistics(module, layers, batches, recorded) if weights.uses_calibration else {}
    if weights.method == "gptq" and not statistics:
        raise PlanError("gptq needs calibration data", why="no data was given", hint="calibration=…, or --text FILE")
    return _quantize(module, layers, statistics, weights, keep_norm_gains)


def _quantize(
    module: GraphModule,
    layers: tuple[WeightLayer, ...],
    statistics: dict[str, InputStatistics],
    weights: Weights,
    keep_norm_gains: bool,
) -> QuantizedWeights:
    prequantized = recover_prequantized(module, layers)
    rotation = find_rotation(module, layers, prequantized, keep_norm_gains) if weights.rotate else None
    transforms = rotation.transforms if rotation else {}
    layers = untie_transformed(layers, transforms)
    rounder = LayerRounder(module, transforms, statistics, prequantized, weights.method)
    if (most := byte_budget(layers, weights)) is not None:
        layers = allocate_bits(layers, rounder.noise_ratios(int4_linears(layers)), most)
        rotation = rotation.with_forms(module, layers) if rotation else None
    transforms = rotation.transforms if rotation else {}
    smoothing = find_smoothing(module, layers, statistics, transforms, prequantized) if weights.spec.dynamic else []
    rounded = replace(rounder, transforms=add_smoothing(transforms, smoothing)).round_all(layers)
    note = why_not_rotated(module, layers) if weights.rotate and rotation is None else ""
    return QuantizedWeights(layers, rounded, rotation, smoothing, weights.spec.dynamic, (note,) if note else ())


def byte_budget(layers: Sequence[WeightLayer], weights: Weights) -> int | None:
    """The bytes of all weights, where more than the fewest may be used."""
    if not weights.int8_budget:
        return weights.most_bytes
    return int(sum(layer.bytes for layer in layers) * (1 + weights.int8_budget))


def _statistics(
    module: GraphModule, layers: Sequence[WeightLayer], batches: Sequence[Batch], recorded: HessianRecorder | None
) -> dict[str, InputStatistics]:
    if recorded is None:
        return record_program_inputs(module, layers, batches)
    return statistics_by_layer(module, layers, recorded)


def add_weight_decisions(
    plan: Plan, layers: Sequence[WeightLayer], weights: Weights, notes: Sequence[str] = ()
) -> Plan:
    """The float plan of the activations, with one decision per weight."""
    made = tuple(_decision(layer) for layer in layers)
    small, whole = sum(layer.bytes for layer in layers), sum(4 * layer.rows * layer.width for layer in layers)
    note = f"{len(layers)} weights as {weights.scheme}: {small:,} bytes, {small / whole:.0%} of float32"
    return replace(plan, decisions=(*plan.decisions, *made), notes=(note, *notes))


def _decision(layer: WeightLayer) -> Decision:
    groups = f"groups of {layer.group}" if layer.group < layer.width else "one scale per row"
    rule = f"weight: {layer.bits} bits, {groups}, {layer.bytes:,} bytes; dequantized to the compute type"
    return Decision(
        QuantizationPoint(layer.name, 0 if layer.kind == "embedding" else 1),
        None,
        rule,
        source=layer.source,
        op=layer.kind,
    )
