"""The cost of a precision: estimated time from the target's cost model, output noise from the noise model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import constant_of, evaluate_fake, is_float
from ingot.core.shape_cache import ShapeCache
from ingot.plan.noise_model import TOKEN_SCALE_FLOOR, elements, size_hint
from ingot.plan.qparams import weight_qparams
from ingot.plan.solver_state import SolverState, activation_operands
from ingot.plan.value_ranges import width
from ingot.targets.base import DYNAMIC, Format

# A token has at most the range of all data. This is an assumption, not a measurement; the simulation corrects it.
TOKEN_NOISE = 0.5
BYTES = {"int8": 1, "int16": 2, "float": 4}


@dataclass
class OpCosts:
    """Costs of single ops and edges. The noise of each weight is computed once."""

    state: SolverState
    _weight_noise: dict[Node, float] = field(default_factory=dict)
    _dynamic_noise: dict[Node, float] = field(default_factory=dict)

    def time(self, node: Node, precision: str) -> float:
        """MACs, bytes moved, a kernel call, weight bytes in the file; a delegate boundary if only the host runs it."""
        cost = self.state.target.cost
        moved = elements(node) + sum(elements(n) for n in operands(node) if is_float(n))
        time = cost.op + cost.multiply.get(precision, 1.0) * mac_count(node) + cost.byte * BYTES[precision] * moved
        time += cost.weight_byte * _weight_bytes(node, precision)
        runs = self.state.target.kernels.ability(node).runs
        return time if precision in runs or precision != "float" else time + cost.boundary

    def dynamic_time(self, node: Node) -> float:
        """With a quantize op of its own, and float at both ends."""
        cost, x = self.state.target.cost, operands(node)[0]
        quantize = cost.op + cost.byte * (BYTES["float"] + BYTES["int8"]) * elements(x)
        moved = BYTES["float"] * elements(node) + BYTES["int8"] * elements(x)
        return (
            cost.op + cost.multiply[DYNAMIC] * mac_count(node) + cost.byte * moved + quantize
            + cost.weight_byte * _weight_bytes(node, DYNAMIC)
        )  # fmt: skip

    def dynamic_noise(self, node: Node) -> float:
        """Output noise from rounding the weight, and each token of the input with a scale of its own."""
        if node not in self._dynamic_noise:
            x, noise = operands(node)[0], self.state.noise
            form, (low, high) = next(iter(self.state.target.numerics.formats.values())), self._token_range(x)
            error = noise.rounding_error(x, max((high - low) / (form.qmax - form.qmin), TOKEN_SCALE_FLOOR))
            self._dynamic_noise[node] = TOKEN_NOISE * error * noise.sensitivity_at(node, 0) + self._weight(node)
        return self._dynamic_noise[node]

    def _token_range(self, value: Node) -> tuple[float, float]:
        """At most that of all data; it contains zero."""
        low, high = self.state.constraints.value_range(value)
        return min(low, 0.0), max(high, 0.0)

    def conversion_time(self, value: Node, before: str, after: str) -> float:
        """The time to quantize, dequantize or requantize a value between two precisions."""
        if before == after:
            return 0.0
        cost = self.state.target.cost
        return cost.op + cost.byte * (BYTES[before] + BYTES[after]) * elements(value)

    def scale(self, value: Node, precision: str) -> float:
        """The scale of the value's range in this precision."""
        form, value_range = self.state.target.numerics.formats[precision], self.state.constraints.value_range(value)
        covered = 2 * max(-value_range[0], value_range[1]) if form.symmetric else width(value_range)
        return covered / (form.qmax - form.qmin)

    def noise(self, node: Node, precision: str) -> float:
        """Output noise from running the op on integers: from quantizing its result and its weight."""
        if precision == "float":
            return 0.0
        return self._result_noise(node, precision) + self._weight(node)

    def _result_noise(self, node: Node, precision: str) -> float:
        noise, constraints = self.state.noise, self.state.constraints
        if node in constraints.fusable or not is_float(node):
            return 0.0
        if shared := constraints.shared_scale_operands.get(node, ()):
            return self._shared_scale_noise(node, shared, precision)
        return noise.rounding_error(node, self.scale(node, precision)) * noise.sensitivity(node)

    def _shared_scale_noise(self, node: Node, shared: tuple[int, ...], precision: str) -> float:
        """Operands with a finer scale than the shared one are rounded again, to the coarse one; constants are, too."""
        values = {i: operands(node)[i] for i in shared}
        coarsest = max(self.scale(v, precision) for v in (node, *values.values()))
        finer = {i: v for i, v in values.items() if self.scale(v, precision) < coarsest}
        noise = self.state.noise
        again = sum(noise.rounding_error(v, coarsest) * noise.sensitivity_at(node, i) for i, v in finer.items())
        return again + self._constant_noise(node, coarsest)

    def _constant_noise(self, node: Node, scale: float) -> float:
        """The bounds of a clamp have the scale of its operand: with a coarse one, 6 becomes 0. No gradient shows it.

        In the kernel of its producer a clamp has a scale of its own.
        """
        noise, found = self.state.noise, self.state.constraints
        if scale == 0 or node in found.fusable.values():
            return 0.0
        errors = (noise.constant_error(node, c, scale) for c in found.effects[node].constants)
        return sum(errors) * noise.sensitivity(node)

    def _weight(self, node: Node) -> float:
        if weight_axis(node) is None:
            return 0.0
        if node not in self._weight_noise:
            self._weight_noise[node] = weight_noise(node, self.state.target.numerics.weight, self.state)
        return self._weight_noise[node]

    def operand_noise(self, consumer: Node, operand: int, precision: str) -> float:
        """Output noise from quantizing a float value at one operand."""
        value = operands(consumer)[operand]
        if constant_of(value) is None and (value, None) in self.state.fixed_qparams:
            return 0.0
        noise = self.state.noise
        at = self.state.precision_at(consumer, operand, precision)
        return noise.rounding_error(value, self.scale(value, at)) * noise.sensitivity_at(consumer, operand)

    def edges(self, node: Node) -> list[tuple[int, Node]]:
        """The activations that an op reads, with their operand positions."""
        return [(i, operands(node)[i]) for i in activation_operands(node)]


def _weight_bytes(node: Node, precision: str) -> int:
    """Integer ops have int8 weights, whatever the precision of their activations."""
    if weight_axis(node) is None:
        return 0
    return elements(operands(node)[1]) * (4 if precision == "float" else 1)


_mac_counts = ShapeCache[float]()


def mac_count(node: Node) -> float:
    """Multiply-accumulates by torch's own counter, on fake tensors; at least one per element of the result."""
    shapes = tuple(tuple(map(size_hint, getattr(n.meta.get("val"), "shape", ()))) for n in (*operands(node), node))
    return _mac_counts.get((node.target, shapes), lambda: _count_macs(node))


def _count_macs(node: Node) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with contextlib.suppress(Exception), counter:  # an op that cannot run alone counts as elementwise
        evaluate_fake(node)
    return max(size_hint(counter.get_total_flops()) / 2, float(elements(node)))


def weight_noise(node: Node, form: Format, state: SolverState) -> float:
    """Output noise from quantizing the op's weight to this format."""
    weight = constant_of(operands(node)[1])
    assert weight is not None  # constraints allow integers only with a constant weight
    return state.noise.of_weight(node, weight, weight_qparams(weight, form, state.target.kernels.weight_axis(node)))
