"""Batches from .npz and .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ingot.data.checks import check_dtype, check_shape, check_type, plural, to_default_tensor, to_dtype
from ingot.data.user_batches import Batch
from ingot.data.user_code import check_file_exists
from ingot.errors import InputError, first_sentence


class ArrayBatches:
    """One array per input, split along axis 0 into batches with the length of the example's axis 0."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray], example: Sequence[Any] | None, fixed_shapes: bool):
        self.where, self.arrays = str(path), arrays
        self._check_count(example)
        examples = [to_default_tensor(a[:1], n, self.where) for n, a in arrays.items()] if example is None else example
        self.inputs = [(n, a, x) for (n, a), x in zip(arrays.items(), examples, strict=True)]
        for name, array, wanted in self.inputs:
            _check_samples(f"array '{name}'", array, wanted, self.where, fixed_shapes)
            check_dtype(array.dtype, wanted.dtype, f"array '{name}'", self.where)
        self.length = self._batch_count()

    def __iter__(self) -> Iterator[Batch]:
        for index in range(self.length):
            yield tuple(self._batch_of(name, array, wanted, index) for name, array, wanted in self.inputs)

    def _batch_of(self, name: str, array: np.ndarray, wanted: Tensor, index: int) -> Tensor:
        size = _samples_per_batch(wanted)
        samples = array[index * size : (index + 1) * size] if wanted.dim() else array[index : index + 1].reshape(())
        return to_dtype(samples, wanted.dtype, f"array '{name}'", self.where)

    def _check_count(self, example: Sequence[Any] | None) -> None:
        if not self.arrays:
            hint = "np.savez(path, x=samples)"
            raise InputError("the calibration file is empty", where=self.where, why="it has 0 arrays", hint=hint)
        if example is not None and len(example) != len(self.arrays):
            found = f"{len(self.arrays)} ({', '.join(self.arrays)})"
            why = f"the model takes {plural(len(example), 'input')}, the file has {found}"
            raise InputError("wrong number of arrays", where=self.where, why=why, hint="save one array per input")

    def _batch_count(self) -> int:
        counts = {name: len(array) // _samples_per_batch(wanted) for name, array, wanted in self.inputs}
        if len(set(counts.values())) > 1:
            why = ", ".join(f"'{n}' gives {c}" for n, c in counts.items())
            what = "the arrays give different numbers of batches"
            raise InputError(what, where=self.where, why=why, hint="save arrays of equal length")
        return next(iter(counts.values()))


def _check_samples(what: str, array: np.ndarray, wanted: Any, where: str, fixed: bool) -> None:
    """Check that the array has enough samples for one batch, each with the example's shape."""
    check_type(
        isinstance(wanted, Tensor),
        f"{what} does not belong to a tensor input",
        "a tensor",
        wanted,
        where,
        "use file.py:function",
    )
    if array.ndim == 0:
        why = "axis 0 must be samples, but the array is a single number"
        raise InputError(f"{what} has no samples", where=where, why=why, hint="stack the samples along axis 0")
    sizes, size = tuple(wanted.shape), _samples_per_batch(wanted)
    check_shape((*sizes[:1], *array.shape[1:]), sizes, f"one batch of {what}", where, fixed)
    if len(array) < size:
        why = f"one batch of the example has {plural(size, 'sample')}, the array has {len(array)}"
        raise InputError(
            f"{what} is too short", where=where, why=why, hint="save more samples, or use a smaller example"
        )


def _samples_per_batch(wanted: Tensor) -> int:
    """Number of samples in one batch."""
    return max((1, *wanted.shape[:1]))


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays, by input name if the names are exactly those of the inputs, else in file order."""
    check_file_exists(path)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {n: file[n] for n in (names if set(names) == set(file.files) else file.files)}
    except Exception as e:
        hint = "np.savez(path, x=samples)"
        raise InputError(f"{path} is not a readable .npz file", why=first_sentence(e), hint=hint) from e


def read_npy(path: Path) -> dict[str, np.ndarray]:
    """The memory-mapped array, named after the file."""
    check_file_exists(path)
    try:
        return {path.stem: np.lib.format.open_memmap(path, mode="r")}
    except Exception as e:
        hint = "np.save(path, samples)"
        raise InputError(f"{path} is not a readable .npy file", why=first_sentence(e), hint=hint) from e
