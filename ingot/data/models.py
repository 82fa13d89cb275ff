"""A model by name: `net.py:build`, `package.module:build` or `exported.pt2`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ingot.data.fit import expect
from ingot.data.functions import Batch, Batches
from ingot.data.objects import call, must_exist, resolve
from ingot.errors import InputError, first_sentence

HINT = "return model, (model, example_inputs) or (model, example_inputs, calibration)"


@dataclass(frozen=True)
class LoadedModel:
    """What a model spec stands for; whatever the user did not hand over is None."""

    model: Any
    example_inputs: tuple[Any, ...] | None = None
    calibration: Iterable[Batch] | None = None
    dynamic_shapes: Any = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The parameters of forward, so that arrays in an .npz can be named after them."""
        if isinstance(self.model, ExportedProgram):
            return tuple(str(name) for name in self.model.graph_signature.user_inputs)
        return tuple(inspect.signature(self.model.forward).parameters)

    @property
    def fixed_shapes(self) -> bool:
        """Whether every batch must have exactly the example's shape."""
        exported = isinstance(self.model, ExportedProgram)
        return self.dynamic_shapes is None and not (exported and self.model.range_constraints)


def load_model(spec: str) -> LoadedModel:
    """The model that `net.py:build`, `package.module:build` or `file.pt2` names."""
    if spec.endswith(".pt2"):
        program = _read_pt2(Path(spec))
        return LoadedModel(program, _exported_inputs(program, spec))
    thing, where = resolve(spec, lambda thing: callable(thing) or _is_model(thing))
    made = thing if _is_model(thing) else call(thing, spec, where)
    return _loaded(made if isinstance(made, tuple) else (made,), spec, where)


def _is_model(thing: Any) -> bool:
    return isinstance(thing, (nn.Module, ExportedProgram))


def _loaded(parts: tuple[Any, ...], spec: str, where: str) -> LoadedModel:
    if not 1 <= len(parts) <= 4:
        raise InputError(f"{spec} returned {len(parts)} things", where=where, why="1 to 4 are understood", hint=HINT)
    model, example, calibration, dynamic = (*parts, None, None, None)[:4]
    expect(_is_model(model), f"{spec} did not return a model", "a torch.nn.Module", model, where, HINT)
    if isinstance(model, ExportedProgram) and example is None:
        example = _exported_inputs(model, where)
    loaded = LoadedModel(model, _example(example, spec, where), dynamic_shapes=dynamic)
    if calibration is None:
        return loaded
    what = f"the calibration of {spec} cannot be iterated"
    expect(isinstance(calibration, Iterable), what, "an iterable of input tuples", calibration, where, HINT)
    return replace(loaded, calibration=Batches(calibration, spec, where, loaded.example_inputs, loaded.fixed_shapes))


def _example(example: Any, spec: str, where: str) -> tuple[Any, ...] | None:
    if example is None:
        return None
    what = f"the example inputs of {spec} are no tuple"
    expect(isinstance(example, (Tensor, tuple, list)), what, "a tuple of tensors", example, where, "return model, (x,)")
    return (example,) if isinstance(example, Tensor) else tuple(example)


def _read_pt2(path: Path) -> ExportedProgram:
    must_exist(path)
    try:
        return torch.export.load(path)
    except Exception as e:
        hint = "write it again with torch.export.save, with the torch version that is installed here"
        raise InputError(f"{path} is not a readable exported program", why=first_sentence(e), hint=hint) from e


def _exported_inputs(program: ExportedProgram, where: str) -> tuple[Any, ...] | None:
    args, kwargs = program.example_inputs or (None, {})
    if kwargs:
        why = f"inputs are positional here, and it was exported with keyword inputs {', '.join(kwargs)}"
        hint = "export with args only"
        raise InputError("the exported program takes keyword inputs", where=where, why=why, hint=hint)
    return args
