"""How far two lists of tensors are apart: SQNR in dB, over all and per channel; dead and non-finite outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

ENOUGH_TO_JUDGE = 4  # samples of a channel; fewer may agree by chance
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
    return Comparison(sqnr(w, g), _largest(w - g), _worst_channel(want, got), _fault(w, g) or _dead_channels(want, got))


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


def _has_channels(want: Sequence[torch.Tensor]) -> bool:
    """Axis 1 (channels, classes, tokens), where it is the same in all batches and not a long sequence."""
    return want[0].dim() >= 2 and want[0].shape[1] <= 4096 and all(w.shape[1] == want[0].shape[1] for w in want)


def _by_channel(side: Sequence[torch.Tensor]) -> torch.Tensor:
    rows = [t.detach().double().transpose(0, 1).reshape(t.shape[1], -1) for t in side]
    return torch.nan_to_num(torch.cat(rows, 1), posinf=0.0, neginf=0.0)


def _worst_channel(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    """The lowest SQNR of a channel, among those that carry a signal worth the name."""
    if not _has_channels(want):
        return sqnr(_flat(want), _flat(got))
    w, g = _by_channel(want), _by_channel(got)
    signal, noise = w.square().sum(1), (w - g).square().sum(1)
    heard = signal > 1e-3 * signal.mean()
    if not heard.any():
        return SILENT_DB if float(noise.sum()) == 0 else -SILENT_DB
    ratio = noise[heard] / signal[heard]
    return float((-10 * ratio.clamp(min=10 ** (-SILENT_DB / 10)).log10()).min())


def _fault(want: torch.Tensor, got: torch.Tensor) -> str | None:
    """What no bar can excuse: non-finite or dead where the float model is alive, finite where it is not."""
    finite = torch.isfinite(want)
    if not finite.any():
        return "the float model itself is finite nowhere: there is nothing to compare with"
    if not torch.isfinite(got[finite]).all():
        return "non-finite values where the float model is finite"
    if not torch.equal(want[~finite].nan_to_num(), got[~finite].nan_to_num()):
        return "finite values where the float model is infinite: a mask is lost"
    alive = want.numel() > 1 and float(want[finite].std(unbiased=False)) > 0
    if alive and float(got.min()) == float(got.max()):
        return f"dead: every value is {float(got[0]):g}"
    return None


def _dead_channels(want: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> str | None:
    """Channels that vary in the float model and do not in the artefact: a join may have taken all their bits."""
    if not _has_channels(want):
        return None
    w, g = _by_channel(want), _by_channel(got)
    varies = w.std(1, unbiased=False) > 0.05 * w.mean(1).abs() + 1e-6 * w.abs().max()
    dead = varies & (g.amin(1) == g.amax(1)) & (w.shape[1] >= ENOUGH_TO_JUDGE)
    count = int(dead.sum())
    return f"{count} of {len(dead)} channels are dead, the first is {int(dead.nonzero()[0])}" if count else None
