"""What the solver works on: facts, precisions and classes so far, and what a slot holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.fx import is_float
from ingot.plan.constraints import Constraints
from ingot.plan.model import QParams
from ingot.plan.noise_model import Noise
from ingot.plan.scale_groups import DisjointSets
from ingot.plan.user_constraints import UserConstraints
from ingot.plan.value_ranges import Span
from ingot.targets.base import Format, Target

WORTH = 0.05  # what halving the noise may cost where nobody says
Place = tuple[Node, int | None]  # a slot with its node at hand


@dataclass
class Work:
    module: GraphModule
    target: Target
    recipe: Recipe
    facts: Constraints
    user_constraints: UserConstraints
    noise: Noise
    method: str = "auto"  # how ranges come from histograms where no scope says otherwise
    precisions: dict[Node, str] = field(default_factory=dict)  # op -> the precision it runs in
    reasons: dict[Node, str] = field(default_factory=dict)  # op -> why that one
    total_noise: float = 0.0  # predicted at the outputs, as a share of the signal
    total_time: float = 0.0
    fused: dict[Node, Node] = field(default_factory=dict)  # op -> the op that runs in its kernel
    inside: set[Node] = field(default_factory=set)  # ops that run in the kernel of what they read
    fixed_qparams: dict[Place, tuple[QParams, str]] = field(
        default_factory=dict
    )  # slot -> how it must be stored, and who says so
    float_points: dict[Place, str] = field(
        default_factory=dict
    )  # slots of integer ops that stay float, and who says so
    weights: dict[Node, Format] = field(default_factory=dict)  # op -> the form of its weights, where not the usual one
    scale_groups: DisjointSets[Place] = field(default_factory=DisjointSets)
    qparams: dict[Place, QParams] = field(default_factory=dict)
    fixed: set[Place] = field(default_factory=set)  # slots whose scale training must not move
    because: dict[Place, tuple[str, ...]] = field(default_factory=dict)

    @property
    def worth(self) -> float:
        """What halving the noise may cost, as a share of the time."""
        return WORTH if self.recipe.noise_vs_latency is None else self.recipe.noise_vs_latency

    def is_integer(self, node: Node) -> bool:
        return self.precisions.get(node, "float") != "float"

    def is_stored(self, node: Node) -> bool:
        """The value exists as integers: an integer op made it, or it is a graph input with a spec."""
        made = self.is_integer(node) and node not in self.fused and (node, None) not in self.float_points
        return made or (node, None) in self.fixed_qparams

    def format_of(self, place: Place) -> Format:
        return self.target.numerics.formats[self.precision_at(*place, self.precisions[place[0]])]

    def precision_at(self, node: Node, operand: int | None, precision: str) -> str:
        """What an op that runs in `precision` stores there: some operands have a precision of their own."""
        own = self.facts.apart.get(node, {}) if precision != "float" else {}
        return own[operand][0] if operand in own else precision

    def weight_form(self, node: Node) -> Format:
        return self.weights.get(node, self.target.numerics.weight)

    def carried(self, node: Node) -> tuple[int, ...]:
        """Operands of an integer op that are stored exactly as its output."""
        return () if node in self.inside else self.facts.bound.get(node, ())

    def span(self, place: Place) -> Span:
        """What was measured; of a graph input that is stored as asked, what can be left of it."""
        low, high = self.facts.span(value_in(place))
        given = self.fixed_qparams.get((value_in(place), None))
        if given is None or value_in(place).op != "placeholder" or place[1] is None:
            return low, high
        return max(low, given[0].span[0]), min(high, given[0].span[1])


def value_in(place: Place) -> Node:
    node, operand = place
    return node if operand is None else operands(node)[operand]


def activations(node: Node, work: Work) -> list[int]:
    """The operands of an integer op that carry activations; none where a fused producer stands before it."""
    if node in work.inside:
        return []
    return [i for i in activation_operands(node) if (node, i) not in work.float_points]


def activation_operands(node: Node) -> list[int]:
    weighted = weight_axis(node) is not None
    return [i for i, n in enumerate(operands(node)) if is_float(n) and not (weighted and i > 0)]
