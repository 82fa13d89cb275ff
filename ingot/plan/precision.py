"""The precision of each op: minimises time + weight * log(noise + NOISE_FLOOR) by a sequence of minimum cuts.

The logarithm is concave, so its tangent at the current noise bounds it from above (majorize-minimize). Each round
minimises that bound exactly, by one minimum cut between two precisions. With int8, int16 and float the first cuts
choose between integers and float, the next ones between int8 and int16, the last ones between int16 and float. A round
that does not lower the objective is undone.

The bound is loose where noise is as large as the signal: there the tangent is flat, and no single op pays for a wider
precision. So a plan that ends there is searched again from the widest precisions, and the better of the two is kept.

Which precisions an op may run in is in constraints.py; what a recipe demands, in user_constraints.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch.fx import Node

from ingot.core.fx import source_of
from ingot.plan.cost_model import OpCosts
from ingot.plan.mincut import PairwiseEnergy, minimize
from ingot.plan.noise_model import quantization_errors
from ingot.plan.plan_data import Prediction
from ingot.plan.solver_state import SolverState
from ingot.targets.base import DYNAMIC

MAX_ROUNDS = 6
NOISE_EPSILON = 1e-12  # noise-to-signal ratio of -120 dB: counts as no noise
NOISIEST = 5  # ops that a prediction names
NOISE_FLOOR = 1e-4  # -40 dB, what good int8 nets reach: noise far below it has no value
RUINOUS_NOISE = 1e-1  # of the signal: the check would refuse some output, or a part of one


def assign_precisions(state: SolverState) -> None:
    """Fill in state.precisions, state.reasons, state.total_noise and state.total_time."""
    costs, options = OpCosts(state), state.constraints.options
    order = [*state.target.numerics.formats, "float"]
    state.precisions = {n: next(p for p in order if p in found) for n, found in options.items()}
    state.dynamic = {n for n in state.user_constraints.dynamic if n in state.constraints.dynamic}
    baseline_time = sum(costs.time(n, precision) for n, precision in state.precisions.items())
    for pair in _pairs(order):
        _improve(state, costs, pair, baseline_time)
    state.total_time, state.total_noise = baseline_time, _total_noise(state, costs)
    for node in options:
        state.reasons[node] = _reason(node, state, costs)
    state.predicted = _prediction(state, costs)


def _pairs(order: Sequence[str]) -> list[tuple[str, str]]:
    """Narrowest against float, narrowest against wider integers; then these against float."""
    first, *wider = order[:-1] or ["float"]
    return [(p, "float") for p in order[:1]] + [(first, p) for p in wider] + [(p, "float") for p in wider]


def _prediction(state: SolverState, costs: OpCosts) -> Prediction:
    noise = {n: _op_noise(n, p, state, costs) for n, p in state.precisions.items()}
    total = max(state.total_noise, NOISE_EPSILON)
    sqnr_db = -10 * math.log10(total) if state.total_noise > NOISE_EPSILON else None
    noisiest = sorted((n for n, e in noise.items() if e > 0), key=lambda n: -noise[n])[:NOISIEST]
    return Prediction(
        time=_estimated_time(state, costs),
        sqnr_db=sqnr_db,
        modelled_sqnr_db=sqnr_db,
        precisions=dict(Counter(_precision_name(n, state) for n in state.precisions)),
        noisiest=tuple(
            f"{n.name} ({source_of(n)}) in {_precision_name(n, state)}: {noise[n] / total:.0%} of the noise"
            for n in noisiest
        ),
    )


def _precision_name(node: Node, state: SolverState) -> str:
    return DYNAMIC if node in state.dynamic else state.precisions[node]


def _estimated_time(state: SolverState, costs: OpCosts) -> float:
    """Of all ops and of the conversions between their precisions."""
    ops = sum(_time(n, precision, state, costs) for n, precision in state.precisions.items())
    read = ((n, i, v) for n in state.precisions for i, v in costs.edges(n) if v in state.precisions)
    conversions = (
        costs.conversion_time(v, state.precisions[v], state.precision_at(n, i, state.precisions[n])) for n, i, v in read
    )
    return ops + sum(conversions)


def _improve(state: SolverState, costs: OpCosts, pair: tuple[str, str], baseline_time: float) -> None:
    """The better of two searches, from the current precisions and, if these end in noise, from the wider ones."""
    by_target = state.recipe.noise_vs_latency is None and pair[1] != "float"
    share_of_time = _int16_share(state, costs) if by_target else state.noise_vs_latency
    halving = baseline_time / math.log(2)
    weight = share_of_time * halving
    wide = {n: _choice(n, state, pair)[1] for n in state.precisions}
    _descend(state, costs, pair, weight)
    if wide != state.precisions and _total_noise(state, costs) > RUINOUS_NOISE:
        weight = max(weight, state.noise_vs_latency * halving)  # an output without its signal is worth no saved time
        found = dict(state.precisions), state.dynamic, _price(state, costs, weight)
        state.precisions, state.dynamic = wide, {*state.user_constraints.dynamic} & state.constraints.dynamic.keys()
        _descend(state, costs, pair, weight)
        if _price(state, costs, weight) >= found[2]:
            state.precisions, state.dynamic = found[:2]


def _price(state: SolverState, costs: OpCosts, weight: float) -> float:
    """What is minimised."""
    return _estimated_time(state, costs) + weight * math.log(_total_noise(state, costs) + NOISE_FLOOR)


def _descend(state: SolverState, costs: OpCosts, pair: tuple[str, str], weight: float) -> None:
    """Minimum cuts between two precisions until nothing changes."""
    for _ in range(MAX_ROUNDS):
        noise_price = weight / (_total_noise(state, costs) + NOISE_FLOOR)  # slope of the tangent
        before, price = (dict(state.precisions), state.dynamic), _price(state, costs, weight)
        state.precisions |= minimize(_energy(state, costs, pair, noise_price))
        state.dynamic = _Objective(state, costs, noise_price).dynamic_ops()
        if _price(state, costs, weight) >= price:
            state.precisions, state.dynamic = before
            return


def _int16_share(state: SolverState, costs: OpCosts) -> float:
    """The target's; all of the time where int8 has more noise than the check allows: it would be refused."""
    too_much = _total_noise(state, costs) > 10 ** (-state.recipe.min_sqnr_db / 10)
    return 1.0 if too_much else state.target.cost.int16_time_budget


