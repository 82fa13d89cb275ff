"""The program with integer weights, and the plan that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.errors import PlanError
from ingot.graph import constant_of
from ingot.plan.model import Decision, Plan, Slot
from ingot.semantics import operands
from ingot.weights.bits import narrow, noise, widened
from ingot.weights.choice import Weights
from ingot.weights.grid import recovered
from ingot.weights.moments import Moments, Read, by_layer, moments_of
from ingot.weights.rewrite import with_weights
from ingot.weights.rounding import Rounded, gptq, hqq, minmax, nearest
from ingot.weights.scheme import Layer, layers_of
from ingot.weights.smoothing import smoothed

Batch = tuple[Any, ...]
aten = torch.ops.aten
ROWS = 8192


@dataclass(frozen=True, eq=False)
class Chosen:
    """How each weight is stored, by the name of its layer."""

    layers: tuple[Layer, ...]
    rounded: Mapping[str, Rounded]
    read: Mapping[str, Read]
    dynamic: bool

    def applied(self, module: GraphModule) -> GraphModule:
        """The program, or another method of the same model, with these weights."""
        missing = {layer.name for layer in self.layers} - {n.name for n in module.graph.nodes}
        if missing:
            raise PlanError("the methods of this model have not the same layers", why=f"{min(missing)} is in one only")
        even = smoothed(module, self.layers, self.read)[0] if self.dynamic else module
        return with_weights(even, self.layers, self.rounded, self.dynamic)


def chosen_weights(
    module: GraphModule, weights: Weights, batches: Sequence[Batch], seen: Moments | None = None
) -> Chosen:
    """The layers of the scheme, rounded with what they read in mind where there is data.

    `seen` is what the model's own modules read, where somebody has looked already.
    """
    others = (weights.embedding_bits or weights.how.bits, weights.head_bits or weights.how.bits)
    layers = layers_of(module, weights.how.bits, weights.group, *others)
    if not layers:
        why = "no linear and no embedding has a constant weight"
        raise PlanError(f"{weights.scheme} finds nothing to do", why=why, hint="weights=None, and calibration data")
    read = _read(module, layers, batches, seen) if weights.method in ("auto", "gptq") else {}
    if weights.method == "gptq" and not read:
        raise PlanError("gptq has nothing to round with", why="no data was given", hint="calibration=…, or --text FILE")
    even, now = smoothed(module, layers, read) if weights.how.dynamic else (module, read)
    rounded = _all_rounded(even, layers, now, weights.method)
    if weights.most_bytes is not None:
        before, layers = layers, widened(layers, _noises(even, layers, rounded, now), weights.most_bytes)
        rounded |= _all_rounded(even, [a for a, b in zip(layers, before, strict=True) if a != b], now, weights.method)
    loud = {name: read[name] for name in now if now[name] is not read[name]}
    if seen is not None:
        seen.reads.clear()  # a model's moments are as large as the model, and nobody needs them any more
    return Chosen(layers, rounded, loud, weights.how.dynamic)


def _all_rounded(
    module: GraphModule, layers: Sequence[Layer], read: Mapping[str, Read], method: str
) -> dict[str, Rounded]:
    """One weight in one form is rounded once: an embedding has the numbers of a head that it is tied to."""
    nodes, first, together = {n.name: n for n in module.graph.nodes}, dict[Any, Layer](), dict[Any, list[Any]]()
    keys = {n.name: (_stored(nodes[n.name], n).data_ptr(), n.bits, n.group) for n in layers}
    for layer in sorted(layers, key=lambda n: n.kind, reverse=True):  # linears first: they have read something
        first.setdefault(keys[layer.name], layer)
    for key, layer in first.items():
        together.setdefault((id(read.get(layer.name, key)), layer.bits, layer.group), []).append(key)
    made = dict[Any, Rounded]()
    for same in together.values():
        weights = [_stored(nodes[first[key].name], first[key]).detach().float() for key in same]
        made |= zip(same, _rounded(weights, first[same[0]], method, read.get(first[same[0]].name)), strict=True)
    return {name: made[key] for name, key in keys.items()}


def _noises(
    module: GraphModule, layers: Sequence[Layer], rounded: Mapping[str, Rounded], read: Mapping[str, Read]
) -> dict[str, float]:
    nodes = {n.name: n for n in module.graph.nodes}
    weights = {n.name: _stored(nodes[n.name], n).detach().float() for n in narrow(layers)}
    return {n: noise(w, rounded[n], read[n].second if n in read else None) for n, w in weights.items()}


def _read(
    module: GraphModule, layers: Sequence[Layer], batches: Sequence[Batch], seen: Moments | None
) -> Mapping[str, Read]:
    return moments_of(module, layers, batches) if seen is None else by_layer(module, layers, seen)


def _stored(node: Node, layer: Layer) -> Tensor:
    weight = constant_of(operands(node)[0 if layer.kind == "embedding" else 1])
    assert weight is not None  # it is a layer
    return weight


def _rounded(weights: Sequence[Tensor], layer: Layer, method: str, seen: Read | None) -> list[Rounded]:
    """Weights that read the same, as one: rows do not know of each other."""
    found = [_on_grid(w, layer) for w in weights]
    left = [w for w, known in zip(weights, found, strict=True) if known is None]
    if not left:
        return [known for known in found if known is not None]
    moments = None if seen is None else seen.second
    made = iter(_split(_by_rows(left, lambda rows: _newly_rounded(rows, layer, method, moments)), left))
    return [next(made) if known is None else known for known in found]


def _by_rows(weights: Sequence[Tensor], rounding: Callable[[Tensor], Rounded]) -> Rounded:
    """Some at a time: a head has as many as there are words."""
    whole = weights[0] if len(weights) == 1 else torch.cat(list(weights))
    parts = [rounding(rows) for rows in whole.split(ROWS)]
    return Rounded(torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts]))


def _split(made: Rounded, weights: Sequence[Tensor]) -> list[Rounded]:
    rows = [len(w) for w in weights]
    both = zip(made.codes.split(rows), made.scales.split(rows), strict=True)
    return [Rounded(codes.clone(), scales.clone()) for codes, scales in both]  # a file takes whole storages


def _on_grid(weight: Tensor, layer: Layer) -> Rounded | None:
    parts = list[Rounded]()
    for rows in weight.split(ROWS):
        if (found := recovered(rows, layer.bits, layer.group)) is None:
            return None
        parts.append(found)
    return Rounded(torch.cat([p.codes for p in parts]), torch.cat([p.scales for p in parts]))


def _newly_rounded(weight: Tensor, layer: Layer, method: str, moments: Tensor | None) -> Rounded:
    if moments is None:
        return {"minmax": minmax, "hqq": hqq}.get(method, nearest)(weight, layer.bits, layer.group)
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
