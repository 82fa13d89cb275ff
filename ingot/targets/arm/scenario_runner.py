"""A .vgf executed for real: Arm's scenario-runner and ML emulation layers on a Vulkan driver, in a child process."""

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
from ingot.targets.arm.vulkan_tools import REQUIREMENTS, RUNNER, RUNNING, VGF_DUMP, call, demand, failure, layers

Batches = Sequence[Sequence[np.ndarray]]  # a delegate's inputs as they lie in memory, by batch
KINDS = {"SINT": "i", "UINT": "u", "SFLOAT": "f", "BOOL_ARM": "b"}  # Vulkan's words for numpy's letters
FILES = {"src": "input", "dst": "output"}  # a scenario's key for a tensor's file -> how the file is named
READ_SECONDS = 60.0  # for reading what a .vgf takes and gives: milliseconds, unless the machine is overwhelmed


def run_vgf(vgf: bytes, batches: Batches, outputs: int, seconds: float) -> list[list[np.ndarray]]:
    """The outputs for each batch, in one start of the runner: a crash or a hang becomes a sentence."""
    if not batches:
        return []
    demand(*REQUIREMENTS)  # all that is missing at once
    with tempfile.TemporaryDirectory(prefix="ingot-vgf-run-") as folder:
        made = run_scenario(write_scenario(Path(folder), vgf, batches), seconds)
    if len(made) != len(batches) * outputs:
        why = f"the program expects {outputs} and it gives {len(made) // len(batches)}"
        raise ArtefactError("the .vgf has other outputs than its program", why=why, hint="lower the model again")
    return [[made[_name("output", b, i)] for i in range(outputs)] for b in range(len(batches))]


# ---- the scenario: a folder that can be moved ----


def write_scenario(folder: Path, vgf: bytes, batches: Batches) -> Path:
    """scenario.json beside graph.vgf and input_<batch>_<index>.npy; running it leaves output_<batch>_<index>.npy."""
    try:
        return _write(folder, vgf, batches)
    except OSError as e:
        raise ArtefactError("the scenario cannot be written", why=str(e), hint="choose another folder") from e


def _write(folder: Path, vgf: bytes, batches: Batches) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.vgf").write_bytes(vgf)
    template = template_of(folder / "graph.vgf")
    scenario = {"commands": [], "resources": [r for r in template["resources"] if "graph" in r]}
    for b, arrays in enumerate(batches):
        scenario["resources"] += _resources(template, b)
        scenario["commands"] += commands_of(template, lambda uid, b=b: f"{uid}_{b}")  # type: ignore[misc]
        _write_inputs(folder, template, b, arrays)
    file = folder / "scenario.json"
    file.write_text(json.dumps(scenario, indent=2) + "\n")
    return file


def template_of(file: Path) -> dict[str, Any]:
    """One dispatch, and the tensors that it takes and gives, as the .vgf itself says."""
    done = call(VGF_DUMP, ["--input", str(file), "--scenario-template"], READ_SECONDS)
    try:
        template: dict[str, Any] = json.loads(done.stdout)
    except ValueError as e:
        raise failure(VGF_DUMP, done) from e
    if others := {kind for resource in template["resources"] for kind in resource} - {"graph", "tensor", "shader"}:
        raise ArtefactError(f"nothing here feeds {', '.join(sorted(others))} to a .vgf", hint="use tensors only")
    return template


