"""A model and its data as text names them: in a shell, in a fleet file. What would be ignored is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.export import Dim

from ingot.data.calibration import load_calibration
from ingot.data.models import LoadedModel, load_model
from ingot.data.onnx_file import OnnxFile
from ingot.data.onnx_model import converted
from ingot.data.user_batches import Batch
from ingot.errors import InputError, nearest

DIM = re.compile(r"(?P<input>\w+)\.(?P<dim>\d+)=(?P<name>[A-Za-z]\w*)(:(?P<min>\d+))?(:(?P<max>\d+))?$")
SHAPE = re.compile(r"((?P<input>\w+)=)?(?P<sizes>\d+(x\d+)*)$")


@dataclass(frozen=True)
class NamedInputs:
    """A model, its data, how images are scaled, and the dimensions that vary."""

    model: str
    calibrate: str | None = None
    validation: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    dynamic_shapes: tuple[str, ...] = ()
    data_option: str = "--calibrate"  # how the data is named where the user wrote it
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """A model, one example of its inputs, and the batches."""

    loaded: LoadedModel
    example: Batch
    batches: Iterable[Batch] | None
    validation: Iterable[Batch] | None = None
    data_option: str = "--calibrate"

    @property
    def calibration(self) -> Iterable[Batch]:
        if self.batches is None:
            hint = f"{self.data_option} data.npz, or let build() return (model, example_inputs, calibration)"
            raise InputError("no calibration data", why="ranges are measured, never guessed", hint=hint)
        return self.batches


def given_inputs(names: NamedInputs) -> Given:
    """Load what is named. Data is read when it is iterated."""
    loaded = load_model(names.model)
    if names.dynamic_shapes:
        _refuse_open_onnx(loaded)
        loaded = replace(loaded, dynamic_shapes=dynamic_shapes(names.dynamic_shapes, loaded.input_names))
    if names.shapes:
        _refuse_open_onnx(loaded)
        loaded = replace(loaded, shapes=[method_shapes(text) for text in names.shapes])
    _refuse_unused_scaling(names)
    chosen = named_data(names, loaded, names.calibrate)
    batches = loaded.calibration if chosen is None else chosen
    validation, example = named_data(names, loaded, names.validation), _example(names, loaded, batches)
    return Given(_as_torch(loaded, example, batches), example, batches, validation, names.data_option)


def _as_torch(loaded: LoadedModel, example: Batch, batches: Iterable[Batch] | None) -> LoadedModel:
    """An ONNX file is converted at the shapes of its data, and compared on it."""
    if not isinstance(loaded.model, OnnxFile):
        return loaded
    return replace(loaded, model=converted(loaded.model, example, [example] if batches is None else batches))


def _refuse_open_onnx(loaded: LoadedModel) -> None:
    if isinstance(loaded.model, OnnxFile):
        what = "--dynamic-shapes and --shapes are not for ONNX files"
        hint = "cast once for each shape, or cast the torch model"
        raise InputError(what, where=str(loaded.model.path), why="they are converted at one shape", hint=hint)


def _example(names: NamedInputs, loaded: LoadedModel, batches: Iterable[Batch] | None) -> Batch:
    if loaded.example_inputs is not None:
        return loaded.example_inputs
    first = next(iter(batches), None) if batches is not None else None
    if first is None:
        hint = f"let build() return (model, example_inputs), or give {names.data_option}"
        raise InputError("no example inputs", why="the model is exported on them", hint=hint)
    return first


def _refuse_unused_scaling(names: NamedInputs) -> None:
    """Mean and std scale images, of either source."""
    if names.mean is None and names.std is None:
        return
    sources = [s for s in (names.calibrate, names.validation) if s is not None]
    if not sources:
        data = names.data_option
        raise InputError(f"--mean and --std are for {data} IMAGES", hint=f"{data} photos/")
    if not any(Path(s).is_dir() for s in sources):
        why = f"{' and '.join(sources)}: no folder"
        raise InputError("mean and std are for a folder of images", why=why, hint="normalize the arrays")


def named_data(names: NamedInputs, loaded: LoadedModel, source: str | None) -> Iterable[Batch] | None:
    """Images are scaled with mean and std; arrays beside them are not images."""
    if source is None:
        return None
    scaling = {"mean": names.mean, "std": names.std} if Path(source).is_dir() else {}
    how: dict[str, Any] = {**scaling, "fixed_shapes": loaded.fixed_shapes}
    return load_calibration(source, loaded.example_inputs, names=loaded.input_names, **how)


def dynamic_shapes(texts: Iterable[str], names: Iterable[str]) -> dict[str, Any]:
    """`x.0=batch:1:8` as torch.export takes it: by input, then by dimension; a name that is used twice is one Dim."""
    shapes: dict[str, Any] = dict.fromkeys(names)
    dims: dict[str, Any] = {}
    for text in texts:
        found = DIM.match(text)
        if found is None:
            hint = "x.0=batch:1:8 is dimension 0 of input x, from 1 to 8"
            raise InputError(f"'{text}' is no dynamic dimension", hint=hint)
        if found["input"] not in shapes:
            raise InputError(f"the model has no input '{found['input']}'", hint=nearest(found["input"], shapes))
        dims.setdefault(found["name"], _dim(found))
        shapes[found["input"]] = {**(shapes[found["input"]] or {}), int(found["dim"]): dims[found["name"]]}
    return shapes


def method_shapes(text: str) -> Any:
    """`1x3x64x64`, or `ids=1x16,mask=1x16`, as `ingot.cast(…, shapes=)` takes an entry."""
    found = [m for part in text.split(",") if (m := SHAPE.match(part.strip()))]
    sizes: dict[Any, Any] = {m["input"]: tuple(map(int, m["sizes"].split("x"))) for m in found}
    if len(sizes) < text.count(",") + 1 or (None in sizes and len(sizes) > 1):
        hint = "1x3x64x64 for a model with one input, ids=1x16,mask=1x16 for several"
        raise InputError(f"'{text}' is not the size of a method", hint=hint)
    return sizes.get(None, sizes)


def _dim(found: re.Match[str]) -> Any:
    limits = {k: int(found[k]) for k in ("min", "max") if found[k]}
    return Dim(found["name"], **limits)
