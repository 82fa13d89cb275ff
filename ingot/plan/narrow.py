"""Narrower weights (int4) where a recipe asks for them, and where nobody would hear it."""

from __future__ import annotations

from torch.fx import Node

from ingot.errors import PlanError
from ingot.graph import source_of
from ingot.plan.costs import Costs
from ingot.plan.noise import elements
from ingot.plan.work import Work
from ingot.semantics import operands
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Format

UNHEARD = 0.01  # by this share all narrow weights together may raise the noise
LOUD = 0.01  # -20 dB: where a net is noisier than that, it is no excuse for more


def narrow(work: Work) -> None:
    """Fill in work.weights, the ops whose weights are stored in another form than the target's usual one."""
    costs = Costs(work)
    for node in [n for n in work.labels if work.is_integer(n) and weight_axis(n) is not None]:
        scope = work.demands.weights.get(node)
        if scope is not None and scope.weights in work.target.narrow_weights:
            work.weights[node] = _asked(node, str(scope.weights), work)
    for form in work.target.narrow_weights.values():
        _unheard(form, work, costs)


def _asked(node: Node, wish: str, work: Work) -> Format:
    if work.labels[node] != FITS[wish]:
        raise PlanError(
            f"'{node.name}' cannot have {wish} weights",
            where=source_of(node),
            why=f"they are multiplied with {FITS[wish]} only, and it runs in {work.labels[node]}",
            hint=f"ask for precision {FITS[wish]} there too",
        )
    return work.target.narrow_weights[wish]


FITS = {"int4": "int8"}  # TOSA's rows of legal operands: int16 goes with int8 weights only


def _unheard(form: Format, work: Work, costs: Costs) -> None:
    """The weights with most bytes for the least noise first, as long as the sum stays under the bar."""
    free = [n for n in work.labels if _may_be_narrow(n, work)]
    added = {n: costs.weight_noise(n, form) - costs.weight_noise(n, work.target.weight) for n in free}
    room = UNHEARD * min(work.total_noise, LOUD)
    for node in sorted(free, key=lambda n: added[n] / elements(operands(n)[1])):
        if added[node] <= room:
            room -= max(added[node], 0.0)
            work.weights[node] = form


def _may_be_narrow(node: Node, work: Work) -> bool:
    asked = node in work.demands.weights or node in work.weights
    return work.labels[node] == "int8" and weight_axis(node) is not None and not asked
