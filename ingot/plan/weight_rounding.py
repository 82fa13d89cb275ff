"""Rounding of weights by the error that it makes in products, not in the weight: clipping, and GPTQ.

Weight schemes (`ingot/weight_only/`) and static plans share this. A second moment is the mean of x xᵀ over what a row
of the weight is multiplied with; e @ moment @ e is the error of a product whose weights are wrong by e.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.errors import InputError

CLIP_RATIOS = (0.6, 0.68, 0.76, 0.84, 0.92, 1.0)  # of the min-max scale: the coarse grid of the search
REFINEMENTS = (-0.04, -0.02, 0.02, 0.04)  # added to the best ratio of the coarse grid
DAMPING = 0.01  # of the mean of the diagonal: bounds the influence of inputs that hardly vary
SHRINKAGE = 4  # SmolLM2 rounded with 417 tokens: KL to float 0.19 with 4 and 5, 0.20 with 1 and 2, 0.21 with 10
Codes = tuple[int, int]  # the smallest and the largest


def shrunk(moment: Tensor, rows: int) -> Tensor:
    """Smaller off-diagonals (cf. Ledoit & Wolf 2004): powers need few rows, correlations need many. In place."""
    width = moment.shape[-1]
    amount, powers = width / (width + SHRINKAGE * rows), moment.diagonal(dim1=-2, dim2=-1).clone()
    moment.mul_(1 - amount).diagonal(dim1=-2, dim2=-1).copy_(powers)
    return moment


def error_feedback(moment: Tensor) -> tuple[Tensor, Tensor]:
    """The share of a column's error that each later column compensates, and the cost of an error that remains.

    moment = V D Vᵀ with V unit upper triangular: the Cholesky factor of the mirrored matrix. Also for a batch of them.
    """
    powers = moment.diagonal(dim1=-2, dim2=-1)
    if not bool(torch.isfinite(powers).all()):
        why = "the calibration data, or an op of the model on it, gives inf or NaN"
        raise InputError("inputs of a weight are not finite", why=why, hint="look for NaN in the calibration data")
    mirrored = moment.flip(-2, -1)
    mirrored.diagonal(dim1=-2, dim2=-1).add_(DAMPING * powers.mean(-1, keepdim=True).clamp_min(1e-12))
    upper = torch.linalg.cholesky(mirrored).flip(-2, -1)
    steps = upper.diagonal(dim1=-2, dim2=-1)
    return upper / steps[..., None, :], steps.square()


def best_clip_ratios(groups: Tensor, minmax: Tensor, codes: Codes, importance: Tensor, dim: int) -> Tensor:
    """The clipping ratio with the least weighted square error, per group along `dim`."""
    best, least = torch.ones_like(minmax), torch.full_like(minmax, torch.inf)
    for ratio in CLIP_RATIOS:
        best, least = _better(groups, minmax, torch.full_like(best, ratio), codes, importance, dim, best, least)
    coarse = best
    for step in REFINEMENTS:
        best, least = _better(groups, minmax, (coarse + step).clamp_max_(1.0), codes, importance, dim, best, least)
    return best


def _better(
    groups: Tensor, minmax: Tensor, ratio: Tensor, codes: Codes, importance: Tensor, dim: int, best: Tensor,
    least: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The best ratio so far of each group, and its error."""
    scale = (minmax * ratio).unsqueeze(dim)
    rounded = (groups / scale).round_().clamp_(*codes).mul_(scale)
    error = rounded.sub_(groups).square_().mul_(importance).sum(dim)
    return torch.where(error < least, ratio, best), torch.minimum(error, least)


def rounded_codes(weight: Tensor, scales: Tensor, feedback: Tensor, codes: Codes) -> Tensor:
    """GPTQ: column by column; later columns compensate. `weight` is groups x rows x width, `scales` groups x rows."""
    compensated, made = weight.clone(), torch.empty_like(weight)
    for i in range(weight.shape[-1]):
        made[..., i] = (compensated[..., i] / scales).round().clamp(*codes)
        error = weight[..., i] - made[..., i] * scales
        compensated[..., i + 1 :].addcmul_(error[..., None], feedback[:, i, None, i + 1 :])
    return made
