"""Narrower weights (int4): where a recipe asks for them, and where they are cheapest if it says what they may cost.

Never for nothing: beside boxes in pixels the noise of scores is nothing, and with four bits 22 dB were left of them.
"""

from __future__ import annotations

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import source_of
from ingot.errors import PlanError
from ingot.plan.cost_model import weight_noise
from ingot.plan.noise_model import elements
from ingot.plan.state import Work
from ingot.targets.base import Format

FITS = {"int4": "int8"}  # TOSA's rows of legal operands: int16 goes with int8 weights only


def narrow(work: Work) -> None:
    """Fill in work.weights, the ops whose weights are stored in another form than the target's usual one."""
    weighted = [n for n in work.precisions if work.is_integer(n) and weight_axis(n) is not None]
    for node in weighted:
        scope = work.user_constraints.weights.get(node)
        if scope is not None and scope.weights in work.target.numerics.int4_weights:
            work.weights[node] = _asked(node, str(scope.weights), work)
    for name, form in work.target.numerics.int4_weights.items() if work.target.numerics.packs_int4 else ():
        free = [n for n in weighted if work.precisions[n] == FITS[name] and n not in work.user_constraints.weights]
        _cheapest(free, form, work)


def _asked(node: Node, wish: str, work: Work) -> Format:
    if work.precisions[node] != FITS[wish]:
        raise PlanError(
            f"'{node.name}' cannot have {wish} weights",
            where=source_of(node),
            why=f"they are multiplied with {FITS[wish]} only, and it runs in {work.precisions[node]}",
            hint=f"ask for precision {FITS[wish]} there too",
        )
    return work.target.numerics.int4_weights[wish]


def _cheapest(free: list[Node], form: Format, work: Work) -> None:
    """Those that save most bytes for the noise they add, as long as all of it together stays in the budget."""
    room = work.total_noise * (10 ** (work.recipe.int4_sqnr_budget_db / 10) - 1)
    added = (
        {n: weight_noise(n, form, work) - weight_noise(n, work.target.numerics.weight, work) for n in free}
        if room > 0
        else {}
    )
    for node in sorted(added, key=lambda n: added[n] / elements(operands(n)[1])):
        if added[node] <= room:
            room -= max(added[node], 0.0)
            work.weights[node] = form
            work.total_noise += added[node]
