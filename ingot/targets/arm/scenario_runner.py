"""Executes a .vgf: Arm's scenario-runner and ML emulation layers on a Vulkan driver, in a child process."""

from __future__ import annotations

import copy
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ingot.errors import ArtefactError
from ingot.targets.arm.vulkan_tools import (
    REQUIREMENTS,
    RUNNER,
    RUNNING,
    VGF_DUMP,
    emulation_layers,
    require_tools,
    run_tool,
    tool_error,
)

Batches = Sequence[Sequence[np.ndarray]]  # by batch: inputs in the shape of their memory layout
KINDS = {"SINT": "i", "UINT": "u", "SFLOAT": "f", "BOOL_ARM": "b"}  # Vulkan's numeric format -> numpy's kind
FILES = {"src": "input", "dst": "output"}  # key in scenario.json -> prefix of the file name
READ_SECONDS = 60.0  # to read the inputs and outputs of a .vgf; takes milliseconds on an idle machine


def run_vgf(vgf: bytes, batches: Batches, outputs: int, seconds: float) -> list[list[np.ndarray]]:
    """The outputs of each batch, in one start of the runner. A crash or a timeout raises ArtefactError."""
    if not batches:
        return []
    require_tools(*REQUIREMENTS)  # one error for all that is missing
    with tempfile.TemporaryDirectory(prefix="ingot-vgf-run-") as folder:
        made = execute_scenario(write_vgf_scenario(Path(folder), vgf, batches), seconds)
    if len(made) != len(batches) * outputs:
        why = f"the program expects {outputs}, the .vgf has {len(made) // len(batches)}"
        raise ArtefactError("wrong number of outputs of the .vgf", why=why, hint="lower the model again")
    return [[made[_name("output", b, i)] for i in range(outputs)] for b in range(len(batches))]


# ---- the scenario: a folder, relocatable ----


def write_vgf_scenario(folder: Path, vgf: bytes, batches: Batches) -> Path:
    """Write scenario.json, graph.vgf and input_<batch>_<index>.npy. A run writes output_<batch>_<index>.npy."""
    try:
        return _write(folder, vgf, batches)
    except OSError as e:
        raise ArtefactError("the scenario cannot be written", why=str(e), hint="choose another folder") from e


def _write(folder: Path, vgf: bytes, batches: Batches) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.vgf").write_bytes(vgf)
    template = scenario_template(folder / "graph.vgf")
    scenario = {"commands": [], "resources": [r for r in template["resources"] if "graph" in r]}
    for b, arrays in enumerate(batches):
        scenario["resources"] += _resources(template, b)
        scenario["commands"] += scenario_commands(template, lambda uid, b=b: f"{uid}_{b}")  # type: ignore[misc]
        _write_inputs(folder, template, b, arrays)
    file = folder / "scenario.json"
    file.write_text(json.dumps(scenario, indent=2) + "\n")
    return file


def scenario_template(file: Path) -> dict[str, Any]:
    """One dispatch with its input and output tensors, as vgf_dump prints it."""
    done = run_tool(VGF_DUMP, ["--input", str(file), "--scenario-template"], READ_SECONDS)
    try:
        template: dict[str, Any] = json.loads(done.stdout)
    except ValueError as e:
        raise tool_error(VGF_DUMP, done) from e
    if others := {kind for resource in template["resources"] for kind in resource} - {"graph", "tensor", "shader"}:
        raise ArtefactError(f"the .vgf needs {', '.join(sorted(others))} as input", hint="use tensors only")
    return template


