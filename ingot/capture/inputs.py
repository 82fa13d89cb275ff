"""A user's batch as the flat tuple the program takes: counted, ordered, checked, laid out in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.capture.export import Program


def as_tuple(inputs: Any) -> tuple[Any, ...]:
    """A batch as a tuple: a bare tensor is a batch of one input."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise InputError(
        f"inputs must be a tuple of tensors, not {type(inputs).__name__}", hint="pass (x,) for a model with one input"
    )


def flat_inputs(program: Program, batch: Any) -> tuple[torch.Tensor, ...]:
    got = _in_order(program, batch)
    for i, (g, w) in enumerate(zip(got, program.example_inputs, strict=True)):
        _check_input(program, i, g, w)
    return tuple(map(laid_out, got, program.example_inputs))


def _in_order(program: Program, batch: Any) -> list[Any]:
    """The leaves of a batch by where they stand, not by when a dict got them."""
    places = {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path((as_tuple(batch), {}))[0]}
    if len(places) != len(program.in_places):
        raise InputError(
            f"the model takes {len(program.in_places)} inputs, the batch has {len(places)}",
            why=f"inputs are {', '.join(program.input_names)}",
            hint="give each batch as a tuple with one entry per input",
        )
    missing = [p for p in program.in_places if p not in places]
    if missing:
        raise InputError(f"the batch has no input at {missing[0]}", hint="give batches of the example's structure")
    return [places[p] for p in program.in_places]


def laid_out(x: Any, example: Any) -> Any:
    """In the memory layout of the example: the runtime does not look, and would read the wrong numbers."""
    if not isinstance(x, torch.Tensor):
        return x
    return plain_strides(x.contiguous(memory_format=memory_format_of(example)))


def plain_strides(x: torch.Tensor) -> torch.Tensor:
    """With one channel (or pixel) every layout is the same memory; the runtime wants the plain strides for it."""
    plain = torch.empty(x.shape, device="meta").stride()
    return x.as_strided(x.shape, plain) if x.is_contiguous() and x.stride() != plain else x


def memory_format_of(x: torch.Tensor) -> torch.memory_format:
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _check_input(program: Program, i: int, got: Any, want: Any) -> None:
    if not isinstance(want, torch.Tensor):
        return
    name = program.input_names[i]
    if not isinstance(got, torch.Tensor):
        raise InputError(f"input {i} ({name}) must be a tensor, got {type(got).__name__}")
    if got.dtype != want.dtype:
        raise InputError(f"input {i} ({name}) must be {want.dtype}, got {got.dtype}", hint=f"x.to({want.dtype})")
    free = set((program.dynamic_shapes or ())[i] or {}) if program.dynamic_shapes else set()
    shorter = program.bounded_dims.get(i, frozenset())
    same = got.dim() == want.dim() and all(
        d in free or g == w or (d in shorter and g < w)
        for d, (g, w) in enumerate(zip(got.shape, want.shape, strict=True))
    )
    if not same:
        raise InputError(
            f"input {i} ({name}) must have shape {tuple(want.shape)}, got {tuple(got.shape)}",
            why="the program is exported for that shape",
            hint="give dynamic_shapes to capture() if this dimension varies",
        )
