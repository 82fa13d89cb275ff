"""Functions that a backend interpolates between few knots: scales that suit those.

A knot that does not fit into the result is cut off, and the line from the knot before it bends: a SiLU in int16 was 19
steps off. A corner of the function (hard swish at -3) between two knots is cut: 10 steps.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch.fx import Node

from ingot.capture.op_semantics import operands
from ingot.plan.model import QParams
from ingot.plan.pointwise_consumers import Function, function_of
from ingot.plan.qparams import qparams_for
from ingot.plan.state import Place, Work
from ingot.plan.value_ranges import Span, hull, width

MOST = 1 / 8  # of a range, that may be added to it: near a pole no range would do, nor for corners close to zero
GRID = np.arange(-8, 8, 2**-6)  # where corners are looked for


def suit_knots(work: Work) -> None:
    """In graph order: what a function reads has its final scale before what it gives."""
    for node in work.precisions:
        knots = work.target.numerics.lut_entries.get(work.precisions[node])
        function = _function(node, work) if knots else None
        if knots and function is not None:
            _meet_corners(node, function, knots, work)
            _make_room(node, function, knots, work)


def _function(node: Node, work: Work) -> Function | None:
    """With a relu inside a kernel nothing is stored between."""
    stored = {(node, 0), (node, None)} <= work.qparams.keys()
    return function_of(node) if stored and work.target.kernels.is_lut(node) else None


def _meet_corners(node: Node, function: Function, knots: int, work: Work) -> None:
    """A scale a little larger, with knots at the corners if they are all as far from zero."""
    stored, far = work.qparams[node, 0], set(np.abs(corners(function)).tolist()) - {0.0}
    many = math.floor(max(far) / gap_between(knots, stored)) if len(far) == 1 else 0
    if many * MOST >= 1:
        scale = stored.scale * max(far) / (many * gap_between(knots, stored))
        store_again((node, 0), replace(stored, scale=scale), f"with knots at the corners of {node.name}", work)


def corners(function: Function) -> np.ndarray:
    """Where the slope jumps: a bend there shrinks with the distance over which it is seen, else with its square."""
    wide, narrow = (np.abs(function(GRID + d) - 2 * function(GRID) + function(GRID - d)) for d in (2**-7, 2**-8))
    found = np.isfinite(wide) & (wide > 1e-4) & (wide < 2.5 * narrow)
    return GRID[found]


def _make_room(node: Node, function: Function, knots: int, work: Work) -> None:
    stored = work.qparams[node, None]
    span = hull([stored.span, _needed(node, function, knots, work)])
    if width(span) > width(stored.span):
        wider = qparams_for(*span, work.format_of((node, None)))
        store_again((node, None), wider, f"with room for the knots of {node.name}", work)


def _needed(node: Node, function: Function, knots: int, work: Work) -> Span:
    """What the function gives at the outermost knots, as far as there is any use in it."""
    (low, high), read = work.facts.span(node), work.facts.span(operands(node)[0])
    step, more = gap_between(knots, work.qparams[node, 0]), (high - low) * MOST
    found = function(np.array([math.floor(read[0] / step), math.ceil(read[1] / step)]) * step)
    ends = np.clip(found[np.isfinite(found)], low - more, high + more).tolist()
    return min([low, *ends]), max([high, *ends])


def gap_between(knots: int, storage: QParams) -> float:
    """From knot to knot over all integers of the type; zero is one."""
    return 2 ** torch.iinfo(getattr(torch, storage.dtype)).bits / knots * storage.scale  # type: ignore[operator,no-any-return]


def store_again(place: Place, storage: QParams, why: str, work: Work) -> None:
    members = {place, *work.scale_groups.ways(place)}
    if not members & work.fixed:
        for m in members:
            work.qparams[m] = storage
            work.because[m] = (*work.because.get(m, ()), why)
