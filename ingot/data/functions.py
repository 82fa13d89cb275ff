"""Batches out of the user's own code: what build() returns, or `file.py:function`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np
from torch import Tensor

from ingot.data.fit import check_shape, converted, count, expect, natural
from ingot.data.objects import call, user_error
from ingot.errors import IngotError, InputError

Batch = tuple[Tensor, ...]


class Batches:
    """The user's own batches, each checked against the example; a function is called again for every pass.

    A one-shot iterator (a generator object) is kept as it is read, so that a second pass sees the same batches.
    """

    def __init__(self, source: Any, spec: str, where: str, example: Sequence[Any] | None, fixed_shapes: bool):
        self.source, self.spec, self.where = source, spec, where
        self.example, self.fixed_shapes = example, fixed_shapes

    def __iter__(self) -> Iterator[Batch]:
        index = -1
        for index, batch in enumerate(self._raw()):
            yield self._checked(batch, f"calibration batch {index}")
        if index < 0:
            hint = "yield at least 1"
            raise InputError("the calibration data is empty", where=self.where, why="0 batches came", hint=hint)

    def _raw(self) -> Iterator[Any]:
        try:
            yield from self._again()
        except IngotError:
            raise
        except Exception as e:
            raise user_error("reading the calibration data failed", e, self.where) from e

    def _again(self) -> Iterable[Any]:
        if isinstance(self.source, Iterator):
            self.source, again = tee(self.source)
            return again
        if isinstance(self.source, Iterable):
            return self.source
        made = call(self.source, self.spec, self.where)
        what, hint = f"{self.spec} returned no batches", "yield one tuple of inputs per batch"
        expect(isinstance(made, Iterable), what, "an iterable of input tuples", made, self.where, hint)
        return made

    def _checked(self, batch: Any, what: str) -> Batch:
        if isinstance(batch, (Tensor, np.ndarray)):
            batch = (batch,)
        is_tuple = isinstance(batch, (tuple, list))
        expect(is_tuple, f"{what} is no tuple", "a tuple of tensors", batch, self.where, "yield (x,)")
        if self.example is None:
            return tuple(natural(x, what, self.where) for x in batch)
        if len(batch) != len(self.example):
            why = f"the model takes {count(len(self.example), 'input')}, the batch has {len(batch)}"
            hint = "leave labels out: yield (x,), not (x, y)"
            raise InputError(f"{what} has the wrong number of inputs", where=self.where, why=why, hint=hint)
        pairs = zip(batch, self.example, strict=True)
        return tuple(self._fitted(x, e, f"input {i} of {what}") for i, (x, e) in enumerate(pairs))

    def _fitted(self, x: Any, example: Any, what: str) -> Any:
        if not isinstance(example, Tensor):
            return x
        is_tensor = isinstance(x, (Tensor, np.ndarray))
        expect(is_tensor, f"{what} is no tensor", "a tensor", x, self.where, "yield tensors")
        check_shape(tuple(x.shape), tuple(example.shape), what, self.where, self.fixed_shapes)
        return converted(x, example.dtype, what, self.where)
