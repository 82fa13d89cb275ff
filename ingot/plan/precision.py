"""Which ops run on integers: the precisions with the least time + worth * log(noise + enough), by minimum cuts.

The logarithm is concave, so its tangent at the noise of the last assignment bounds it above: each round is an exact
two-label minimum cut, and the objective falls from round to round. Three precisions (int8, int16, float) are taken two
at a time: int against float, then int8 against int16 among what stayed int8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from torch.fx import Node

from ingot.plan.cost_model import Costs
from ingot.plan.mincut import Energy, least
from ingot.plan.noise_model import errors
from ingot.plan.state import Work

ROUNDS = 6
SILENCE = 1e-12  # -120 dB: as good as none
ENOUGH = 1e-4  # -40 dB: what good int8 nets reach; nobody pays for much less


def assign(work: Work) -> None:
    """Fill in work.precisions, work.reasons and the totals."""
    costs, options = Costs(work), work.facts.options
    order = [*work.target.numerics.formats, "float"]
    work.precisions = {n: next(p for p in order if p in found) for n, found in options.items()}
    unhurried = sum(costs.time(n, precision) for n, precision in work.precisions.items())
    for pair in [(p, "float") for p in order[:1]] + [(order[0], p) for p in order[1:-1]]:
        _improve(work, costs, pair, unhurried)
    work.total_time, work.total_noise = unhurried, _noise(work, costs)
    for node in options:
        work.reasons[node] = _reason(node, work, costs)


def _improve(work: Work, costs: Costs, pair: tuple[str, str], unhurried: float) -> None:
    """Rounds of cuts between two precisions, until nothing changes."""
    unasked = work.recipe.noise_vs_latency is None and pair[1] != "float"
    worth = (work.target.cost.wider_integers if unasked else work.worth) / math.log(2) * unhurried
    for _ in range(ROUNDS):
        rate = worth / (_noise(work, costs) + ENOUGH)
        before = dict(work.precisions)
        work.precisions |= least(_energy(work, costs, pair, rate))
        if work.precisions == before:
            return


def _noise(work: Work, costs: Costs) -> float:
    return _given(work) + sum(_noise_at(n, precision, work, costs) for n, precision in work.precisions.items())


def _given(work: Work) -> float:
    """What the scales of graph inputs that were asked for round and clip."""
    asked = ((n, s) for (n, i), (s, _) in work.fixed_qparams.items() if n.op == "placeholder" and i is None)
    return sum(float(errors(work.noise.points(n), [s])[0]) * work.noise.sensitivity(n) for n, s in asked)


def _noise_at(node: Node, precision: str, work: Work, costs: Costs) -> float:
    """The op's own noise, and that of quantizing what it reads from float (or from finer integers)."""
    if precision == "float":
        return 0.0
    edges = [(i, v, work.precision_at(node, i, precision)) for i, v in costs.edges(node)]
    entering = (costs.entering(node, i, precision) for i, v, at in edges if _coarsens(v, at, work))
    return costs.noise(node, precision) + sum(entering)


def _coarsens(value: Node, precision: str, work: Work) -> bool:
    before = work.precisions.get(value, "float")
    return before != precision and (before == "float" or precision == "int8")


@dataclass(frozen=True)
class _Terms:
    """What choices cost: at an op, and between an op and what it reads."""

    work: Work
    costs: Costs
    rate: float

    def at(self, node: Node, precision: str) -> float:
        return self.costs.time(node, precision) + self.rate * self.costs.noise(node, precision)

    def between(self, value: Node, reader: Node, operand: int, before: str, after: str) -> float:
        # The way in is no choice: somebody asked for integers, so what comes from outside is converted at some point.
        at = self.work.precision_at(reader, operand, after)
        spent = self.costs.crossing(value, before, at) if value in self.work.precisions else 0.0
        coarser = before != at and at != "float" and (before == "float" or at == "int8")
        return spent + (self.rate * self.costs.entering(reader, operand, after) if coarser else 0.0)


def _energy(work: Work, costs: Costs, pair: tuple[str, str], rate: float) -> Energy:
    """Free are the ops that have one of the two precisions now and may have the other."""
    terms, energy = _Terms(work, costs, rate), Energy()
    choices = {n: _choice(n, work, pair) for n in work.precisions}
    for node, (low, high) in choices.items():
        energy.add(node, {low: terms.at(node, low), high: terms.at(node, high)}, (low, high))
    for node in work.precisions:
        for i, value in costs.edges(node):
            a, b = choices.get(value, ("float", "float")), choices[node]
            energy.edge(value, node, a, b, partial(terms.between, value, node, i))
    return energy


def _choice(node: Node, work: Work, pair: tuple[str, str]) -> tuple[str, str]:
    """(integer, other); twice the same precision where there is nothing to choose."""
    precision, options = work.precisions[node], work.facts.options[node]
    if pair[1] == "float" and "float" in options and len(options) > 1:
        return next(p for p in work.target.numerics.formats if p in options), "float"
    if pair[1] != "float" and precision in pair and set(pair) <= options.keys():
        return pair
    return precision, precision


def _reason(node: Node, work: Work, costs: Costs) -> str:
    precision, options = work.precisions[node], work.facts.options[node]
    others = [p for p in (*work.target.numerics.formats, "float") if p in options and p != precision]
    if precision == "float" and node in work.facts.barred and not others:
        return work.facts.barred[node]
    text = options[precision] if precision != "float" or not others else "chosen by price"
    return "; ".join([text, *(_compare(node, precision, other, work, costs) for other in others)])


def _compare(node: Node, precision: str, other: str, work: Work, costs: Costs) -> str:
    """What the other choice for this op alone would do to the noise of the outputs and to the time."""
    now, then = (_around(node, p, work, costs) for p in (precision, other))
    noise = (work.total_noise - now[1] + then[1]) / max(work.total_noise, SILENCE)
    change = f"{10 * math.log10(noise):+.1f} dB" if noise > 0 else "all"
    return f"{other} would be {change} of noise for {(then[0] - now[0]) / work.total_time:+.1%} of time"


def _around(node: Node, precision: str, work: Work, costs: Costs) -> tuple[float, float]:
    """Time and noise of an op and of the conversions next to it, were it `precision`."""
    terms = _Terms(work, costs, 1.0)
    time, noise = costs.time(node, precision), costs.noise(node, precision)
    edges = [(v, node, i, work.precisions.get(v, "float"), precision) for i, v in costs.edges(node)]
    for user in _users(node, work):
        edges += [(node, user, i, precision, work.precisions[user]) for i, v in costs.edges(user) if v is node]
    for value, reader, i, before, after in edges:
        spent = costs.crossing(value, before, after) if value in work.precisions else 0.0
        time, noise = time + spent, noise + terms.between(value, reader, i, before, after) - spent
    return time, noise


def _users(node: Node, work: Work) -> Iterable[Node]:
    return (u for u in node.users if u in work.precisions)