def _total_noise(state: SolverState, costs: OpCosts) -> float:
    ops = sum(_op_noise(n, precision, state, costs) for n, precision in state.precisions.items())
    return _fixed_input_noise(state) + ops


def _fixed_input_noise(state: SolverState) -> float:
    """Output noise from the graph inputs whose qparams are given."""
    given = ((n, q) for (n, i), (q, _) in state.fixed_qparams.items() if n.op == "placeholder" and i is None)
    noise = state.noise
    return sum(float(quantization_errors(noise.distribution(n), [q])[0]) * noise.sensitivity(n) for n, q in given)


def _op_noise(node: Node, precision: str, state: SolverState, costs: OpCosts) -> float:
    """The op's own noise, and that of quantizing operands from float or from wider integers."""
    if precision == "float":
        return costs.dynamic_noise(node) if node in state.dynamic else 0.0
    edges = [(i, v, state.precision_at(node, i, precision)) for i, v in costs.edges(node)]
    read = (
        costs.operand_noise(node, i, precision)
        for i, v, at in edges
        if _loses_precision(state.precisions.get(v, "float"), at)
    )
    return costs.noise(node, precision) + sum(read)


def _time(node: Node, precision: str, state: SolverState, costs: OpCosts) -> float:
    return costs.dynamic_time(node) if precision == "float" and node in state.dynamic else costs.time(node, precision)


def _loses_precision(before: str, after: str) -> bool:
    return before != after and after != "float" and (before == "float" or after == "int8")


