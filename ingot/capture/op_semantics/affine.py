"""Does the op commute with affine maps, f(a·x + b) = a·f(x) + b, and in which operands?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import torch

from ingot.capture.op_semantics.effect import Kind
from ingot.capture.op_semantics.harness import Probe, TensorArgument
from ingot.capture.op_semantics.provenance import ProbeResult, fill_inputs

AFFINE_MAPS = ((0.3, -7.7), (2.6, 0.0), (1.0, 3.3), (41.0, 510.3))
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
LOW_PRECISION_TOLERANCE = 2e-2
MAX_SUBSET_OPERANDS = 4  # with more operands, only the full set and single operands are tried


def find_affine(probe: Probe, fixed: Sequence[torch.Tensor]) -> ProbeResult | None:
    """BLENDS with the largest set of operands in which the op commutes with affine maps, or None."""
    subsets = list(_subsets(probe.float_args))
    for active in subsets:
        if _commutes(probe, active, fixed):
            return ProbeResult(Kind.BLENDS, _that_reach_output(probe, active, fixed))
    for active in subsets:
        if _mixes_zero(probe, active, fixed):
            return ProbeResult(Kind.BLENDS, _that_reach_output(probe, active, fixed), (0.0,))
    return None


def fixed_inputs(probe: Probe) -> list[torch.Tensor]:
    """Values of the operands that stay fixed: slightly beyond -1 … 1, so that a sampling grid also leaves the image."""
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(s.shape, generator=generator, dtype=torch.float64) * 2.5 - 1.25 for s in probe.float_args]


def _subsets(float_args: Sequence[TensorArgument]) -> Iterator[tuple[TensorArgument, ...]]:
    sizes = range(len(float_args), 0, -1) if len(float_args) <= MAX_SUBSET_OPERANDS else (len(float_args), 1)
    for size in sizes:
        yield from combinations(float_args, size)


def _random(active: Sequence[TensorArgument], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(s.numel for s in active), generator=generator, dtype=torch.float64) * 2


def _commutes(probe: Probe, active: Sequence[TensorArgument], fixed: Sequence[torch.Tensor]) -> bool:
    x = _random(active, 5)
    y = probe.run(fill_inputs(x, active, fixed))
    for a, b in AFFINE_MAPS:
        z = probe.run(fill_inputs(a * x + b, active, fixed))
        if not _close(z, a * y + b, probe, 8 * a + abs(b)):
            return False
    return True


def _mixes_zero(probe: Probe, active: Sequence[TensorArgument], fixed: Sequence[torch.Tensor]) -> bool:
    """An average of inputs and padded zeros: linear, with weights that sum to one, or to less where zeros enter.

    Like a pad, it works on quantized integers: the zero point represents zero. At least some weights must sum to one,
    otherwise the op is a multiplication by a factor below one.
    """
    x, x2 = _random(active, 5), _random(active, 6)
    y, y2 = probe.run(fill_inputs(x, active, fixed)), probe.run(fill_inputs(x2, active, fixed))
    weights = probe.run(fill_inputs(torch.ones_like(x), active, fixed))
    slack = 1e3 * TOLERANCE.get(probe.dtype, LOW_PRECISION_TOLERANCE)
    if not bool(((weights > -slack) & (weights < 1 + slack)).all() and ((weights - 1).abs() < slack).any()):
        return False
    if not _close(probe.run(fill_inputs(-x, active, fixed)), -y, probe, 8):
        return False
    return _close(probe.run(fill_inputs(x + 3 * x2, active, fixed)), y + 3 * y2, probe, 32)


def _that_reach_output(
    probe: Probe, active: Sequence[TensorArgument], fixed: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """The active operands that influence the output."""
    if len(active) == 1:
        return (active[0].index,)
    base = fill_inputs(_random(active, 5), active, fixed)
    y = probe.run(base)
    changed = [fill_inputs(_random([s], 9), [s], base) for s in active]
    return tuple(s.index for s, new in zip(active, changed, strict=True) if not torch.equal(probe.run(new), y))


def _close(a: torch.Tensor, b: torch.Tensor, probe: Probe, size: float) -> bool:
    """Equal within a tolerance relative to the size of the inputs. NaN is never close."""
    return bool(((a - b).abs() <= TOLERANCE.get(probe.dtype, LOW_PRECISION_TOLERANCE) * size).all())
