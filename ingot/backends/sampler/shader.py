"""grid_sample as a compute shader: its file and constants, and its execution on Arm's scenario-runner."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ingot.backends.base import Shader
from ingot.backends.sampler.payload import MODES, PADDINGS, TENSORS, SampleJob, TensorSpec, checked_job
from ingot.errors import ArtefactError
from ingot.targets.arm.scenario_runner import execute_scenario
from ingot.targets.arm.vulkan_tools import RUNNING, require_tools

FOLDER = Path(__file__).parent / "shaders"
DTYPES = {"image": ("float32", "int8"), "grid": ("float32", "int16", "int8"), "output": ("float32", "int8")}
FORMATS = {"float32": "VK_FORMAT_R32_SFLOAT", "int8": "VK_FORMAT_R8_SINT", "int16": "VK_FORMAT_R16_SINT"}
TEXTURE = "VK_FORMAT_R8G8B8A8_SNORM"
TILE = 8  # a work group computes TILE x TILE output pixels


def shader_for(job: SampleJob, texture: bool = False) -> Shader:
    """The shader of a job; `texture`: the image is a texture in the tensor's memory."""
    if texture and not can_be_texture(job):
        why = "a texture is one int8 image of four channels, channels last, scale 1/127, zero point 0, qmin -127"
        raise ArtefactError("the sampler's image cannot be a texture", why=why, hint="use it as a tensor")
    for tensor, known in DTYPES.items():
        if (dtype := getattr(job, tensor).dtype) not in known:
            raise ArtefactError(
                f"the sampler has no shader for {tensor} of {dtype}", hint=f"one of: {', '.join(known)}"
            )
    file = shader_file(job.image.dtype, job.grid.dtype, job.output.dtype, texture)
    constants = tuple(zip(count(), _constants(job), strict=False))
    return Shader(
        file, _spirv(file), constants, _groups(job), (*job.ordered((0, 1)), 2), {0: TEXTURE} if texture else {}
    )


def can_be_texture(job: SampleJob) -> bool:
    """R8G8B8A8_SNORM gives the same numbers. It reads -128 as -127, so qmin must be -127."""
    image = job.image
    batch, channels = image.shape[:2]
    plain = image.dtype == "int8" and image.scale is not None and np.float32(image.scale) == np.float32(1 / 127)
    return plain and (batch, channels, image.layout, image.zero_point, image.qmin) == (1, 4, "channels_last", 0, -127)


def shader_file(image: str, grid: str, output: str, texture: bool) -> str:
    return f"{'texture-snorm8' if texture else f'image-{image}'}_grid-{grid}_out-{output}.spv"


def _spirv(file: str) -> bytes:
    try:
        return (FOLDER / file).read_bytes()
    except OSError as e:
        raise ArtefactError("a shader file of the sampler is missing", why=str(e), hint="install Ingot again") from e


def _constants(job: SampleJob) -> Iterator[int | float]:
    """Specialization constants, in the order of the ids in sampler.comp."""
    yield from (MODES.index(job.mode), PADDINGS.index(job.padding), int(job.align_corners))
    yield from (*job.image.shape, *job.output.shape[2:])
    yield from (int(tensor.layout == "channels_last") for tensor in (job.image, job.output))
    yield from (_single(job.image.scale), job.image.zero_point, _single(job.grid.scale), job.grid.zero_point)
    yield from (_single(1 / (job.output.scale or 1)), job.output.zero_point)
    yield from job.output.qrange if job.output.quantized else (0, 0)


def _single(number: float | None) -> float:
    """Rounded to float32, as the shader computes; 1 for a float tensor."""
    return float(np.float32(1 if number is None else number))


