"""The memory of a tensor: as bytes, whatever its strides are, and with strides that backends accept."""

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


def plain_strides(x: Tensor) -> Tensor:
    """With one element (or channel, or pixel) any strides mean the same; ExecuTorch expects contiguous ones, not 0."""
    plain = torch.empty(x.shape, device="meta").stride()
    return x.as_strided(x.shape, plain) if x.is_contiguous() and x.stride() != plain else x
