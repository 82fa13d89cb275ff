"""Compare two lists of tensors: SQNR in dB, largest error, and defects that no threshold allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT_DB = 200.0  # reported for bit-exact results: finite, so that it can be averaged
# Float arithmetic: kernels sum in another order and approximate exp, tanh and erf. The noise of torch's own kernels
# against double precision is measured; other kernels may have this many times as much.
FLOAT_MARGIN = 32.0
FLOAT_ROUNDING = 2.0**-22  # of the rms of a group: where it cannot be measured, and at least


@dataclass(frozen=True)
class Comparison:
    """One output compared with its reference."""

    sqnr_db: float
    max_abs_error: float
    defect: str | None = None  # wrong at any SQNR threshold: shape, non-finite, dead


def measure(want: Sequence[Tensor], got: Sequence[Tensor]) -> Comparison:
    """SQNR and largest error of one output, over all batches."""
    if (defect := shape_defect(want, got)) is not None:
        return Comparison(-math.inf, math.inf, defect)
    w, g = flat_double(want), flat_double(got)
    if not w.numel():
        return Comparison(EXACT_DB, 0.0)  # nothing to be wrong
    if not _has_fractions(want[0]):
        wrong = int((w != g).sum())
        return Comparison(share_db(wrong, w.numel()), _largest(w - g))
    return Comparison(sqnr(w, g), _largest(w - g), _defect(w, g, FLOAT_MARGIN * float_rounding(want[0].dtype)))


def float_rounding(dtype: torch.dtype) -> float:
    """The relative rounding error of arithmetic in this type. Half precision rounds by half an ulp."""
    return max(FLOAT_ROUNDING, torch.finfo(dtype).eps / 2)


def shape_defect(want: Sequence[Tensor], got: Sequence[Tensor]) -> str | None:
    """A shape, or a number of batches, that is not the wanted one."""
    if len(want) != len(got):
        return f"{len(got)} batches instead of {len(want)}"
    odd = [(tuple(w.shape), tuple(g.shape)) for w, g in zip(want, got, strict=True) if w.shape != g.shape]
    return f"shape {odd[0][1]} instead of {odd[0][0]}" if odd else None


def sqnr(want: Tensor, got: Tensor) -> float:
    """10 log10(signal power / noise power) over the elements whose reference is finite."""
    finite = torch.isfinite(want)
    return power_ratio_db(float(want[finite].square().sum()), float((want[finite] - got[finite]).square().sum()))


def power_ratio_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise), between -EXACT_DB and EXACT_DB."""
    if math.isnan(noise) or math.isinf(noise):
        return -EXACT_DB
    if noise <= signal * 10 ** (-EXACT_DB / 10):
        return EXACT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -EXACT_DB


def share_db(wrong: int, of: int) -> float:
    """For integers and booleans (an argmax, a mask): -10 log10 of the share of elements that differ."""
    return EXACT_DB if wrong == 0 else -10 * math.log10(wrong / of)


def flat_double(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in double precision; a complex number counts as two."""
    return torch.cat([as_double(t).reshape(-1) for t in tensors])


def as_double(tensor: Tensor) -> Tensor:
    t = tensor.detach()
    return (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).double()


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.is_complex()


def _largest(difference: Tensor) -> float:
    finite = difference[torch.isfinite(difference)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _defect(want: Tensor, got: Tensor, rounding: float) -> str | None:
    """What no threshold allows: non-finite or constant where the float model is not, finite where it is infinite.

    What varies by `rounding` only, relative to its largest number, is constant.
    """
    finite = torch.isfinite(want)
    if not want.numel():
        return None
    if not finite.any():
        return "the float model has no finite value: nothing to compare with"
    if not torch.isfinite(got[finite]).all():
        return "non-finite values where the float model is finite"
    if not torch.equal(want[~finite].nan_to_num(), got[~finite].nan_to_num()):
        return "finite values where the float model is infinite: a mask was lost"
    spread = float(want[finite].max() - want[finite].min())
    if float(got.min()) == float(got.max()) and spread > rounding * float(want[finite].abs().max()):
        return f"dead: every value is {float(got[0]):g}"
    return None
