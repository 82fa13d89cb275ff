"""When the result of an op is known: the same op, on fake tensors that look the same, gives one that looks the same."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)


class NoKey(Exception):
    """An argument by which a result cannot be looked up."""


def key_of(x: Any) -> Any:
    """Of arguments. Where a tensor or a module is known by its id, it must live as long as the key."""
    if isinstance(x, FakeTensor) and x.constant is None:
        return _looks(x)
    if isinstance(x, torch.nn.Module):
        return id(x)
    if isinstance(x, PLAIN):
        return type(x), x
    if isinstance(x, list | tuple):
        return tuple(map(key_of, x))
    if isinstance(x, dict):
        return tuple((k, key_of(v)) for k, v in x.items())
    raise NoKey


def _looks(x: FakeTensor) -> Any:
    """All that an op sees of it; where sizes are symbols, the tensor itself."""
    lies = (*x.shape, *x.stride(), x.storage_offset())
    if {*map(type, lies)} != {int}:
        return id(x)
    return id(x.fake_mode), x.dtype, x.fake_device, x.layout, x.requires_grad, x.dim(), lies
