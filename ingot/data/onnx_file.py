"""An ONNX file: its inputs, and its graph at fixed shapes with everything folded that these make constant."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.data.user_code import check_file_exists
from ingot.errors import InputError, first_sentence

INSTALL = "pip install 'ingot[onnx]'"


@dataclass(frozen=True)
class OnnxInput:
    """One input; a dimension that the file leaves open is None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class OnnxFile:
    """A readable ONNX file. Nothing is converted yet: that needs the shapes of the data."""

    path: Path

    @cached_property
    def proto(self) -> Any:
        """The model, with the weights of files beside it."""
        onnx = onnx_packages()[0]
        check_file_exists(self.path)
        try:
            model = onnx.load(str(self.path))
        except Exception as e:  # whatever protobuf raises; ONNX Runtime checks the graph itself
            hint = "is it whole, and are the files of its weights beside it?"
            raise InputError(f"{self.path} is not a readable ONNX model", why=first_sentence(e), hint=hint) from e
        return model

    @cached_property
    def inputs(self) -> tuple[OnnxInput, ...]:
        """In calling order; old files list their weights among the inputs."""
        constants = {i.name for i in self.proto.graph.initializer}
        return tuple(self._input(v) for v in self.proto.graph.input if v.name not in constants)

    def _input(self, value: Any) -> OnnxInput:
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            why = f"it is a {str(kind).removesuffix('_type')}"
            raise InputError(f"input '{value.name}' is no tensor", where=str(self.path), why=why)
        tensor = value.type.tensor_type
        dtype = onnx_packages()[0].helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        return OnnxInput(value.name, dtype, tuple(d.dim_value if d.dim_value > 0 else None for d in tensor.shape.dim))

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.inputs)

    @property
    def example_inputs(self) -> tuple[Tensor, ...] | None:
        """Zeros where the file fixes every dimension; else the data has to say the shapes."""
        if any(d is None for i in self.inputs for d in i.shape):
            return None
        return tuple(torch.from_numpy(np.zeros([d or 0 for d in i.shape], i.dtype)) for i in self.inputs)

    def feeds(self, batch: Sequence[Any]) -> dict[str, np.ndarray]:
        """The batch as ONNX Runtime takes it."""
        if len(batch) != len(self.inputs):
            why = f"the model takes {', '.join(self.input_names)}; the batch has {len(batch)} tensors"
            raise InputError("wrong number of inputs", where=str(self.path), why=why)
        pairs = zip(self.inputs, batch, strict=True)
        return {i.name: torch.as_tensor(x).detach().cpu().numpy().astype(i.dtype, copy=False) for i, x in pairs}

    def folded(self, batch: Sequence[Any]) -> Any:
        """The graph at the shapes of the batch: ONNX Runtime folds sizes, constants and branches that they decide."""
        fixed = _with_shapes(self.proto, {name: a.shape for name, a in self.feeds(batch).items()})
        onnx, runtime = onnx_packages()
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "folded.onnx")
            options = runtime.SessionOptions()
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # ONNX ops only
            options.optimized_model_filepath = file
            self.session(fixed, options)
            return onnx.shape_inference.infer_shapes(onnx.load(file))  # converters ask for ranks

    def session(self, proto: Any = None, options: Any = None) -> Any:
        """ONNX Runtime on the CPU, for the file itself where no other graph is given."""
        runtime = onnx_packages()[1]
        options = options or runtime.SessionOptions()
        options.log_severity_level = 4  # its warnings about open dimensions say nothing that an error here would not
        model = str(self.path) if proto is None else proto.SerializeToString()
        try:
            return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as e:
            hint = "check the shapes of the data against the inputs of the file"
            raise InputError(f"ONNX Runtime refuses {self.path}", why=first_sentence(e), hint=hint) from e


def _with_shapes(proto: Any, shapes: dict[str, tuple[int, ...]]) -> Any:
    fixed = type(proto)()
    fixed.CopyFrom(proto)
    for value in fixed.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    return fixed


def onnx_packages() -> tuple[Any, Any]:
    """onnx and onnxruntime, or an error that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as e:
        raise InputError("reading ONNX files needs more packages", why=str(e), hint=INSTALL) from e
    return onnx, onnxruntime


def converter_version() -> str:
    return f"onnx2torch {version('onnx2torch')}"
