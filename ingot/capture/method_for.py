"""Which method of a program with several sizes takes a batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ingot.capture.inputs import call_of, flat_inputs, shapes_fit
from ingot.errors import InputError

if TYPE_CHECKING:
    from ingot.capture.export import Program

MAIN_METHOD = "forward"


def method_for(programs: dict[str, Program], batch: object) -> str:
    """The method whose sizes the batch has. With one program that one, whatever the batch."""
    names = list(programs)
    if len(names) == 1:
        return names[0]
    found = next((name for name, p in programs.items() if shapes_fit(p, batch)), None)
    if found is None:
        raise _no_size(list(programs.values()), batch)
    return found


def _no_size(programs: list[Program], batch: object) -> InputError:
    flat_inputs(programs[0], batch, sized=False)  # what else may be wrong with it is said first
    known = "; ".join(sizes_text(p.example_inputs) for p in programs)
    return InputError(
        f"a batch of {sizes_text(tensors_of(call_of(batch)))} has a size that is not in shapes",
        why=f"the sizes are {known}",
        hint="add its size to shapes, or leave the batch out",
    )


def tensors_of(call: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(call) if isinstance(x, torch.Tensor)]


def sizes_text(tensors: Iterable[Any]) -> str:
    """`1×3×32×32, 1×16`."""
    return ", ".join("×".join(map(str, t.shape)) or "scalar" for t in tensors if isinstance(t, torch.Tensor))
