"""What a precision costs: time from the target's prices, noise at the outputs from histograms and gains."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, evaluate_fake, is_float
from ingot.plan.noise_model import elements, known_size
from ingot.plan.qparams import weight_qparams
from ingot.plan.state import Work, activation_operands
from ingot.plan.value_ranges import width
from ingot.targets.base import Format

BYTES = {"int8": 1, "int16": 2, "float": 4}


@dataclass
class Costs:
    """Answers about single ops and edges; weights are looked at once."""

    work: Work
    _weights: dict[Node, float] = field(default_factory=dict)

    def time(self, node: Node, precision: str) -> float:
        """Multiplications, bytes moved, one call, the weights in the file; and a hop where only the host can run it."""
        prices = self.work.target.cost
        moved = elements(node) + sum(elements(n) for n in operands(node) if is_float(n))
        spent = (
            prices.op
            + prices.multiply.get(precision, 1.0) * multiplications(node)
            + prices.byte * BYTES[precision] * moved
        )
        spent += prices.weight_byte * _weight_bytes(node, precision)
        runs = self.work.target.kernels.ability(node).runs
        return spent if precision in runs or precision != "float" else spent + prices.boundary

    def crossing(self, value: Node, before: str, after: str) -> float:
        """One conversion of a value."""
        if before == after:
            return 0.0
        prices = self.work.target.cost
        return prices.op + prices.byte * (BYTES[before] + BYTES[after]) * elements(value)

    def step(self, value: Node, precision: str) -> float:
        form, span = self.work.target.numerics.formats[precision], self.work.facts.span(value)
        reach = 2 * max(-span[0], span[1]) if form.symmetric else width(span)
        return reach / (form.qmax - form.qmin)

    def noise(self, node: Node, precision: str) -> float:
        """What running the op on integers adds to the noise of the outputs: its result and its weight, rounded."""
        if precision == "float":
            return 0.0
        return self._result(node, precision) + self._weight(node)

    def _result(self, node: Node, precision: str) -> float:
        noise, facts = self.work.noise, self.work.facts
        if node in facts.fusable:
            return 0.0
        if carriers := facts.bound.get(node, ()):
            return self._joined(node, carriers, precision)
        return noise.rounding(node, self.step(node, precision)) * noise.sensitivity(node)

    def _joined(self, node: Node, carriers: tuple[int, ...], precision: str) -> float:
        """Operands narrower than what they are joined with are rounded again, to the coarser steps."""
        values = {i: operands(node)[i] for i in carriers}
        coarse = max(self.step(v, precision) for v in values.values())
        coarser = {i: v for i, v in values.items() if self.step(v, precision) < coarse}
        noise = self.work.noise
        return sum(noise.rounding(v, coarse) * noise.sensitivity_at(node, i) for i, v in coarser.items())

    def _weight(self, node: Node) -> float:
        if weight_axis(node) is None:
            return 0.0
        if node not in self._weights:
            self._weights[node] = weight_noise(node, self.work.target.numerics.weight, self.work)
        return self._weights[node]

    def entering(self, reader: Node, operand: int, precision: str) -> float:
        """Noise of quantizing a float value where one reader takes it."""
        value = operands(reader)[operand]
        if constant_of(value) is None and (value, None) in self.work.fixed_qparams:
            return 0.0
        noise = self.work.noise
        at = self.work.precision_at(reader, operand, precision)
        return noise.rounding(value, self.step(value, at)) * noise.sensitivity_at(reader, operand)

    def edges(self, node: Node) -> list[tuple[int, Node]]:
        """The activations an op reads, with their positions."""
        return [(i, operands(node)[i]) for i in activation_operands(node)]


def _weight_bytes(node: Node, precision: str) -> int:
    """Weights of integer ops take a byte each, whatever their activations take."""
    if weight_axis(node) is None:
        return 0
    return elements(operands(node)[1]) * (4 if precision == "float" else 1)


_counted: dict[tuple[object, ...], float] = {}


def multiplications(node: Node) -> float:
    """Multiply-adds, counted by torch itself on values without data; at least one an element."""
    shapes = tuple(tuple(map(known_size, getattr(n.meta.get("val"), "shape", ()))) for n in (*operands(node), node))
    signature = (node.target, shapes)
    if signature not in _counted:
        _counted[signature] = _count(node)
    return _counted[signature]


def _count(node: Node) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with contextlib.suppress(Exception), counter:  # what cannot be run alone counts as elementwise
        evaluate_fake(node)
    return max(known_size(counter.get_total_flops()) / 2, float(elements(node)))


def weight_noise(node: Node, form: Format, work: Work) -> float:
    """What storing the weight so adds to the noise of the outputs."""
    weight = constant_of(operands(node)[1])
    assert weight is not None  # relations offers integers only with a static weight
    return work.noise.of_weight(node, weight, weight_qparams(weight, form, work.target.kernels.weight_axis(node)))
