"""GPTQ (Frantar et al. 2022): round column by column, and compensate each error in the columns that follow."""

from __future__ import annotations

import torch
from torch import Tensor

from ingot.plan.weight_rounding import error_feedback
from ingot.weight_only.round_to_nearest import search_scales
from ingot.weight_only.rounded_weight import RoundedWeight, code_range

BLOCK = 32  # columns that are updated one by one; later columns are updated once per block, by a matrix product


def round_gptq(weight: Tensor, bits: int, group: int, hessian: Tensor) -> RoundedWeight:
    """`hessian` is the mean of x xᵀ over the inputs of the layer. A group's scale is set when the group is reached.

    The weight is transposed, so that each of its columns is contiguous in memory.
    """
    rows, width = weight.shape
    columns, (feedback, importance) = weight.float().T.contiguous(), error_feedback(hessian)
    errors, codes = torch.empty_like(columns), torch.empty(width, rows, dtype=torch.int8)
    scales = torch.empty(width // group, rows)
    block = group if group < width else BLOCK
    for start in range(0, width, block):
        here = slice(start, min(start + block, width))
        compensated = torch.addmm(columns[here], feedback[:start, here].T, errors[:start])
        if start % group == 0:
            part = columns if group == width else _unrounded(compensated, columns[here], feedback[here, here])
            scales[start // group] = search_scales(part, bits, importance[start : start + group, None], 0)
        operands = (compensated, columns[here], feedback[here, here], scales[start // group])
        _round_block(*operands, codes[here], errors[here], bits)
    return RoundedWeight(codes.T.contiguous(), scales.T.contiguous())


def _unrounded(compensated: Tensor, columns: Tensor, feedback: Tensor) -> Tensor:
    """The columns of a block after compensation, if none of them were rounded: the scale search needs them at once."""
    return columns - torch.linalg.solve_triangular(feedback.T, columns - compensated, upper=False, unitriangular=True)


def _round_block(
    compensated: Tensor, columns: Tensor, feedback: Tensor, scale: Tensor, codes: Tensor, errors: Tensor, bits: int
) -> None:
    """Write the codes of a block, and the difference of each column from its original, in place."""
    rounded = torch.empty_like(compensated)
    rows = zip(*(t.unbind() for t in (compensated, rounded, columns, errors)), strict=True)
    for i, (column, code, original, error) in enumerate(rows):
        torch.div(column, scale, out=code).round_().clamp_(*code_range(bits))
        torch.addcmul(original, code, scale, value=-1, out=error)
        compensated[i + 1 :].addr_(feedback[i, i + 1 :], error)
    codes.copy_(rounded)
