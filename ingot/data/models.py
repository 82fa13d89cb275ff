"""Load a model by name: `net.py:build`, `package.module:build`, `exported.pt2` or `model.onnx`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ingot.data.checks import check_type
from ingot.data.onnx_file import OnnxFile
from ingot.data.user_batches import Batch, CheckedBatches
from ingot.data.user_code import call_user_function, check_file_exists, resolve_object
from ingot.errors import InputError, first_sentence

HINT = "return model, (model, example_inputs) or (model, example_inputs, calibration)"


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model. Fields that the user did not provide are None."""

    model: Any
    example_inputs: tuple[Any, ...] | None = None
    calibration: Iterable[Batch] | None = None
    dynamic_shapes: Any = None
    shapes: Any = None  # the sizes of each method, where the file gets several

    @property
    def sizes(self) -> dict[str, Any]:
        """As `cast` and `capture` take them."""
        return {"dynamic_shapes": self.dynamic_shapes, "shapes": self.shapes}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The parameters of forward. Arrays in an .npz file may use these names."""
        if isinstance(self.model, OnnxFile):
            return self.model.input_names
        if isinstance(self.model, ExportedProgram):
            return tuple(str(name) for name in self.model.graph_signature.user_inputs)
        return tuple(inspect.signature(self.model.forward).parameters)

    @property
    def fixed_shapes(self) -> bool:
        """True if every batch must have exactly the example's shape."""
        exported = isinstance(self.model, ExportedProgram)
        return self.dynamic_shapes is None and self.shapes is None and not (exported and self.model.range_constraints)


def load_model(spec: str) -> LoadedModel:
    """Load `net.py:build`, `package.module:build`, `file.pt2` or `file.onnx`, which is converted once data is known."""
    if spec.endswith(".onnx"):
        file = OnnxFile(Path(spec))
        return LoadedModel(file, file.example_inputs)
    if spec.endswith(".pt2"):
        program = _read_pt2(Path(spec))
        return LoadedModel(program, _exported_inputs(program, spec))
    obj, where = resolve_object(spec, lambda obj: callable(obj) or _is_model(obj))
    result = obj if _is_model(obj) else call_user_function(obj, spec, where)
    return _from_parts(result if isinstance(result, tuple) else (result,), spec, where)


def _is_model(obj: Any) -> bool:
    return isinstance(obj, (nn.Module, ExportedProgram))


def _from_parts(parts: tuple[Any, ...], spec: str, where: str) -> LoadedModel:
    if not 1 <= len(parts) <= 4:
        raise InputError(f"{spec} returned {len(parts)} values", where=where, why="expected 1 to 4", hint=HINT)
    model, example, calibration, dynamic = (*parts, None, None, None)[:4]
    check_type(_is_model(model), f"{spec} did not return a model", "a torch.nn.Module", model, where, HINT)
    if isinstance(model, ExportedProgram) and example is None:
        example = _exported_inputs(model, where)
    loaded = LoadedModel(model, _check_example(example, spec, where), dynamic_shapes=dynamic)
    if calibration is None:
        return loaded
    what = f"the calibration of {spec} is not iterable"
    check_type(isinstance(calibration, Iterable), what, "an iterable of input tuples", calibration, where, HINT)
    return replace(
        loaded, calibration=CheckedBatches(calibration, spec, where, loaded.example_inputs, loaded.fixed_shapes)
    )


def _check_example(example: Any, spec: str, where: str) -> tuple[Any, ...] | None:
    if example is None:
        return None
    what = f"the example inputs of {spec} are not a tuple"
    check_type(
        isinstance(example, (Tensor, tuple, list)), what, "a tuple of tensors", example, where, "return model, (x,)"
    )
    return (example,) if isinstance(example, Tensor) else tuple(example)


def _read_pt2(path: Path) -> ExportedProgram:
    check_file_exists(path)
    try:
        return torch.export.load(path)
    except Exception as e:
        hint = "save it again with torch.export.save and the installed torch version"
        raise InputError(f"{path} is not a readable exported program", why=first_sentence(e), hint=hint) from e


def _exported_inputs(program: ExportedProgram, where: str) -> tuple[Any, ...] | None:
    args, kwargs = program.example_inputs or (None, {})
    if kwargs:
        why = f"only positional inputs are supported; it was exported with keyword inputs {', '.join(kwargs)}"
        hint = "export with args only"
        raise InputError("the exported program takes keyword inputs", where=where, why=why, hint=hint)
    return args
