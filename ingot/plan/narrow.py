"""Narrower weights (int4) where a recipe asks for them.

Never unasked: beside boxes in pixels the noise of scores is nothing, and with four bits 22 dB were left of them.
"""

from __future__ import annotations

from torch.fx import Node

from ingot.errors import PlanError
from ingot.graph import source_of
from ingot.plan.work import Work
from ingot.semantics.weights import weight_axis
from ingot.targets.base import Format

FITS = {"int4": "int8"}  # TOSA's rows of legal operands: int16 goes with int8 weights only


def narrow(work: Work) -> None:
    """Fill in work.weights, the ops whose weights are stored in another form than the target's usual one."""
    for node in [n for n in work.labels if work.is_integer(n) and weight_axis(n) is not None]:
        scope = work.demands.weights.get(node)
        if scope is not None and scope.weights in work.target.narrow_weights:
            work.weights[node] = _asked(node, str(scope.weights), work)


def _asked(node: Node, wish: str, work: Work) -> Format:
    if work.labels[node] != FITS[wish]:
        raise PlanError(
            f"'{node.name}' cannot have {wish} weights",
            where=source_of(node),
            why=f"they are multiplied with {FITS[wish]} only, and it runs in {work.labels[node]}",
            hint=f"ask for precision {FITS[wish]} there too",
        )
    return work.target.narrow_weights[wish]
