"""A model at several sizes: one captured program for each entry of `shapes`, which become methods of one file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ingot.capture.export import Program, capture_program
from ingot.capture.inputs import Batch, Call, Inputs, call_of
from ingot.capture.method_for import sizes_text, tensors_of
from ingot.errors import CaptureError, IngotError, InputError, nearest

# The sizes of one method: by the name of an input, or one entry for each; of a model with one input, its shape alone.
Shapes = Mapping[str, Sequence[int]] | Sequence[int] | Sequence[Sequence[int] | None]
HINT = "shapes=[(1, 3, 224, 224), (1, 3, 320, 320)] for one input, [{'ids': (1, 16), 'mask': (1, 16)}, …] for several"


def capture_sizes(model: torch.nn.Module | ExportedProgram, example: Batch | None, shapes: Iterable[Shapes]) -> Program:
    """The program of the first size, with those of the others. Examples are cropped or repeated from `example`."""
    if isinstance(model, ExportedProgram):
        why, hint = "an exported program has the sizes that it was exported with", "give the torch.nn.Module"
        raise InputError("shapes= needs the model itself", why=why, hint=hint)
    if example is None:
        raise InputError("no example inputs", why="the model is exported on them", hint="ingot.cast(model, (x,), …)")
    call, wanted = call_of(example), _distinct(list(shapes))
    examples = [_resized_call(call, _by_place(model, call, each)) for each in wanted]
    first, *rest = (_captured(model, each) for each in examples)
    if rest and first.state:
        why = "each method of a file has state of its own: what one writes, another does not read"
        raise CaptureError("a model with state has one size", why=why, hint="cast once for each size")
    return replace(first, others=dict(zip(_method_names([first, *rest]), rest, strict=True)))


def _distinct(shapes: list[Shapes]) -> list[Shapes]:
    if not shapes:
        raise InputError("the list of shapes is empty", hint=HINT)
    if isinstance(shapes[0], int):
        raise InputError("shapes is one shape", why="it must be a list of them, one for each method", hint=HINT)
    return [s for i, s in enumerate(shapes) if s not in shapes[:i]]


def _captured(model: torch.nn.Module, call: Call) -> Program:
    try:
        return capture_program(model, Inputs(*call[0], **call[1]))
    except (InputError, CaptureError) as e:
        where = f"{e.where}, with inputs of {sizes_text(tensors_of(call))}" if e.where else sizes_text(tensors_of(call))
        raise type(e)(e.what, where=where, why=e.why, hint=_at_sizes(e)) from e


def _at_sizes(error: IngotError) -> str:
    return "leave this size out of shapes=, or make the model take it" + (f"; {error.hint}" if error.hint else "")


# ---- which size an entry means ----


def _by_place(model: torch.nn.Module, call: Call, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes by the place of the input in the call."""
    leaves = [(pytree.keystr(p), x) for p, x in pytree.tree_flatten_with_path(call)[0]]
    places = [p for p, x in leaves if isinstance(x, torch.Tensor)]
    if isinstance(shapes, Mapping):
        names = {_name(model, p): p for p in places}
        if unknown := next((n for n in shapes if n not in names), None):
            raise InputError(f"shapes names '{unknown}', which is no input", hint=nearest(unknown, names))
        return {names[n]: _sizes(s) for n, s in shapes.items()}
    entries = [shapes] if all(isinstance(s, int) for s in shapes) else list(shapes)
    if len(entries) != len(places):
        raise InputError(f"{shapes} has {len(entries)} shapes, the model takes {len(places)} inputs", hint=HINT)
    return {p: _sizes(s) for p, s in zip(places, entries, strict=True) if s is not None}


def _sizes(shape: Any) -> tuple[int, ...]:
    whole = isinstance(shape, Sequence) and all(type(s) is int and s > 0 for s in shape)
    if not whole:
        raise InputError(f"{shape!r} is no shape", why="sizes are positive whole numbers", hint=HINT)
    return tuple(shape)


def _name(model: torch.nn.Module, place: str) -> str:
    """Of a keyword argument its name, of a positional one that of the parameter; parts of one are `name[0]`."""
    kind, index, rest = re.match(r"\[(\d)\]\[([^\]]*)\](.*)", place).groups()  # type: ignore[union-attr]
    parameters = list(inspect.signature(model.forward).parameters)
    name = index.strip("'") if kind == "1" else next(iter(parameters[int(index) :]), index)
    return f"{name}{rest}"


def _resized_call(call: Call, wanted: Mapping[str, tuple[int, ...]]) -> Call:
    leaves, spec = pytree.tree_flatten_with_path(call)
    made = [_resized(x, wanted[p], p) if (p := pytree.keystr(path)) in wanted else x for path, x in leaves]
    found: Call = pytree.tree_unflatten(made, spec)
    return found


def _resized(x: torch.Tensor, shape: tuple[int, ...], place: str = "") -> torch.Tensor:
    """Cropped, or repeated, along each dimension."""
    if x.dim() != len(shape):
        why = f"the example has {x.dim()} dimensions: {tuple(x.shape)}"
        raise InputError(f"the shape {shape} does not fit the input at {place}", why=why, hint=HINT)
    for dim, size in enumerate(shape):
        if size != x.shape[dim]:
            x = cropped_or_repeated(x, dim, size)
    return x


def cropped_or_repeated(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return x.index_select(dim, torch.arange(size, device=x.device) % x.shape[dim])


def _method_names(programs: Sequence[Program]) -> Iterator[str]:
    """`forward_64x48`: of the sizes that are not equal in all programs, those of the method. The first is `forward`."""
    sizes = [[s for x in p.example_inputs for s in x.shape] for p in programs]
    vary = [i for i in range(len(sizes[0])) if len({s[i] for s in sizes}) > 1]
    return (f"forward_{'x'.join(str(s[i]) for i in vary)}" for s in sizes[1:])