def tensors_of(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [r["tensor"] for r in template["resources"] if "tensor" in r]


def _resources(template: dict[str, Any], b: int) -> Iterator[dict[str, Any]]:
    """The same tensors for each batch, with names and files of their own."""
    for row in tensors_of(template):
        files = {key: _name(kind, b, _place(row[key])) for key, kind in FILES.items() if key in row}
        yield {"tensor": row | files | {"uid": f"{row['uid']}_{b}"}}


def _name(kind: str, b: int, i: int) -> str:
    return f"{kind}_{b}_{i}.npy"


def _place(placeholder: str) -> int:
    """TEMPLATE_PATH_TENSOR_INPUT_1 is the second input."""
    return int(placeholder.rpartition("_")[2])


def commands_of(template: dict[str, Any], renamed: Callable[[str], str]) -> list[dict[str, Any]]:
    commands: list[dict[str, Any]] = copy.deepcopy(template["commands"])
    for row in (row for command in commands for row in command.values()):
        row["shader_substitutions"] = []  # the .vgf holds its own shaders
        for binding in row["bindings"]:
            binding["resource_ref"] = renamed(binding["resource_ref"])
    return commands


def _write_inputs(folder: Path, template: dict[str, Any], b: int, arrays: Sequence[np.ndarray]) -> None:
    taken = {_place(row["src"]): row for row in tensors_of(template) if "src" in row}
    if len(arrays) != len(taken):
        raise ArtefactError(f"the .vgf takes {len(taken)} inputs and was given {len(arrays)}")
    for i, array in enumerate(arrays):
        np.save(folder / _name("input", b, i), fitting(array, taken[i], f"input {i} of the .vgf"))


def fitting(array: np.ndarray, row: dict[str, Any], what: str) -> np.ndarray:
    """The runner compares bytes, not types: it would read int32 as float32 without a word."""
    dtype = dtype_of(row["format"])
    if array.dtype != dtype or array.size != np.prod(row["dims"], dtype=int):
        given = f"{array.dtype} of {list(array.shape)} was given"
        raise ArtefactError(f"{what} is {dtype} of {row['dims']}, and {given}")
    return np.ascontiguousarray(array).reshape(row["dims"])


def dtype_of(format_: str) -> np.dtype[Any]:
    parts = re.fullmatch(r"VK_FORMAT_R(\d+)_(\w+)", format_)
    if parts is None or parts[2] not in KINDS:
        raise ArtefactError(f"nothing here writes {format_}", why="numpy has no such type")
    return np.dtype(f"{KINDS[parts[2]]}{int(parts[1]) // 8}")


# ---- running it ----


def run_scenario(scenario: Path, seconds: float) -> dict[str, np.ndarray]:
    """The outputs by file name. The layers may crash at exit after right results: only the files count."""
    demand(*RUNNING)
    wanted = _outputs(scenario)
    with tempfile.TemporaryDirectory(prefix="ingot-scenario-") as name:  # a fresh folder: no output in it is old
        folder = Path(name)
        arguments = ["--scenario", str(scenario), "--output", name, "--log-level", "warning"]
        done = call(RUNNER, arguments, seconds, os.environ | _layered(folder))
        try:
            return {file: np.load(folder / file) for file in wanted}
        except (OSError, ValueError) as e:  # absent, or cut off in the middle
            raise failure(RUNNER, done) from e


def _outputs(scenario: Path) -> list[str]:
    try:
        return [row["dst"] for row in tensors_of(json.loads(scenario.read_text())) if "dst" in row]
    except (OSError, ValueError, KeyError) as e:
        raise ArtefactError(f"{scenario} is no scenario", why=f"{type(e).__name__}: {e}", hint="write it anew") from e


def _layered(folder: Path) -> dict[str, str]:
    """Some loaders go by the order of VK_INSTANCE_LAYERS, older ones by that of the folders: one folder a layer."""
    names, folders = list[str](), list[str]()
    for file, library in layers():
        manifest = json.loads(file.read_text())
        manifest["layer"]["library_path"] = str(library)
        (folder / file.stem).mkdir()
        (folder / file.stem / file.name).write_text(json.dumps(manifest))
        names.append(manifest["layer"]["name"])
        folders.append(str(folder / file.stem))
    return {"VK_LAYER_PATH": os.pathsep.join(folders), "VK_INSTANCE_LAYERS": os.pathsep.join(names)}
