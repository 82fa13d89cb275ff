"""int4 weights: where a recipe asks for them, and where they add least noise if it allows a loss of SQNR.

Without a budget there are none: next to box coordinates in pixels the noise of scores is invisible in the predicted
SQNR, and with int4 weights 22 dB were left of the scores.
"""

from __future__ import annotations

from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.capture.op_semantics.weighted_ops import weight_axis
from ingot.core.fx import source_of
from ingot.errors import PlanError
from ingot.plan.cost_model import weight_noise
from ingot.plan.noise_model import elements
from ingot.plan.solver_state import SolverState
from ingot.targets.base import Format

ACTIVATIONS = {"int4": "int8"}  # TOSA has int4 weights with int8 activations only


def choose_int4_weights(state: SolverState) -> None:
    """Fill in state.weight_formats."""
    numerics, asked = state.target.numerics, state.user_constraints.weights
    weighted = [n for n in state.precisions if state.is_integer(n) and weight_axis(n) is not None]
    for node in weighted:
        scope = asked.get(node)
        if scope is not None and scope.weights in numerics.int4_weights:
            state.weight_formats[node] = _requested(node, str(scope.weights), state)
    for name, form in numerics.int4_weights.items() if numerics.packs_int4 else ():
        free = [n for n in weighted if state.precisions[n] == ACTIVATIONS[name] and n not in asked]
        _choose_within_budget(free, form, state)


def _requested(node: Node, name: str, state: SolverState) -> Format:
    if state.precisions[node] != ACTIVATIONS[name]:
        raise PlanError(
            f"'{node.name}' cannot have {name} weights",
            where=source_of(node),
            why=f"{name} weights need {ACTIVATIONS[name]} activations, and the op runs in {state.precisions[node]}",
            hint=f"ask for precision {ACTIVATIONS[name]} too",
        )
    return state.target.numerics.int4_weights[name]


def _choose_within_budget(free: list[Node], form: Format, state: SolverState) -> None:
    """Greedy by added noise per byte saved, until the noise budget is used up."""
    budget = state.total_noise * (10 ** (state.recipe.int4_sqnr_budget_db / 10) - 1)
    if budget <= 0:
        return
    default = state.target.numerics.weight
    added = {n: weight_noise(n, form, state) - weight_noise(n, default, state) for n in free}
    for node in sorted(added, key=lambda n: added[n] / elements(operands(n)[1])):
        if added[node] <= budget:
            budget -= max(added[node], 0.0)
            state.weight_formats[node] = form
            state.total_noise += added[node]
