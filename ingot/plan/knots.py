"""Functions that a backend interpolates between few knots: room in their results for the knots around what they read.

A knot that does not fit is cut off, and the line from the knot before it bends: a SiLU in int16 was 19 steps off.
"""

from __future__ import annotations

import numpy as np
from torch.fx import Node

from ingot.plan.model import Storage
from ingot.plan.qparams import storage_for
from ingot.plan.spans import Span, hull, width
from ingot.plan.through import function_of
from ingot.plan.work import Work
from ingot.semantics import operands

MOST = 1 / 8  # of a range, that may be added to it: near a pole no range would do


def make_room(work: Work) -> None:
    """In graph order: what a function reads has its final scale before it."""
    for node in work.labels:
        knots = work.target.knots.get(work.labels[node])
        if knots and (node, 0) in work.storages and (node, None) in work.storages.keys() - work.fixed:
            _widen(node, knots, work)


def _widen(node: Node, knots: int, work: Work) -> None:
    stored, needed = work.storages[node, None], _needed(node, knots, work)
    span = hull([stored.span, needed])
    if width(span) <= width(stored.span):
        return
    wider = storage_for(*span, work.format_of((node, None)))
    for place in ((node, None), *work.classes.ways((node, None))):
        work.storages[place] = wider
        work.because[place] = (*work.because.get(place, ()), f"with room for the knots of {node.name}")


def _needed(node: Node, knots: int, work: Work) -> Span:
    """What the function gives at the outermost knots, as far as there is any use in it."""
    low, high = work.facts.span(node)
    function = function_of(node)
    if function is None:
        return low, high
    found = function(np.array(_outermost(work.facts.span(operands(node)[0]), work.storages[node, 0], knots)))
    more = (high - low) * MOST
    ends = np.clip(found[np.isfinite(found)], low - more, high + more).tolist()
    return min([low, *ends]), max([high, *ends])


def _outermost(read: Span, storage: Storage, knots: int) -> Span:
    """The knots that enclose what is read; zero is one."""
    step = (storage.qmax - storage.qmin + 2) / knots * storage.scale  # type: ignore[operator]
    return float(np.floor(read[0] / step) * step), float(np.ceil(read[1] / step) * step)