def _groups(job: SampleJob) -> tuple[int, int, int]:
    batch, _, height, width = job.output.shape
    return -(-width // TILE), -(-height // TILE), batch


# ---- on the scenario-runner ----


@dataclass(frozen=True)
class SampleTask:
    """A job with its image and grid, in the shape of their memory layout."""

    job: SampleJob
    arrays: Sequence[np.ndarray]
    texture: bool = False


def sample_on_vulkan(
    payload: bytes, batches: list[list[np.ndarray]], outputs: int, seconds: float
) -> list[list[np.ndarray]]:
    """An Executor with a timeout: the output for each batch, in one start of the runner."""
    job = checked_job(payload, batches, outputs)
    return [[made] for made in run_tasks([SampleTask(job, job.ordered(a)) for a in batches], seconds)]


def run_tasks(tasks: Sequence[SampleTask], seconds: float) -> list[np.ndarray]:
    """Several jobs in one start of the runner: a start takes seconds, a job milliseconds."""
    if not tasks:
        return []
    require_tools(*RUNNING)
    with tempfile.TemporaryDirectory(prefix="ingot-sampler-run-") as folder:
        made = execute_scenario(write_task_scenario(Path(folder), tasks), seconds)
    return [made[_file("output", t)] for t in range(len(tasks))]


def write_task_scenario(folder: Path, tasks: Sequence[SampleTask]) -> Path:
    """Write scenario.json, the shaders, image_<task>.npy and grid_<task>.npy. A run writes output_<task>.npy."""
    scenario: dict[str, list[Any]] = {"commands": [], "resources": []}
    for t, task in enumerate(tasks):
        task.job.check(task.arrays)
        needed = shader_for(task.job, task.texture)
        (folder / needed.file).write_bytes(needed.spirv)
        for name, array in zip(TENSORS, task.arrays, strict=False):
            np.save(folder / _file(name, t), np.ascontiguousarray(array))
        scenario["resources"] += [_shader(needed, t), *_resources(task, t)]
        scenario["commands"].append(_command(needed, t))
    file = folder / "scenario.json"
    file.write_text(json.dumps(scenario, indent=1) + "\n")
    return file


def _file(name: str, t: int) -> str:
    return f"{name}_{t}.npy"


def _shader(needed: Shader, t: int) -> dict[str, Any]:
    constants = [{"id": i, "value": value} for i, value in needed.constants]
    shader = {"uid": f"shader_{t}", "src": needed.file, "type": "SPIR-V", "specialization_constants": constants}
    return {"shader": shader}


def _resources(task: SampleTask, t: int) -> Iterator[dict[str, Any]]:
    yield _texture(task.job.image, t) if task.texture else _tensor(task.job.image, "image", t)
    yield from (_tensor(getattr(task.job, name), name, t) for name in TENSORS[1:])


def _tensor(tensor: TensorSpec, name: str, t: int) -> dict[str, Any]:
    access, file = ("writeonly", "dst") if name == "output" else ("readonly", "src")
    row = {
        "uid": f"{name}_{t}",
        "dims": list(tensor.memory_shape),
        "format": FORMATS[tensor.dtype],
        "shader_access": access,
    }
    return {"tensor": row | {file: _file(name, t)}}


def _texture(tensor: TensorSpec, t: int) -> dict[str, Any]:
    return {"image": _texture_row(tensor, f"image_{t}") | {"src": _file("image", t)}}


def _texture_row(tensor: TensorSpec, uid: str) -> dict[str, Any]:
    _, height, width, _ = tensor.memory_shape
    return {"uid": uid, "dims": [1, width, height, 1], "format": TEXTURE, "shader_access": "readonly"}


def shared_memory(spec: TensorSpec, tensor: str, texture: str) -> list[dict[str, Any]]:
    """A tensor and a texture in one memory: one dispatch writes the tensor, the next reads the texture."""
    # No file for the tensor: the runner would copy it without the row padding of a texture.
    shared = {"memory_group": {"id": f"memory of {tensor}"}, "tiling": "LINEAR"}
    row = {"uid": tensor, "dims": list(spec.memory_shape), "format": FORMATS[spec.dtype], "shader_access": "readwrite"}
    return [{"tensor": row | shared}, {"image": _texture_row(spec, texture) | shared}]


def _command(needed: Shader, t: int) -> dict[str, Any]:
    bindings = [{"set": 0, "id": i, "resource_ref": f"{name}_{t}"} for i, name in enumerate(TENSORS)]
    return {"dispatch_compute": {"shader_ref": f"shader_{t}", "rangeND": list(needed.groups), "bindings": bindings}}
