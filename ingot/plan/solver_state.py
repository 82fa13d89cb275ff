"""The state of the solver: constraints and choices so far, and queries that several of its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.config.recipe import Recipe
from ingot.core.fx import is_float
from ingot.plan.constraints import Constraints
from ingot.plan.noise_model import NoiseModel
from ingot.plan.plan_data import Prediction, QParams
from ingot.plan.scale_groups import DisjointSets
from ingot.plan.user_constraints import UserConstraints
from ingot.plan.value_ranges import ValueRange
from ingot.targets.base import Format, Target

DEFAULT_NOISE_VS_LATENCY = 0.05
Point = tuple[Node, int | None]  # a quantization point: a node and one of its operands (None: its result)


@dataclass
class SolverState:
    module: GraphModule
    target: Target
    recipe: Recipe
    constraints: Constraints
    user_constraints: UserConstraints
    noise: NoiseModel
    range_estimator: str = "auto"  # where no scope names another
    precisions: dict[Node, str] = field(default_factory=dict)  # op -> the precision it runs in
    dynamic: set[Node] = field(default_factory=set)  # float ops that quantize their input at run time
    reasons: dict[Node, str] = field(default_factory=dict)  # op -> why that precision
    total_noise: float = 0.0  # predicted noise-to-signal ratio of the outputs
    total_time: float = 0.0  # estimated time of the baseline: each op in its first allowed format
    predicted: Prediction = field(default_factory=Prediction)
    fused: dict[Node, Node] = field(default_factory=dict)  # op -> the activation function that is fused into its kernel
    fused_activations: set[Node] = field(default_factory=set)  # the values of `fused`
    # point -> the qparams that the user gives, and who asks for them
    fixed_qparams: dict[Point, tuple[QParams, str]] = field(default_factory=dict)
    float_points: dict[Point, str] = field(default_factory=dict)  # float points of integer ops, and who asks for them
    weight_formats: dict[Node, Format] = field(default_factory=dict)  # op -> format of its weight, if not the default
    scale_groups: DisjointSets[Point] = field(default_factory=DisjointSets)
    qparams: dict[Point, QParams] = field(default_factory=dict)
    fixed: set[Point] = field(default_factory=set)  # points whose qparams neither the solver nor QAT may change
    because: dict[Point, tuple[str, ...]] = field(default_factory=dict)

    @property
    def noise_vs_latency(self) -> float:
        """The share of the estimated time that halving the output noise may cost."""
        asked = self.recipe.noise_vs_latency
        return DEFAULT_NOISE_VS_LATENCY if asked is None else asked

    def is_integer(self, node: Node) -> bool:
        return self.precisions.get(node, "float") != "float"

    def is_quantized(self, node: Node) -> bool:
        """The value exists as integers: the result of an integer op, or a graph input with qparams."""
        made = self.is_integer(node) and node not in self.fused and self.has_result_qparams(node)
        return made or (node, None) in self.fixed_qparams

    def has_result_qparams(self, node: Node) -> bool:
        """Not where the recipe asks for float, nor a comparison or an argmax: its result is of integers."""
        return (node, None) not in self.float_points and is_float(node)

    def format_of(self, point: Point) -> Format:
        return self.target.numerics.formats[self.precision_at(*point, self.precisions[point[0]])]

    def precision_at(self, node: Node, operand: int | None, precision: str) -> str:
        """The precision at a point of an op that runs in `precision`: some operands have one of their own."""
        own = self.constraints.operand_formats.get(node, {}) if precision != "float" else {}
        return own[operand][0] if operand in own else precision

    def weight_format(self, node: Node) -> Format:
        return self.weight_formats.get(node, self.target.numerics.weight)

    def shared_scale_operands(self, node: Node) -> tuple[int, ...]:
        """Operands of an integer op that must have the qparams of its output."""
        return () if node in self.fused_activations else self.constraints.shared_scale_operands.get(node, ())

    def value_range(self, point: Point) -> ValueRange:
        """As measured; a graph input with given qparams is clipped to the range that they represent."""
        low, high = self.constraints.value_range(value_at(point))
        given = self.fixed_qparams.get((value_at(point), None))
        if given is None or value_at(point).op != "placeholder" or point[1] is None:
            return low, high
        representable = given[0].representable_range
        return max(low, representable[0]), min(high, representable[1])

    def replace_qparams(self, point: Point, qparams: QParams, why: str) -> None:
        """New qparams for the whole scale group of a point, unless they are fixed."""
        members = {point, *self.scale_groups.paths_to(point)}
        if not members & self.fixed:
            for m in members:
                self.qparams[m] = qparams
                self.because[m] = (*self.because.get(m, ()), why)


def value_at(point: Point) -> Node:
    """The value that is quantized at a point."""
    node, operand = point
    return node if operand is None else operands(node)[operand]


def quantized_operands(node: Node, state: SolverState) -> list[int]:
    """Quantized operands of an integer op, except weight and bias; none for an op fused into another kernel."""
    if node in state.fused_activations:
        return []
    return [i for i in activation_operands(node) if (node, i) not in state.float_points]


def activation_operands(node: Node) -> list[int]:
    """Float operands other than the weight and the bias."""
    weighted = weight_axis(node) is not None
    return [i for i, n in enumerate(operands(node)) if is_float(n) and not (weighted and i > 0)]