@dataclass(frozen=True)
class _Objective:
    """The linearized objective, time + noise_price * noise: its unary and its pairwise terms.

    An op that quantizes its input at run time reads and gives float: to its neighbours it is a float op. So the better
    of the two is taken wherever an op is float.
    """

    state: SolverState
    costs: OpCosts
    noise_price: float

    def unary(self, node: Node, precision: str) -> float:
        if precision == "float" and node in self.state.constraints.dynamic:
            return min(self._float(node), self._dynamic(node))
        return self.costs.time(node, precision) + self.noise_price * self.costs.noise(node, precision)

    def dynamic_ops(self) -> set[Node]:
        """Of the float ops, those for which quantizing the input at run time is better."""
        able = (n for n in self.state.constraints.dynamic if self.state.precisions[n] == "float")
        return {n for n in able if self._dynamic(n) < self._float(n)}

    def _float(self, node: Node) -> float:
        return math.inf if node in self.state.user_constraints.dynamic else self.costs.time(node, "float")

    def _dynamic(self, node: Node) -> float:
        return self.costs.dynamic_time(node) + self.noise_price * self.costs.dynamic_noise(node)

    def pairwise(self, value: Node, consumer: Node, operand: int, before: str, after: str) -> float:
        # A graph input is quantized somewhere in any case, so its conversion time is not counted.
        at = self.state.precision_at(consumer, operand, after)
        time = self.costs.conversion_time(value, before, at) if value in self.state.precisions else 0.0
        if not _loses_precision(before, at):
            return time
        return time + self.noise_price * self.costs.operand_noise(consumer, operand, after)


def _energy(state: SolverState, costs: OpCosts, pair: tuple[str, str], noise_price: float) -> PairwiseEnergy:
    """Free nodes are the ops that have one precision of the pair and may have the other."""
    objective, energy = _Objective(state, costs, noise_price), PairwiseEnergy()
    choices = {n: _choice(n, state, pair) for n in state.precisions}
    for node, (a, b) in choices.items():
        energy.add_node(node, {a: objective.unary(node, a), b: objective.unary(node, b)}, (a, b))
    for node in state.precisions:
        for i, value in costs.edges(node):
            of_value, of_node = choices.get(value, ("float", "float")), choices[node]
            energy.add_edge(value, node, of_value, of_node, partial(objective.pairwise, value, node, i))
    return energy


def _choice(node: Node, state: SolverState, pair: tuple[str, str]) -> tuple[str, str]:
    """(narrower, wider); twice the same precision where there is no choice."""
    precision, options = state.precisions[node], state.constraints.options[node]
    if pair[1] == "float" and "float" in options and len(options) > 1:
        narrow = next(p for p in (pair[0], *state.target.numerics.formats) if p in options)
        return (narrow, "float") if precision in (narrow, "float") else (precision, precision)
    if pair[1] != "float" and precision in pair and set(pair) <= options.keys():
        return pair
    return precision, precision


def _reason(node: Node, state: SolverState, costs: OpCosts) -> str:
    precision, options = state.precisions[node], state.constraints.options[node]
    if node in state.dynamic:
        return f"{state.constraints.dynamic[node]}; lowest combined cost (latency and noise)"
    others = [p for p in (*state.target.numerics.formats, "float") if p in options and p != precision]
    if precision == "float" and node in state.constraints.float_only and not others:
        return state.constraints.float_only[node]
    text = options[precision] if precision != "float" or not others else "lowest combined cost (latency and noise)"
    return "; ".join([text, *(_compare(node, precision, other, state, costs) for other in others)])


def _compare(node: Node, precision: str, other: str, state: SolverState, costs: OpCosts) -> str:
    """What another precision for this op alone would change in the output noise and in the time."""
    now, then = (_local_cost(node, p, state, costs) for p in (precision, other))
    ratio = (state.total_noise - now[1] + then[1]) / max(state.total_noise, NOISE_EPSILON)
    noise = f"output noise {10 * math.log10(ratio):+.1f} dB" if ratio > 0 else "no output noise"
    return f"{other} instead: {noise}, estimated time {(then[0] - now[0]) / state.total_time:+.1%}"


def _local_cost(node: Node, precision: str, state: SolverState, costs: OpCosts) -> tuple[float, float]:
    """Time and noise of an op in `precision` and of the conversions around it."""
    objective = _Objective(state, costs, 1.0)
    time, noise = costs.time(node, precision), costs.noise(node, precision)
    edges = [(v, node, i, state.precisions.get(v, "float"), precision) for i, v in costs.edges(node)]
    for user in _users(node, state):
        edges += [(node, user, i, precision, state.precisions[user]) for i, v in costs.edges(user) if v is node]
    for value, consumer, i, before, after in edges:
        conversion = costs.conversion_time(value, before, after) if value in state.precisions else 0.0
        time, noise = time + conversion, noise + objective.pairwise(value, consumer, i, before, after) - conversion
    return time, noise


def _users(node: Node, state: SolverState) -> Iterable[Node]:
    return (u for u in node.users if u in state.precisions)
