"""Batches out of .npz and .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ingot.data.fit import check_dtype, check_shape, converted, count, expect, natural
from ingot.data.functions import Batch
from ingot.data.objects import must_exist
from ingot.errors import InputError, first_sentence


class ArrayBatches:
    """One array per input, cut along axis 0 into pieces as long as the example's axis 0."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray], example: Sequence[Any] | None, fixed_shapes: bool):
        self.where, self.arrays = str(path), arrays
        self._check_count(example)
        examples = [natural(a[:1], n, self.where) for n, a in arrays.items()] if example is None else example
        self.inputs = [(n, a, x) for (n, a), x in zip(arrays.items(), examples, strict=True)]
        for name, array, wanted in self.inputs:
            _check_samples(f"array '{name}'", array, wanted, self.where, fixed_shapes)
            check_dtype(array.dtype, wanted.dtype, f"array '{name}'", self.where)
        self.length = self._batches()

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.length):
            yield tuple(self._piece(name, array, wanted, index) for name, array, wanted in self.inputs)

    def _piece(self, name: str, array: np.ndarray, wanted: Tensor, index: int) -> Tensor:
        step = _step(wanted)
        piece = array[index * step : (index + 1) * step] if wanted.dim() else array[index : index + 1].reshape(())
        return converted(piece, wanted.dtype, f"array '{name}'", self.where)

    def _check_count(self, example: Sequence[Any] | None) -> None:
        if not self.arrays:
            hint = "np.savez(path, x=samples)"
            raise InputError("the calibration file is empty", where=self.where, why="it holds 0 arrays", hint=hint)
        if example is not None and len(example) != len(self.arrays):
            held = f"{len(self.arrays)} ({', '.join(self.arrays)})"
            why = f"the model takes {count(len(example), 'input')}, the file holds {held}"
            raise InputError("wrong number of arrays", where=self.where, why=why, hint="save one array per input")

    def _batches(self) -> int:
        counts = {name: len(array) // _step(wanted) for name, array, wanted in self.inputs}
        if len(set(counts.values())) > 1:
            why = ", ".join(f"'{n}' makes {c}" for n, c in counts.items())
            what = "the arrays make different numbers of batches"
            raise InputError(what, where=self.where, why=why, hint="equal lengths")
        return next(iter(counts.values()))


def _check_samples(what: str, array: np.ndarray, wanted: Any, where: str, fixed: bool) -> None:
    """Enough samples for one batch, each of the example's shape."""
    expect(isinstance(wanted, Tensor), f"{what} feeds no tensor", "a tensor", wanted, where, "use file.py:function")
    if array.ndim == 0:
        why = "axis 0 must be samples, the array is a single number"
        raise InputError(f"{what} has no samples", where=where, why=why, hint="stack the samples along axis 0")
    sizes, step = tuple(wanted.shape), _step(wanted)
    check_shape((*sizes[:1], *array.shape[1:]), sizes, f"one batch of {what}", where, fixed)
    if len(array) < step:
        why = f"one batch of the example takes {count(step, 'sample')}, the array holds {len(array)}"
        raise InputError(f"{what} is too short", where=where, why=why, hint="save more samples, or a smaller example")


def _step(wanted: Tensor) -> int:
    """How many samples one batch takes."""
    return max((1, *wanted.shape[:1]))


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays named exactly as the inputs go by name; otherwise the order in the file counts."""
    must_exist(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {n: file[n] for n in (names if set(names) == set(file.files) else file.files)}
    except Exception as e:
        hint = "np.savez(path, x=samples)"
        raise InputError(f"{path} is not a readable .npz file", why=first_sentence(e), hint=hint) from e


def read_npy(path: Path) -> dict[str, np.ndarray]:
    must_exist(path)
    try:
        return {path.stem: np.lib.format.open_memmap(path, mode="r")}
    except Exception as e:
        hint = "np.save(path, samples)"
        raise InputError(f"{path} is not a readable .npy file", why=first_sentence(e), hint=hint) from e
