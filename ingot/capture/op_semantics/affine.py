"""Does the op commute with affine maps, f(a·x + b) = a·f(x) + b, and in which operands?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from ingot.capture.op_semantics.effect import Kind
from ingot.capture.op_semantics.harness import TensorArgument, Trial
from ingot.capture.op_semantics.provenance import Finding, placed

MAPS = ((0.3, -7.7), (2.6, 0.0), (1.0, 3.3), (41.0, 510.3))
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
NARROW = 2e-2
MOST_SUBSETS = 4  # operands of which every subset is tried


def blends(trial: Trial, held: Sequence[torch.Tensor]) -> Finding | None:
    """The largest set of operands the op commutes in, if there is one."""
    subsets = list(_subsets(trial.slots))
    for active in subsets:
        if _commutes(trial, active, held):
            return Finding(Kind.BLENDS, _that_matter(trial, active, held))
    for active in subsets:
        if _mixes_zero(trial, active, held):
            return Finding(Kind.BLENDS, _that_matter(trial, active, held), (0.0,))
    return None


def hold(trial: Trial) -> list[torch.Tensor]:
    """Values for the operands that stay fixed: just beyond -1 … 1, so that a sampling grid leaves the image, too."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(s.shape, generator=generator, dtype=torch.float64) * 2.5 - 1.25 for s in trial.slots]


def _subsets(slots: Sequence[TensorArgument]) -> Iterator[tuple[TensorArgument, ...]]:
    sizes = range(len(slots), 0, -1) if len(slots) <= MOST_SUBSETS else (len(slots), 1)
    for size in sizes:
        yield from combinations(slots, size)


def _numbers(active: Sequence[TensorArgument], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(s.numel for s in active), generator=generator, dtype=torch.float64) * 2


def _commutes(trial: Trial, active: Sequence[TensorArgument], held: Sequence[torch.Tensor]) -> bool:
    x = _numbers(active, 5)
    y = trial.run(placed(x, active, held))
    for a, b in MAPS:
        z = trial.run(placed(a * x + b, active, held))
        if not _close(z, a * y + b, trial, 8 * a + abs(b)):
            return False
    return True


def _mixes_zero(trial: Trial, active: Sequence[TensorArgument], held: Sequence[torch.Tensor]) -> bool:
    """An average of inputs and padded zeros: linear, weights summing to one inside and to less where zeros enter.

    Integers can do that as they can do a pad: the zero point stands for the zero. That some weights sum to one tells
    it from a plain multiplication by less than one.
    """
    x, x2 = _numbers(active, 5), _numbers(active, 6)
    y, y2 = trial.run(placed(x, active, held)), trial.run(placed(x2, active, held))
    weights = trial.run(placed(torch.ones_like(x), active, held))
    slack = 1e3 * TOLERANCE.get(trial.dtype, NARROW)
    if not bool(((weights > -slack) & (weights < 1 + slack)).all() and ((weights - 1).abs() < slack).any()):
        return False
    if not _close(trial.run(placed(-x, active, held)), -y, trial, 8):
        return False
    return _close(trial.run(placed(x + 3 * x2, active, held)), y + 3 * y2, trial, 32)


def _that_matter(trial: Trial, active: Sequence[TensorArgument], held: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Without the operands whose values do not reach the output."""
    if len(active) == 1:
        return (active[0].index,)
    base = placed(_numbers(active, 5), active, held)
    y = trial.run(base)
    changed = [placed(_numbers([s], 9), [s], base) for s in active]
    return tuple(s.index for s, new in zip(active, changed, strict=True) if not torch.equal(trial.run(new), y))


def _close(a: torch.Tensor, b: torch.Tensor, trial: Trial, size: float) -> bool:
    """Relative to the size of the inputs; NaN is never close."""
    return bool(((a - b).abs() <= TOLERANCE.get(trial.dtype, NARROW) * size).all())
