"""Compare two lists of tensors: SQNR in dB, overall and per channel; dead and non-finite outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

MIN_CHANNEL_SAMPLES = 4  # a channel with fewer samples may be constant by chance
EXACT_DB = 200.0  # reported for bit-exact results: finite, so that it can be averaged


@dataclass(frozen=True)
class Comparison:
    """One output compared with its reference."""

    sqnr_db: float
    max_abs_error: float
    worst_channel_db: float
    defect: str | None = None  # wrong at any SQNR threshold: shape, non-finite, dead


def measure(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> Comparison:
    """SQNR and largest error of one output, over all batches."""
    shapes = [(tuple(w.shape), tuple(g.shape)) for w, g in zip(want, got, strict=True) if w.shape != g.shape]
    if shapes:
        return Comparison(-math.inf, math.inf, -math.inf, f"shape {shapes[0][1]} instead of {shapes[0][0]}")
    w, g = _flat(want), _flat(got)
    if not w.numel():  # tensors without elements
        return Comparison(EXACT_DB, 0.0, EXACT_DB)
    if not want[0].dtype.is_floating_point:
        return _compare_integers(w, g)
    return Comparison(
        sqnr(w, g), _largest(w - g), _worst_channel(want, got), _defect(w, g) or _dead_channels(want, got)
    )


def sqnr(want: torch.Tensor, got: torch.Tensor) -> float:
    """10 log10(signal power / noise power) over the elements whose reference is finite."""
    finite = torch.isfinite(want)
    signal = float(want[finite].square().sum())
    noise = float((want[finite] - got[finite]).square().sum())
    if math.isnan(noise) or math.isinf(noise):
        return -EXACT_DB
    if noise <= signal * 10 ** (-EXACT_DB / 10):
        return EXACT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -EXACT_DB


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def _largest(difference: torch.Tensor) -> float:
    finite = difference[torch.isfinite(difference)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _compare_integers(want: torch.Tensor, got: torch.Tensor) -> Comparison:
    """Integers and booleans (an argmax, a mask): -10 log10 of the fraction of elements that differ."""
    wrong = int((want != got).sum())
    db = EXACT_DB if wrong == 0 else -10 * math.log10(wrong / want.numel())
    return Comparison(db, _largest(want - got), db)


def _has_channels(want: Sequence[torch.Tensor]) -> bool:
    """Axis 1 is the channel axis if it has one size in all batches and is not a long sequence."""
    return want[0].dim() >= 2 and want[0].shape[1] <= 4096 and all(w.shape[1] == want[0].shape[1] for w in want)


def _by_channel(side: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [t.detach().double().transpose(0, 1).reshape(t.shape[1], -1) for t in side]
    return torch.nan_to_num(torch.cat(rows, 1), posinf=0.0, neginf=0.0)


def _worst_channel(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The lowest SQNR of a channel; channels below 0.1 % of the mean signal power are ignored."""
    if not _has_channels(want):
        return sqnr(_flat(want), _flat(got))
    w, g = _by_channel(want), _by_channel(got)
    signal, noise = w.square().sum(1), (w - g).square().sum(1)
    significant = signal > 1e-3 * signal.mean()
    if not significant.any():
        return EXACT_DB if float(noise.sum()) == 0 else -EXACT_DB
    ratio = noise[significant] / signal[significant]
    return float((-10 * ratio.clamp(min=10 ** (-EXACT_DB / 10)).log10()).min())


def _defect(want: torch.Tensor, got: torch.Tensor) -> str | None:
    """What no threshold allows: non-finite or constant where the float model is not, finite where it is infinite."""
    finite = torch.isfinite(want)
    if not finite.any():
        return "the float model has no finite value: nothing to compare with"
    if not torch.isfinite(got[finite]).all():
        return "non-finite values where the float model is finite"
    if not torch.equal(want[~finite].nan_to_num(), got[~finite].nan_to_num()):
        return "finite values where the float model is infinite: a mask was lost"
    varies = want.numel() > 1 and float(want[finite].std(unbiased=False)) > 0
    if varies and float(got.min()) == float(got.max()):
        return f"dead: every value is {float(got[0]):g}"
    return None


def _dead_channels(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str | None:
    """Channels that vary in the float model and are constant in the artefact: a shared scale may be too coarse."""
    if not _has_channels(want):
        return None
    w, g = _by_channel(want), _by_channel(got)
    varies = w.std(1, unbiased=False) > 0.05 * w.mean(1).abs() + 1e-6 * w.abs().max()
    dead = varies & (g.amin(1) == g.amax(1)) & (w.shape[1] >= MIN_CHANNEL_SAMPLES)
    count = int(dead.sum())
    return f"{count} of {len(dead)} channels are dead, the first is {int(dead.nonzero()[0])}" if count else None
