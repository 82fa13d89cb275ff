"""What the solver works on: facts, classes so far, and the measured range of what a slot holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.graph import constant_of, is_float, value_name
from ingot.plan.classes import Classes
from ingot.plan.model import Storage
from ingot.plan.qparams import hull
from ingot.plan.relations import Relations
from ingot.ranges import Ranges
from ingot.semantics import operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Target

Place = tuple[Node, int | None]  # a slot with its node at hand


@dataclass
class Work:
    module: GraphModule
    ranges: Ranges
    target: Target
    facts: Relations
    classes: Classes[Place] = field(default_factory=Classes)
    storages: dict[Place, Storage] = field(default_factory=dict)
    because: dict[Place, tuple[str, ...]] = field(default_factory=dict)


def activations(node: Node, work: Work) -> list[int]:
    """The operands of an integer op that carry activations; none where a fused producer stands before it."""
    if node in work.facts.fused.values():
        return []
    weighted = weight_axis(node) is not None
    return [i for i, n in enumerate(operands(node)) if is_float(n) and not (weighted and i > 0)]


def range_of(place: Place, work: Work) -> tuple[float, float]:
    """The measured range of the value in a slot; a constant's own numbers."""
    node, operand = place
    value = node if operand is None else operands(node)[operand]
    return value_range(value, work)


def value_range(value: Node, work: Work) -> tuple[float, float]:
    """As recorded; a constant's own numbers; for a value that a rewrite made, the hull of what it carries."""
    constant = constant_of(value)
    if constant is not None:
        return float(constant.detach().min()), float(constant.detach().max())
    stats = work.ranges.values.get(value_name(value))
    effect = work.facts.effects.get(value)
    if stats is None and effect is not None and effect.carriers:
        carried = [value_range(operands(value)[i], work) for i in effect.carriers]
        return hull([*carried, *((c, c) for c in effect.constants)])
    assert stats is not None  # relations leaves a value without a range in float
    return stats.min, stats.max
