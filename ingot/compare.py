"""How far two lists of tensors are apart: SQNR in dB, over all and per channel; dead and non-finite outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

SILENT_DB = 200.0  # what equality to the last bit is reported as: a finite number, so that it can be averaged


@dataclass(frozen=True)
class Comparison:
    sqnr_db: float
    max_abs_error: float
    worst_channel_db: float
    fault: str | None = None


def measure(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> Comparison:
    """All batches of one output together."""
    shapes = [(tuple(w.shape), tuple(g.shape)) for w, g in zip(want, got, strict=True) if w.shape != g.shape]
    if shapes:
        return Comparison(-math.inf, math.inf, -math.inf, f"shape {shapes[0][1]} instead of {shapes[0][0]}")
    w, g = _flat(want), _flat(got)
    if not want[0].dtype.is_floating_point:
        return _exact(w, g)
    return Comparison(sqnr(w, g), _largest(w - g), _worst_channel(want, got), _fault(w, g))


def sqnr(want: torch.Tensor, got: torch.Tensor) -> float:
    """10 log10(signal / noise) over the elements where the reference is finite."""
    finite = torch.isfinite(want)
    signal = float(want[finite].square().sum())
    noise = float((want[finite] - got[finite]).square().sum())
    if math.isnan(noise) or math.isinf(noise):
        return -SILENT_DB
    if noise <= signal * 10 ** (-SILENT_DB / 10):
        return SILENT_DB
    return 10 * math.log10(signal / noise) if signal > 0 else -SILENT_DB


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def _largest(difference: torch.Tensor) -> float:
    finite = difference[torch.isfinite(difference)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _exact(want: torch.Tensor, got: torch.Tensor) -> Comparison:
    """Integers and booleans (an argmax, a mask): the share that agrees, in dB of disagreement."""
    wrong = int((want != got).sum())
    db = SILENT_DB if wrong == 0 else -10 * math.log10(wrong / want.numel())
    return Comparison(db, _largest(want - got), db)


def _worst_channel(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The lowest SQNR along axis 1 (channels, classes, tokens), among channels that carry a signal worth the name."""
    if want[0].dim() < 2 or want[0].shape[1] > 4096 or any(w.shape[1] != want[0].shape[1] for w in want):
        return sqnr(_flat(want), _flat(got))
    w, g = (
        torch.cat([t.detach().double().transpose(0, 1).reshape(t.shape[1], -1) for t in side], 1)
        for side in (want, got)
    )
    w = torch.nan_to_num(w, posinf=0.0, neginf=0.0)
    signal, noise = w.square().sum(1), (w - torch.nan_to_num(g, posinf=0.0, neginf=0.0)).square().sum(1)
    heard = signal > 1e-3 * signal.mean()
    if not heard.any():
        return SILENT_DB if float(noise.sum()) == 0 else -SILENT_DB
    ratio = noise[heard] / signal[heard]
    return float((-10 * ratio.clamp(min=10 ** (-SILENT_DB / 10)).log10()).min())


def _fault(want: torch.Tensor, got: torch.Tensor) -> str | None:
    """What no bar can excuse: non-finite or dead where the float model is alive."""
    if not torch.isfinite(got[torch.isfinite(want)]).all():
        return "non-finite values where the float model is finite"
    alive = want.numel() > 1 and float(want[torch.isfinite(want)].std(unbiased=False)) > 0
    if alive and float(got.min()) == float(got.max()):
        return f"dead: every value is {float(got[0]):g}"
    return None
