"""Does it fit? Kinds and shapes must be as expected, dtypes may be converted where no meaning is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.errors import InputError


def expect(fits: bool, what: str, wanted: str, got: Any, where: str, hint: str) -> None:
    """Refuse what is of another kind than wanted."""
    if not fits:
        raise InputError(what, where=where, why=f"{wanted} was expected, this is {kind(got)}", hint=hint)


def check_shape(got: tuple[int, ...], wanted: tuple[int, ...], what: str, where: str, fixed: bool) -> None:
    if got == wanted or (not fixed and len(got) == len(wanted)):
        return
    hint = "drop an incomplete last batch" if got[1:] == wanted[1:] else "axis 0 is samples, the rest must match"
    why = f"the example input is {shape(wanted)}, this is {shape(got)}"
    raise InputError(f"{what} has the wrong shape", where=where, why=why, hint=hint)


def check_dtype(got: np.dtype[Any], wanted: torch.dtype, what: str, where: str) -> None:
    """Widening and float to float are fine; what would lose the meaning (float to int, signed to unsigned) is not."""
    if not np.can_cast(got, _numpy_dtype(wanted), casting="same_kind"):
        why = f"the example input is {dtype_name(wanted)}, this is {got}"
        hint = f"convert it to {dtype_name(wanted)} yourself"
        raise InputError(f"{what} has the wrong dtype", where=where, why=why, hint=hint)


def converted(x: Tensor | np.ndarray, wanted: torch.dtype, what: str, where: str) -> Tensor:
    """The same numbers as a tensor of that dtype."""
    check_dtype(_numpy_dtype(x.dtype) if isinstance(x, Tensor) else x.dtype, wanted, what, where)
    tensor = _tensor(x, what, where)
    made = tensor.to(wanted)
    if not wanted.is_floating_point and not torch.equal(made.to(tensor.dtype), tensor):
        why = f"values from {tensor.min().item()} to {tensor.max().item()} do not fit {dtype_name(wanted)}"
        raise InputError(f"{what} overflows", where=where, why=why, hint="check the values")
    return made


def natural(x: Any, what: str, where: str) -> Any:
    """A tensor of what the model would most likely take: floats as float32, the rest as it is."""
    tensor = _tensor(x, what, where)
    double = isinstance(tensor, Tensor) and tensor.dtype == torch.float64
    return tensor.float() if double else tensor


def _tensor(x: Any, what: str, where: str) -> Any:
    """A copy of an array, which may be a view of a read-only file or of another byte order; the rest as it is."""
    if not isinstance(x, np.ndarray):
        return x
    try:
        return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("="), order="C"))
    except TypeError as e:
        hint = "save an array of numbers"
        raise InputError(f"{what} has the wrong dtype", where=where, why=f"no tensor holds {x.dtype}", hint=hint) from e


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    small = dtype.is_floating_point and dtype not in (torch.float32, torch.float64)
    return np.dtype(np.float32) if small else torch.empty(0, dtype=dtype).numpy().dtype


def kind(thing: Any) -> str:
    name = f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")
    return "None" if thing is None else f"a {name}"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def shape(sizes: tuple[int, ...]) -> str:
    return "×".join(str(d) for d in sizes) or "a single number"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
