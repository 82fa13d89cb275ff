"""A user's batch as the flat tuple that the program takes: bound, counted, ordered, checked, in the right layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ingot.core.tensor_bytes import plain_strides
from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.capture.export import Program


class Inputs:
    """The arguments of one call, positional and by keyword: `Inputs(x, mask=m)`."""

    def __init__(self, *args: object, **kwargs: object):
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        named = (f"{k}={v!r}" for k, v in self.kwargs.items())
        return f"Inputs({', '.join([*map(repr, self.args), *named])})"


# One batch: a tensor, a sequence of positional arguments, a mapping of keyword arguments, or both as Inputs.
Batch = torch.Tensor | Sequence[object] | Mapping[str, object] | Inputs
Call = tuple[tuple[Any, ...], dict[str, Any]]


def call_of(batch: object) -> Call:
    """Positional and keyword arguments of a batch: a bare tensor is one argument, a mapping is keywords."""
    if isinstance(batch, Inputs):
        return batch.args, batch.kwargs
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if isinstance(batch, Mapping):
        return (), {str(k): v for k, v in batch.items()}
    raise InputError(
        f"inputs must be a tuple of tensors or a mapping of keyword arguments, not {type(batch).__name__}",
        hint="pass (x,) for a model with one input, {'input_ids': ids} for keyword arguments",
    )


def copy_of(batch: object) -> Inputs:
    """A batch to keep: a loader may write the next one into the same memory."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, _copy, call_of(batch))
    return Inputs(*args, **kwargs)


def own_batches(batches: Iterable[Batch]) -> list[Batch]:
    """All batches at once, copied where a loader may reuse its memory. Those of a list exist side by side already."""
    return list(batches) if isinstance(batches, (list, tuple)) else [copy_of(b) for b in batches]


def _copy(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):  # a tensor of inference mode becomes an ordinary one
        return x.detach().clone()


def flat_inputs(program: Program, batch: object, sized: bool = True) -> tuple[torch.Tensor, ...]:
    """`sized`: its sizes are checked too."""
    got = _in_order(program, batch)
    for i, (g, w) in enumerate(zip(got, program.example_inputs, strict=True)):
        _check_input(program, i, g, w, sized)
    return tuple(map(in_layout_of, got, program.example_inputs))


def shapes_fit(program: Program, batch: object) -> bool:
    got = _in_order(program, batch)
    pairs = enumerate(zip(got, program.example_inputs, strict=True))
    return all(_shape_fits(program, i, g, w) for i, (g, w) in pairs if all(isinstance(x, torch.Tensor) for x in (g, w)))


def _in_order(program: Program, batch: object) -> list[Any]:
    """The leaves of a batch by their path, not by the order of a dict."""
    call = _bound(program, batch)
    leaves = {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(call)[0]}
    if len(leaves) != len(program.in_places):
        raise InputError(
            f"the model takes {len(program.in_places)} inputs, the batch has {len(leaves)}",
            why=f"inputs are {', '.join(program.input_names)}",
            hint="give each batch as a tuple with one entry per input, or as a mapping; leave labels out",
        )
    missing = [p for p in program.in_places if p not in leaves]
    if missing:
        raise InputError(f"the batch has no input at {missing[0]}", hint="give batches of the example's structure")
    return [leaves[p] for p in program.in_places]


def _bound(program: Program, batch: object) -> Call:
    """Keyword arguments that the program was not captured with, as labels in a data set, are left out."""
    args, kwargs = call_of(batch)
    taken = {m[1] for place in program.in_places if (m := re.match(r"\[1\]\['([^']*)'\]", place))}
    if not args and kwargs and not taken and set(program.input_names) <= kwargs.keys():
        return tuple(kwargs[name] for name in program.input_names), {}
    return args, {k: v for k, v in kwargs.items() if k in taken} if taken else kwargs


def in_layout_of(x: Any, example: Any) -> Any:
    """On the device and in the memory format of the example: the runtime would read the wrong numbers otherwise."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.is_inference():  # such tensors have no version counter and no gradient: sensitivity needs both
        x = _copy(x)
    return plain_strides(x.to(example.device).contiguous(memory_format=memory_format_of(example)))


def memory_format_of(x: torch.Tensor) -> torch.memory_format:
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _check_input(program: Program, i: int, got: Any, want: Any, sized: bool) -> None:
    if not isinstance(want, torch.Tensor):
        return
    name = program.input_names[i]
    if not isinstance(got, torch.Tensor):
        raise InputError(f"input {i} ({name}) must be a tensor, got {type(got).__name__}")
    if got.dtype != want.dtype:
        raise InputError(f"input {i} ({name}) must be {want.dtype}, got {got.dtype}", hint=f"x.to({want.dtype})")
    if sized and not _shape_fits(program, i, got, want):
        raise InputError(
            f"input {i} ({name}) must have shape {tuple(want.shape)}, got {tuple(got.shape)}",
            why="the program is exported for that shape",
            hint="give dynamic_shapes to capture() if this dimension varies, or shapes for a few sizes",
        )


def _shape_fits(program: Program, i: int, got: torch.Tensor, want: torch.Tensor) -> bool:
    free = set((program.dynamic_shapes or ())[i] or {}) if program.dynamic_shapes else set()
    shorter = program.bounded_dims.get(i, frozenset())
    return got.dim() == want.dim() and all(
        d in free or g == w or (d in shorter and g < w)
        for d, (g, w) in enumerate(zip(got.shape, want.shape, strict=True))
    )
