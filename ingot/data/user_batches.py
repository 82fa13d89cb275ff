"""Batches from the user's code: the calibration that build() returns, or `file.py:function`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np
from torch import Tensor

from ingot.data.checks import check_shape, check_type, plural, to_default_tensor, to_dtype
from ingot.data.user_code import call_user_function, user_error
from ingot.errors import IngotError, InputError

Batch = tuple[Tensor, ...]


def _copy_of(batch: Any) -> Any:
    if isinstance(batch, (tuple, list)):
        return tuple(map(_copy_of, batch))
    return batch.clone() if isinstance(batch, Tensor) else batch.copy() if isinstance(batch, np.ndarray) else batch


class CheckedBatches:
    """The user's batches, each checked against the example. A function is called again for every pass.

    Batches of a one-shot iterator (a generator object) are stored, so that a second pass gets the same batches.
    """

    def __init__(self, source: Any, spec: str, where: str, example: Sequence[Any] | None, fixed_shapes: bool):
        self.source, self.spec, self.where = source, spec, where
        self.example, self.fixed_shapes, self.one_shot = example, fixed_shapes, False

    def __iter__(self) -> Iterator[Batch]:
        index = -1
        for index, batch in enumerate(self._raw()):
            yield self._check_batch(batch, f"calibration batch {index}")
        if index < 0:
            hint = "yield at least one batch"
            raise InputError("the calibration data is empty", where=self.where, why="it has 0 batches", hint=hint)

    def _raw(self) -> Iterator[Any]:
        try:
            yield from self._batches()
        except IngotError:
            raise
        except Exception as e:
            raise user_error("reading the calibration data failed", e, self.where) from e

    def _batches(self) -> Iterable[Any]:
        if isinstance(self.source, Iterator):
            if not self.one_shot:  # each batch is copied before it is stored: a generator may reuse its memory
                self.source, self.one_shot = map(_copy_of, self.source), True
            self.source, again = tee(self.source)
            return again
        if isinstance(self.source, Iterable):
            return self.source
        result = call_user_function(self.source, self.spec, self.where)
        what, hint = f"{self.spec} returned no batches", "yield one tuple of inputs per batch"
        check_type(isinstance(result, Iterable), what, "an iterable of input tuples", result, self.where, hint)
        return result

    def _check_batch(self, batch: Any, what: str) -> Batch:
        if isinstance(batch, (Tensor, np.ndarray)):
            batch = (batch,)
        is_tuple = isinstance(batch, (tuple, list))
        check_type(is_tuple, f"{what} is not a tuple", "a tuple of tensors", batch, self.where, "yield (x,)")
        if self.example is None:
            return tuple(to_default_tensor(x, what, self.where) for x in batch)
        if len(batch) != len(self.example):
            why = f"the model takes {plural(len(self.example), 'input')}, the batch has {len(batch)}"
            hint = "remove labels: yield (x,), not (x, y)"
            raise InputError(f"{what} has the wrong number of inputs", where=self.where, why=why, hint=hint)
        pairs = zip(batch, self.example, strict=True)
        return tuple(self._check_input(x, e, f"input {i} of {what}") for i, (x, e) in enumerate(pairs))

    def _check_input(self, x: Any, example: Any, what: str) -> Any:
        if not isinstance(example, Tensor):
            return x
        is_tensor = isinstance(x, (Tensor, np.ndarray))
        check_type(is_tensor, f"{what} is not a tensor", "a tensor", x, self.where, "yield tensors")
        check_shape(tuple(x.shape), tuple(example.shape), what, self.where, self.fixed_shapes)
        return to_dtype(x, example.dtype, what, self.where)
