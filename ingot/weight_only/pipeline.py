"""The program with integer weights, and the plan that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from ingot.core.fx import copy_graph_module, mark_transformed
from ingot.errors import PlanError
from ingot.plan.model import Decision, Plan, QuantizationPoint
from ingot.weight_only.bit_allocation import narrow, widened
from ingot.weight_only.gptq import Rounded
from ingot.weight_only.hessian import Moments, Read, by_layer, moments_of
from ingot.weight_only.insert_qdq import put_biases, put_weights
from ingot.weight_only.options import Weights
from ingot.weight_only.rotation import Turned, turned, why_not
from ingot.weight_only.round_layers import Rounding, on_grids
from ingot.weight_only.scheme import Layer, layers_of
from ingot.weight_only.smoothing import Even, evened, with_even
from ingot.weight_only.weight_transforms import Change, apart

Batch = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Chosen:
    """How each weight is stored, by the name of its layer, and what is computed otherwise for that."""

    layers: tuple[Layer, ...]
    rounded: Mapping[str, Rounded]
    turned: Turned | None
    even: Sequence[Even]
    dynamic: bool
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, Change]:
        return with_even(self.turned.changes if self.turned else {}, self.even)

    def applied(self, module: GraphModule) -> GraphModule:
        """The program, or another method of the same model, with these weights."""
        missing = {layer.name for layer in self.layers} - {n.name for n in module.graph.nodes}
        if missing:
            raise PlanError("the methods of this model have not the same layers", why=f"{min(missing)} is in one only")
        made = copy_graph_module(module)
        others = {} if self.turned is None else self.turned.put(made, self.layers)
        for even in self.even:
            others |= even.put(made)
        put_biases(made, self.changes)
        put_weights(made, self.layers, self.rounded, self.dynamic)
        for node, back in others.items():
            mark_transformed(node, back)
        return made


def chosen_weights(
    module: GraphModule, weights: Weights, batches: Sequence[Batch], seen: Moments | None = None, gains: bool = False
) -> Chosen:
    """The layers of the scheme, rounded with what they read in mind where there is data.

    `seen` is what the model's own modules read, where somebody has looked already; `gains`: norms keep theirs.
    """
    others = (weights.embedding_bits or weights.how.bits, weights.head_bits or weights.how.bits)
    layers = layers_of(module, weights.how.bits, weights.group, *others)
    if not layers:
        why = "no linear and no embedding has a constant weight"
        raise PlanError(f"{weights.scheme} finds nothing to do", why=why, hint="weights=None, and calibration data")
    read = _read(module, layers, batches, seen) if weights.by_data else {}
    if weights.method == "gptq" and not read:
        raise PlanError("gptq has nothing to round with", why="no data was given", hint="calibration=…, or --text FILE")
    return _chosen(module, layers, read, weights, gains)


def _chosen(
    module: GraphModule, layers: tuple[Layer, ...], read: dict[str, Read], weights: Weights, gains: bool
) -> Chosen:
    known = on_grids(module, layers)
    turn = turned(module, layers, known, gains) if weights.rotate else None
    layers = apart(layers, turn.changes if turn else {})
    rounding = Rounding(module, turn.changes if turn else {}, read, known, weights.method)
    if weights.most_bytes is not None:
        layers = widened(layers, rounding.noises(narrow(layers)), weights.most_bytes)
        turn = turn.settled(module, layers) if turn else None
    changes = turn.changes if turn else {}
    even = evened(module, layers, read, changes, known) if weights.how.dynamic else []
    rounded = replace(rounding, changes=with_even(changes, even)).all(layers)
    told = why_not(module, layers) if weights.rotate and turn is None else ""
    return Chosen(layers, rounded, turn, even, weights.how.dynamic, (told,) if told else ())


def _read(
    module: GraphModule, layers: Sequence[Layer], batches: Sequence[Batch], seen: Moments | None
) -> dict[str, Read]:
    return moments_of(module, layers, batches) if seen is None else by_layer(module, layers, seen)


def planned(plan: Plan, layers: Sequence[Layer], weights: Weights, notes: Sequence[str] = ()) -> Plan:
    """The float plan of everything else, with what became of each weight."""
    made = tuple(_decision(layer, weights) for layer in layers)
    small, whole = sum(layer.bytes for layer in layers), sum(4 * layer.rows * layer.width for layer in layers)
    note = f"{len(layers)} weights as {weights.scheme}: {small:,} bytes, {small / whole:.0%} of float32"
    return replace(plan, decisions=(*plan.decisions, *made), notes=(note, *notes))


def _decision(layer: Layer, weights: Weights) -> Decision:
    groups = f"groups of {layer.group}" if layer.group < layer.width else "one scale a row"
    rule = f"weight: {layer.bits} bits, {groups}, {layer.bytes:,} bytes; dequantized to the type that is computed in"
    return Decision(
        QuantizationPoint(layer.name, 0 if layer.kind == "embedding" else 1),
        None,
        rule,
        source=layer.source,
        op=layer.kind,
    )
