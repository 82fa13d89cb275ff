"""Check types, shapes and dtypes of calibration data; convert compatible dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.errors import InputError


def check_type(fits: bool, what: str, wanted: str, got: Any, where: str, hint: str) -> None:
    """Raise InputError unless `fits`."""
    if not fits:
        raise InputError(what, where=where, why=f"expected {wanted}, got {type_name(got)}", hint=hint)


def check_shape(got: tuple[int, ...], wanted: tuple[int, ...], what: str, where: str, fixed: bool) -> None:
    """Raise InputError if the shape differs from the example. Only the rank must match unless `fixed`."""
    if got == wanted or (not fixed and len(got) == len(wanted)):
        return
    hint = (
        "drop the incomplete last batch"
        if got[1:] == wanted[1:]
        else "axis 0 is samples; all other dimensions must match"
    )
    why = f"the example input is {shape_text(wanted)}, got {shape_text(got)}"
    raise InputError(f"{what} has the wrong shape", where=where, why=why, hint=hint)


def check_dtype(got: np.dtype[Any], wanted: torch.dtype, what: str, where: str) -> None:
    """Allow widening and float to float. Refuse lossy conversions (float to int, signed to unsigned)."""
    if not np.can_cast(got, _numpy_dtype(wanted), casting="same_kind"):
        why = f"the example input is {dtype_name(wanted)}, got {got}"
        hint = f"convert the data to {dtype_name(wanted)}"
        raise InputError(f"{what} has the wrong dtype", where=where, why=why, hint=hint)


def to_dtype(x: Tensor | np.ndarray, wanted: torch.dtype, what: str, where: str) -> Tensor:
    """The same values as a tensor of dtype `wanted`."""
    check_dtype(_numpy_dtype(x.dtype) if isinstance(x, Tensor) else x.dtype, wanted, what, where)
    tensor = _tensor(x, what, where)
    converted = tensor.to(wanted)
    if not wanted.is_floating_point and not torch.equal(converted.to(tensor.dtype), tensor):
        why = f"values from {tensor.min().item()} to {tensor.max().item()} are out of range for {dtype_name(wanted)}"
        raise InputError(f"{what} overflows", where=where, why=why, hint="check the values")
    return converted


def to_default_tensor(x: Any, what: str, where: str) -> Any:
    """A tensor in the most likely input dtype: float64 becomes float32, others are unchanged."""
    tensor = _tensor(x, what, where)
    double = isinstance(tensor, Tensor) and tensor.dtype == torch.float64
    return tensor.float() if double else tensor


def _tensor(x: Any, what: str, where: str) -> Any:
    """A copy of an array, which may be read-only or in another byte order. Other objects are unchanged."""
    if not isinstance(x, np.ndarray):
        return x
    try:
        return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    except TypeError as e:
        hint = "save an array of numbers"
        raise InputError(
            f"{what} has the wrong dtype", where=where, why=f"torch has no dtype for {x.dtype}", hint=hint
        ) from e


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    low_precision = dtype.is_floating_point and dtype not in (torch.float32, torch.float64)
    return np.dtype(np.float32) if low_precision else torch.empty(0, dtype=dtype).numpy().dtype


def type_name(obj: Any) -> str:
    name = f"{type(obj).__module__}.{type(obj).__qualname__}".removeprefix("builtins.")
    return "None" if obj is None else f"a {name}"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def shape_text(sizes: tuple[int, ...]) -> str:
    return "×".join(str(d) for d in sizes) or "a single number"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
