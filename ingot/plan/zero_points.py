"""Zero points with which a backend is quicker, where one step is all it takes: a range grows by a 127th at most."""

from __future__ import annotations

from dataclasses import replace

from ingot.plan.lut_alignment import store_again
from ingot.plan.model import QParams
from ingot.plan.state import Work


def suit_zeros(work: Work) -> None:
    for node in work.precisions:
        wanted, stored = work.target.kernels.prefers_zero_point_zero(node), work.qparams.get((node, 0))
        if wanted is not None and stored is not None and not work.format_of((node, 0)).symmetric:
            better = moved(stored, wanted)
            if better != stored:
                why = f"{node.name} takes fewer cycles with a zero point of {better.zero_point}"
                store_again((node, 0), better, why, work)


def moved(stored: QParams, wanted: bool) -> QParams:
    """The same range with another zero point: 0 if that is wanted and next to it, -1 if 0 is what is not."""
    near = abs(stored.zero_point) <= 1 if wanted else stored.zero_point == 0  # type: ignore[arg-type]
    if not near or not stored.qmin < -1 < 0 < stored.qmax:
        return stored
    (low, high), zero = stored.span, 0 if wanted else -1
    scale = max(low / (stored.qmin - zero), high / (stored.qmax - zero))
    return replace(stored, scale=scale, zero_point=zero) if zero != stored.zero_point else stored
