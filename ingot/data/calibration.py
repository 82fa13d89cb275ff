"""Select the reader for a calibration source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ingot.data.arrays import ArrayBatches, read_npy, read_npz
from ingot.data.images import ImageFolder
from ingot.data.user_batches import Batch, CheckedBatches
from ingot.data.user_code import resolve_object
from ingot.errors import InputError

SOURCES = "a .npz or .npy file, a folder of images, file.py:function or package.module:function"


def load_calibration(
    spec: str,
    example_inputs: Sequence[Any] | None,
    *,
    names: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    fixed_shapes: bool = True,
) -> Iterable[Batch]:
    """Calibration batches that can be iterated repeatedly. Without an example each batch is one sample."""
    path = Path(spec)
    if path.is_dir():
        return ImageFolder(path, example_inputs, mean, std)
    if mean is not None or std is not None:
        raise InputError(
            "mean and std are for a folder of images", why=f"{spec} is not a folder", hint="normalize the arrays"
        )
    if path.suffix == ".npz":
        return ArrayBatches(path, read_npz(path, names), example_inputs, fixed_shapes)
    if path.suffix == ".npy":
        return ArrayBatches(path, read_npy(path), example_inputs, fixed_shapes)
    if ":" not in spec:
        why = "no such folder, and not a known file type"
        raise InputError(f"'{spec}' is not calibration data", why=why, hint=SOURCES)
    source, where = resolve_object(spec, lambda obj: callable(obj) or isinstance(obj, Iterable))
    return CheckedBatches(source, spec, where, example_inputs, fixed_shapes)
