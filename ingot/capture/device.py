"""Models and inputs on other devices: computed on the CPU, where ranges are recorded and artefacts are compared."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from ingot.capture.inputs import Call
from ingot.errors import InputError

CPU = torch.device("cpu")


def on_cpu(model: Any, inputs: Call) -> tuple[Any, Call, tuple[str, ...]]:
    """The model itself where it is on the CPU, else a copy there, with a note; the same for the inputs."""
    moved = pytree.tree_map_only(torch.Tensor, lambda x: x.to(CPU), inputs)
    found = sorted({str(t.device) for t in _tensors(model)} - {str(CPU)})
    if not found:
        return _ordinary(model), moved, ()
    if "meta" in found:
        hint = "load the weights first: model.to_empty(device='cpu') and load_state_dict(…)"
        raise InputError("the model is on the meta device", why="it has shapes and no weights", hint=hint)
    note = f"the model was on {', '.join(found)}; a copy of it was captured on the CPU"
    return _copy_on_cpu(model), moved, (note,)


def _tensors(model: Any) -> Any:
    if isinstance(model, ExportedProgram):
        return chain(model.state_dict.values(), (t for t in model.constants.values() if isinstance(t, torch.Tensor)))
    if isinstance(model, torch.nn.Module):
        return chain(model.parameters(), model.buffers())
    return ()


def _ordinary(model: Any) -> Any:
    """Weights that were made in inference mode cannot be exported: a copy made outside of it is ordinary."""
    made_in_inference_mode = isinstance(model, torch.nn.Module) and any(t.is_inference() for t in _tensors(model))
    return copy.deepcopy(model) if made_in_inference_mode else model


def _copy_on_cpu(model: Any) -> Any:
    if isinstance(model, ExportedProgram):
        return move_to_device_pass(copy.deepcopy(model), CPU)
    return copy.deepcopy(model).to(CPU)
