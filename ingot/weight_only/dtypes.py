"""A checkpoint's type is how it was stored; what is computed in is the target's: float32.

Rounding in bfloat16 and casting afterwards, or the other way round, would be two results: here it is always cast first.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

HALVES = (torch.bfloat16, torch.float16)


def in_float32(model: Any) -> tuple[Any, str | None]:
    """The model, or a copy of it in float32 and a word about that where it is stored in halves."""
    if not isinstance(model, torch.nn.Module):
        return model, None
    stored = {t.dtype for t in (*model.parameters(), *model.buffers()) if t.dtype in HALVES}
    if not stored:
        return model, None
    names = " and ".join(sorted(str(d).removeprefix("torch.") for d in stored))
    # Not .float(): torchao's tensors pass over it, and would dequantize to what they were.
    return copy.deepcopy(model).to(torch.float32), f"stored in {names}, computed in float32"


def widened(inputs: Any) -> Any:
    """Inputs of a model that is computed in float32."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in HALVES else t, inputs)
