"""What a decoder computes from positions alone (rotary embeddings), as lookup tables.

Most backends have no kernel for cosines. A table also shows whether the values of a position depend on the length of
the text, as those of dynamic NTK scaling and LongRoPE do beyond the trained length: cached keys would then be wrong.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ingot.errors import InputError
from ingot.llm.attention import PLAIN_MODEL, current_positions

SAME = 1e-6  # sines and cosines that differ by less are equal
Variant = tuple[Any, ...]  # the other arguments of a call: Gemma 3 asks for one table per type of layer


@dataclass(frozen=True, eq=False)
class PositionCall:
    """A call of a module without parameters, by a model that was given the positions 0, 1, 2 …"""

    path: str  # of the module in the model
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    many: int  # positions

    @property
    def variant(self) -> Variant:
        return position_variant(self.args, self.kwargs)


def position_variant(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Variant:
    return tuple(a for a in (*args, *kwargs.values()) if not isinstance(a, Tensor))


def first_position(value: Any, many: int) -> int | None:
    """The first of a tensor of consecutive positions; None where a value of a call is something else."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.numel() != many:
        return None
    first = int(value.flatten()[0])
    return first if value.flatten().tolist() == [*range(first, first + many)] else None


class PositionTable(nn.Module):
    """Replaces a module that maps positions to tensors."""

    def __init__(self, model: nn.Module, calls: Sequence[PositionCall], context: int) -> None:
        super().__init__()
        self.config = getattr(model.get_submodule(calls[0].path), "config", None)  # some models read it there
        self.names = dict[Variant, tuple[str, ...]]()
        for call in calls:
            if call.variant not in self.names:
                self._add(call, _tabulated(model, call, context))

    def _add(self, call: PositionCall, made: tuple[Tensor, ...]) -> None:
        suffix = f"_{len(self.names)}" if self.names else ""
        # The names of buffers are part of plan fingerprints and reports.
        names = [f"{n}{suffix}" for n in ("cos", "sin", *(f"table_{i}" for i in range(2, len(made))))][: len(made)]
        for name, tensor in zip(names, made, strict=True):
            self.register_buffer(name, tensor)
        self.names[call.variant] = tuple(names)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tables = [getattr(self, name) for name in self.names[position_variant(args, kwargs)]]
        found = tuple(torch.index_select(t, 0, current_positions())[None] for t in tables)
        return found if len(found) > 1 else found[0]


def _tabulated(model: nn.Module, call: PositionCall, context: int) -> tuple[Tensor, ...]:
    module, where = model.get_submodule(call.path), f"{type(model).__name__}, {call.path}"
    whole = _computed(module, call, context)
    if not all(t.shape[:1] == (1,) and t.shape[1:2] == (context,) and not t.is_complex() for t in whole):
        why = f"it maps positions to {', '.join(f'{list(t.shape)} of {t.dtype}' for t in whole)}"
        raise InputError("unsupported position embedding", where=where, why=why, hint=PLAIN_MODEL)
    longest = _longest_stable(module, call, context)
    if longest < context:
        why = (
            f"beyond {longest} tokens the values of all positions depend on the length of the text; cached keys do not"
        )
        hint = f"--context {longest}"
        raise InputError(f"unsupported position scaling for a context of {context}", where=where, why=why, hint=hint)
    return tuple(t[0].clone() for t in whole)


def _computed(module: nn.Module, call: PositionCall, many: int) -> tuple[Tensor, ...]:
    """By a copy: a module may adapt its frequencies to the positions that it last saw."""

    def given(a: Any) -> Any:
        first = first_position(a, call.many)
        return a if first is None else torch.arange(first, first + many).view(1, -1)

    with torch.no_grad():
        made = copy.deepcopy(module)(*map(given, call.args), **{k: given(v) for k, v in call.kwargs.items()})
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _longest_stable(module: nn.Module, call: PositionCall, context: int) -> int:
    """The longest text in which positions have the values that they have in a text of two tokens."""
    first = _computed(module, call, min(2, context))

    def stable(many: int) -> bool:
        pairs = zip(first, _computed(module, call, many), strict=True)
        return all(torch.allclose(a[:, :many], b[:, : a.shape[1]], rtol=0, atol=SAME) for a, b in pairs)

    return longest_that(stable, context)


def longest_learned(model: nn.Module, call: PositionCall, context: int) -> int:
    """The longest text for which an embedding has rows."""

    def has_rows(many: int) -> bool:
        try:
            _computed(model.get_submodule(call.path), call, many)
        except IndexError:
            return False
        return True

    return longest_that(has_rows, context)


def longest_that(holds: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` for which a condition holds that holds for all smaller ones."""
    return most if holds(most) else bisect_left(range(1, most), True, key=lambda many: not holds(many))
