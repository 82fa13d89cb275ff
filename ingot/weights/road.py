"""The program with integer weights, and the plan that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from ingot.errors import PlanError
from ingot.graph import constant_of
from ingot.plan.model import Decision, Plan, Slot
from ingot.semantics import operands
from ingot.weights.bits import noise, widened
from ingot.weights.choice import Weights
from ingot.weights.moments import Moments, by_layer, moments_of
from ingot.weights.rewrite import with_weights
from ingot.weights.rounding import Rounded, gptq, nearest
from ingot.weights.scheme import Layer, layers_of

Batch = tuple[Any, ...]


def quantized_weights(
    module: GraphModule, weights: Weights, batches: Sequence[Batch], seen: Moments | None = None
) -> tuple[GraphModule, tuple[Layer, ...]]:
    """The module with the layers of the scheme, rounded with what they read in mind where there is data.

    `seen` is what the model's own modules read, where somebody has looked already.
    """
    layers = layers_of(module, weights.how.bits, weights.group, weights.embedding_bits, weights.head_bits)
    if not layers:
        why = "no linear and no embedding has a constant weight"
        raise PlanError(f"{weights.scheme} finds nothing to do", why=why, hint="weights=None, and calibration data")
    moments = {} if weights.method == "nearest" else _moments(module, layers, batches, seen)
    matrices = {layer.name: _matrix(module, layer) for layer in layers}
    rounded = {n.name: _rounded(matrices[n.name], n, moments.get(n.name)) for n in layers}
    if weights.most_bytes is not None:
        noises = {n: noise(matrices[n], r, moments.get(n)) for n, r in rounded.items()}
        layers = widened(layers, noises, weights.most_bytes)
        wide = [n for n in layers if n.bits == 8]
        rounded |= {n.name: nearest(matrices[n.name], n.bits, n.group) for n in wide}
    return with_weights(module, layers, rounded, weights.how.dynamic), layers


def _moments(
    module: GraphModule, layers: Sequence[Layer], batches: Sequence[Batch], seen: Moments | None
) -> Mapping[str, Tensor]:
    return moments_of(module, layers, batches) if seen is None else by_layer(module, layers, seen)


def _matrix(module: GraphModule, layer: Layer) -> Tensor:
    node = next(n for n in module.graph.nodes if n.name == layer.name)
    weight = constant_of(operands(node)[0 if layer.kind == "embedding" else 1])
    assert weight is not None  # it is a layer
    return weight.detach().float()


def _rounded(weight: Tensor, layer: Layer, moments: Tensor | None) -> Rounded:
    if moments is None or layer.bits == 8:
        return nearest(weight, layer.bits, layer.group)
    return gptq(weight, layer.bits, layer.group, moments)


def planned(plan: Plan, layers: Sequence[Layer], weights: Weights) -> Plan:
    """The float plan of everything else, with what became of each weight."""
    made = tuple(_decision(layer, weights) for layer in layers)
    small, whole = sum(layer.bytes for layer in layers), sum(4 * layer.rows * layer.width for layer in layers)
    note = f"{len(layers)} weights as {weights.scheme}: {small:,} bytes, {small / whole:.0%} of float32"
    return replace(plan, decisions=(*plan.decisions, *made), notes=(note,))


def _decision(layer: Layer, weights: Weights) -> Decision:
    groups = f"groups of {layer.group}" if layer.group < layer.width else "one scale a row"
    rule = f"weight: {layer.bits} bits, {groups}, {layer.bytes:,} bytes; dequantized to the type that is computed in"
    return Decision(
        Slot(layer.name, 0 if layer.kind == "embedding" else 1), None, rule, source=layer.source, op=layer.kind
    )
