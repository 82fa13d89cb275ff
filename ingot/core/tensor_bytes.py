"""The memory of a tensor as bytes, whatever its strides are."""

from __future__ import annotations

import torch
from torch import Tensor


def raw_bytes(tensor: Tensor) -> Tensor:
    """The elements in order, as uint8. A copy only where they do not lie in order already.

    torch calls a tensor of one element contiguous whatever its stride is (0 for an expanded number), but refuses to
    view it as bytes unless the stride is 1.
    """
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
