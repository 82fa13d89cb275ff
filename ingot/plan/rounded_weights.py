"""Weights that a plan rounds otherwise than to the nearest code: codes as text, so that a plan stays plain data."""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache

import torch
from torch import Tensor

from ingot.errors import PlanError
from ingot.plan.plan_data import QParams


def packed_codes(codes: Tensor) -> str:
    """int8 codes, compressed, in base64."""
    return base64.b64encode(zlib.compress(codes.to(torch.int8).contiguous().numpy().tobytes(), 9)).decode()


@lru_cache(maxsize=64)
def _codes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text, validate=True))), dtype=torch.int8)


def rounded_weight(text: str, like: Tensor, qparams: QParams, name: str) -> Tensor:
    """The weight that the codes stand for; a PlanError where they do not fit it."""
    try:
        codes = _codes(text)
    except (ValueError, zlib.error) as e:
        raise PlanError(f"the rounded weight of '{name}' cannot be read", why=str(e)) from e
    if codes.numel() != like.numel() or int(codes.amin()) < qparams.qmin or int(codes.amax()) > qparams.qmax:
        why = f"it needs {like.numel()} codes from {qparams.qmin} to {qparams.qmax}"
        raise PlanError(f"the rounded weight of '{name}' does not fit", why=why)
    scale = torch.tensor(qparams.scale, dtype=torch.float32)
    if qparams.axis is not None:
        scale = scale.reshape([-1 if d == qparams.axis else 1 for d in range(like.dim())])
    return codes.reshape(like.shape).float() * scale
