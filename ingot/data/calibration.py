"""Calibration batches by name: which reader a spec asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ingot.data.arrays import ArrayBatches, read_npy, read_npz
from ingot.data.functions import Batch, Batches
from ingot.data.images import ImageFolder
from ingot.data.objects import resolve
from ingot.errors import InputError

FORMS = "a .npz or .npy file, a folder of images, file.py:function or package.module:function"


def load_calibration(
    spec: str,
    example_inputs: Sequence[Any] | None,
    *,
    names: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fixed_shapes: bool = True,
) -> Iterable[Batch]:
    """Batches that can be iterated more than once; without an example each is one sample."""
    path = Path(spec)
    if path.is_dir():
        return ImageFolder(path, example_inputs, mean, std)
    if mean is not None or std is not None:
        raise InputError("mean and std are for a folder of images", why=f"{spec} is none", hint="normalise the arrays")
    if path.suffix == ".npz":
        return ArrayBatches(path, read_npz(path, names), example_inputs, fixed_shapes)
    if path.suffix == ".npy":
        return ArrayBatches(path, read_npy(path), example_inputs, fixed_shapes)
    if ":" not in spec:
        why = "no such folder, and no kind of file known"
        raise InputError(f"'{spec}' is no calibration data", why=why, hint=FORMS)
    source, where = resolve(spec, lambda thing: callable(thing) or isinstance(thing, Iterable))
    return Batches(source, spec, where, example_inputs, fixed_shapes)
