"""What the command line names: the model, its example, its data, its dynamic shapes. Unused options are refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.export import Dim

from ingot.capture.inputs import Batch
from ingot.config.recipe import Recipe, recipe_from
from ingot.data import LoadedModel, load_calibration, load_model
from ingot.errors import InputError, nearest

DIM = re.compile(r"(?P<input>\w+)\.(?P<dim>\d+)=(?P<name>[A-Za-z]\w*)(:(?P<min>\d+))?(:(?P<max>\d+))?$")


@dataclass(frozen=True)
class Given:
    """A model, one example of its inputs, and the batches."""

    loaded: LoadedModel
    example: Batch
    batches: Iterable[Batch] | None
    validation: Iterable[Batch] | None = None

    @property
    def calibration(self) -> Iterable[Batch]:
        if self.batches is None:
            hint = "--calibrate data.npz, or let build() return (model, example_inputs, calibration)"
            raise InputError("no calibration data", why="ranges are measured, never guessed", hint=hint)
        return self.batches


def asked_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe, with what single options of the command line set."""
    recipe, seconds = recipe_from(options.recipe), options.localize_seconds
    return recipe if seconds is None else replace(recipe, localize_seconds=seconds)


def given(options: argparse.Namespace) -> Given:
    loaded = load_model(options.model)
    if options.dynamic_shapes:
        loaded = replace(loaded, dynamic_shapes=dynamic_shapes(options.dynamic_shapes, loaded.input_names))
    other = getattr(options, "validation", None)
    _refuse_unused_scaling(options, other)
    chosen = named_data(options, loaded, options.calibrate)
    batches = loaded.calibration if chosen is None else chosen
    validation = named_data(options, loaded, other)
    example: Batch | None = loaded.example_inputs
    if example is None:
        first = next(iter(batches), None) if batches is not None else None
        if first is None:
            hint = f"let build() return (model, example_inputs), or give {options.data_option}"
            raise InputError("no example inputs", why="the model is exported on them", hint=hint)
        example = first
    return Given(loaded, example, batches, validation)


def _refuse_unused_scaling(options: argparse.Namespace, validation: str | None) -> None:
    """Mean and std scale images, of either source."""
    if options.mean is None and options.std is None:
        return
    sources = [s for s in (options.calibrate, validation) if s is not None]
    if not sources:
        data = options.data_option
        raise InputError(f"--mean and --std are for {data} IMAGES", hint=f"{data} photos/")
    if not any(Path(s).is_dir() for s in sources):
        why = f"{' and '.join(sources)}: no folder"
        raise InputError("mean and std are for a folder of images", why=why, hint="normalize the arrays")


def named_data(options: argparse.Namespace, loaded: LoadedModel, source: str | None) -> Iterable[Batch] | None:
    """Images are scaled with mean and std; arrays beside them are not images."""
    if source is None:
        return None
    scaling = {"mean": options.mean, "std": options.std} if Path(source).is_dir() else {}
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


def _dim(found: re.Match[str]) -> Any:
    limits = {k: int(found[k]) for k in ("min", "max") if found[k]}
    return Dim(found["name"], **limits)


def refuse_ignored_options(options: argparse.Namespace, why: str, names: Mapping[str, str]) -> None:
    """An option that would be ignored is an error; `names` are the options by their attributes."""
    unused = [flag for attribute, flag in names.items() if getattr(options, attribute, None) not in (None, False, [])]
    if unused:
        raise InputError(f"{', '.join(unused)} would be ignored", why=why, hint="leave it out")
