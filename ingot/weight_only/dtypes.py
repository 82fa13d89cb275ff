"""Half-precision checkpoints are converted to float32, the compute type of the targets, before anything is rounded.

The order is fixed because rounding in bfloat16 and converting afterwards would give another result.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

HALF_TYPES = (torch.bfloat16, torch.float16)


def model_to_float32(model: Any) -> tuple[Any, str | None]:
    """The model itself, or a float32 copy and a note where it is stored in half precision."""
    if not isinstance(model, torch.nn.Module):
        return model, None
    stored = {t.dtype for t in (*model.parameters(), *model.buffers()) if t.dtype in HALF_TYPES}
    if not stored:
        return model, None
    names = " and ".join(sorted(str(d).removeprefix("torch.") for d in stored))
    # Not .float(): torchao's tensor subclasses ignore it and would dequantize to their original type.
    return copy.deepcopy(model).to(torch.float32), f"stored in {names}, computed in float32"


def inputs_to_float32(inputs: Any) -> Any:
    """Half-precision inputs as float32, for a model that was converted."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in HALF_TYPES else t, inputs)