def scenario_tensors(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [r["tensor"] for r in template["resources"] if "tensor" in r]


def _resources(template: dict[str, Any], b: int) -> Iterator[dict[str, Any]]:
    """The same tensors for each batch, under new names."""
    for row in scenario_tensors(template):
        files = {key: _name(kind, b, _place(row[key])) for key, kind in FILES.items() if key in row}
        yield {"tensor": row | files | {"uid": f"{row['uid']}_{b}"}}


def _name(kind: str, b: int, i: int) -> str:
    return f"{kind}_{b}_{i}.npy"


def _place(placeholder: str) -> int:
    """TEMPLATE_PATH_TENSOR_INPUT_1 is the second input."""
    return int(placeholder.rpartition("_")[2])


def scenario_commands(template: dict[str, Any], renamed: Callable[[str], str]) -> list[dict[str, Any]]:
    commands: list[dict[str, Any]] = copy.deepcopy(template["commands"])
    for row in (row for command in commands for row in command.values()):
        row["shader_substitutions"] = []  # the .vgf contains its shaders
        for binding in row["bindings"]:
            binding["resource_ref"] = renamed(binding["resource_ref"])
    return commands


def _write_inputs(folder: Path, template: dict[str, Any], b: int, arrays: Sequence[np.ndarray]) -> None:
    taken = {_place(row["src"]): row for row in scenario_tensors(template) if "src" in row}
    if len(arrays) != len(taken):
        raise ArtefactError(f"the .vgf takes {len(taken)} inputs and was given {len(arrays)}")
    for i, array in enumerate(arrays):
        np.save(folder / _name("input", b, i), checked_array(array, taken[i], f"input {i} of the .vgf"))


def checked_array(array: np.ndarray, row: dict[str, Any], what: str) -> np.ndarray:
    """The array in the tensor's shape. The runner checks byte counts only: it would read int32 as float32."""
    dtype = numpy_dtype(row["format"])
    if array.dtype != dtype or array.size != np.prod(row["dims"], dtype=int):
        given = f"{array.dtype} of {list(array.shape)} was given"
        raise ArtefactError(f"{what} is {dtype} of {row['dims']}, and {given}")
    return np.ascontiguousarray(array).reshape(row["dims"])


def numpy_dtype(format_: str) -> np.dtype[Any]:
    parts = re.fullmatch(r"VK_FORMAT_R(\d+)_(\w+)", format_)
    if parts is None or parts[2] not in KINDS:
        raise ArtefactError(f"unsupported tensor format {format_}", why="numpy has no such type")
    return np.dtype(f"{KINDS[parts[2]]}{int(parts[1]) // 8}")


# ---- execution ----


def execute_scenario(scenario: Path, seconds: float) -> dict[str, np.ndarray]:
    """The outputs by file name. The layers may crash at exit after correct results, so only the files count."""
    require_tools(*RUNNING)
    wanted = _outputs(scenario)
    with tempfile.TemporaryDirectory(prefix="ingot-scenario-") as name:  # an empty folder: no outputs of an earlier run
        folder = Path(name)
        arguments = ["--scenario", str(scenario), "--output", name, "--log-level", "warning"]
        done = run_tool(RUNNER, arguments, seconds, os.environ | _layer_environment(folder))
        try:
            return {file: np.load(folder / file) for file in wanted}
        except (OSError, ValueError) as e:  # missing or truncated
            raise tool_error(RUNNER, done) from e


def _outputs(scenario: Path) -> list[str]:
    try:
        return [row["dst"] for row in scenario_tensors(json.loads(scenario.read_text())) if "dst" in row]
    except (OSError, ValueError, KeyError) as e:
        raise ArtefactError(
            f"{scenario} is not a scenario", why=f"{type(e).__name__}: {e}", hint="write it again"
        ) from e


def _layer_environment(folder: Path) -> dict[str, str]:
    """One folder a layer: loaders take the order from VK_INSTANCE_LAYERS, older ones from VK_LAYER_PATH."""
    names, folders = list[str](), list[str]()
    for file, library in emulation_layers():
        manifest = json.loads(file.read_text())
        manifest["layer"]["library_path"] = str(library)
        (folder / file.stem).mkdir()
        (folder / file.stem / file.name).write_text(json.dumps(manifest))
        names.append(manifest["layer"]["name"])
        folders.append(str(folder / file.stem))
    return {"VK_LAYER_PATH": os.pathsep.join(folders), "VK_INSTANCE_LAYERS": os.pathsep.join(names)}
