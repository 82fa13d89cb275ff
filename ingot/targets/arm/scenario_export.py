"""Exports a program as one scenario for Arm's scenario-runner: the .vgf files, shaders and inputs in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingot.backends.base import Shader
from ingot.errors import ArtefactError
from ingot.runtime.segmented_run import (
    PteSegment,
    constant_value,
    read_pte,
    segment_io,
    segments_of,
    to_memory_order,
    torch_dtype_of,
)
from ingot.targets.arm.scenario_runner import checked_array, scenario_commands, scenario_template, scenario_tensors

FORMATS = {"float32": "R32_SFLOAT", "float16": "R16_SFLOAT", "bool": "R8_BOOL_ARM"}
Shaders = Mapping[str, Callable[[bytes], Shader]]  # by backend id: payload -> compute shader
Arrays = Sequence[Sequence[np.ndarray]]


@dataclass
class Scenario:
    """The two lists of scenario.json, and the files."""

    program: Any
    commands: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes | np.ndarray] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # tensors by uid

    @property
    def plan(self) -> Any:
        return self.program.execution_plan[0]


def export_scenario(folder: Path, pte: bytes, batches: Arrays, shaders: Shaders | None = None) -> Path:
    """Write scenario.json, .vgf files, shaders and input_<batch>_<i>.npy. A run writes output_<batch>_<i>.npy."""
    scenario, shaders = Scenario(read_pte(pte).program), shaders or {}
    pieces = list(segments_of(scenario.program, {"VgfBackend", *shaders}))
    _refuse_host(pieces, scenario.plan)
    folder.mkdir(parents=True, exist_ok=True)
    stages = [_stage(folder, scenario, i, piece, shaders) for i, piece in enumerate(pieces)]
    for b, arrays in enumerate(batches):
        _add_inputs(scenario, b, arrays)
        known = set(scenario.plan.inputs)
        for piece, stage in zip(pieces, stages, strict=True):
            reads, writes = segment_io(scenario.plan, piece, known)
            scenario.commands += stage(
                b, [_tensor(scenario, v, b) for v in reads], [_tensor(scenario, v, b) for v in writes]
            )
            known |= set(writes)
        _add_outputs(scenario, b)
    return _save(folder, scenario)


def _refuse_host(pieces: Sequence[PteSegment], plan: Any) -> None:
    host = [
        plan.operators[i.instr_args.op_index].name
        for p in pieces
        if p.payload is None
        for i in p.instructions
        if hasattr(i.instr_args, "op_index")
    ]
    if host or any(p.payload is None for p in pieces):
        why = f"it has host ops: {', '.join(dict.fromkeys(host)) or 'moves'}"
        hint = "see casting.host_ops for the reasons; `inputs` and `outputs` in a recipe remove conversions"
        raise ArtefactError("the program cannot be a scenario", why=why, hint=hint)


# ---- tensors: one for each value of the program and batch ----


def _uid(value: int, b: int) -> str:
    return f"value_{value}_{b}"


def _tensor(scenario: Scenario, value: int, b: int) -> str:
    """The uid of a value; its tensor is declared at the first use."""
    info = scenario.plan.values[value].val
    fixed = info.data_buffer_idx != 0
    uid = f"constant_{value}" if fixed else _uid(value, b)
    if uid not in scenario.rows:
        sizes = [info.sizes[i] for i in info.dim_order] or [1]
        scenario.rows[uid] = {"uid": uid, "dims": sizes, "format": _format(info), "shader_access": "readwrite"}
        scenario.resources.append({"tensor": scenario.rows[uid]})
        if fixed:
            scenario.rows[uid]["src"] = f"{uid}.npy"
            scenario.files[f"{uid}.npy"] = to_memory_order(
                constant_value(scenario.program, value), info.dim_order
            ).reshape(sizes)
    return uid


def _format(info: Any) -> str:
    name = str(torch_dtype_of(info)).removeprefix("torch.")
    kind = "SINT" if name.startswith("int") else "UINT"
    bits = "".join(c for c in name if c.isdecimal())
    return f"VK_FORMAT_{FORMATS.get(name, f'R{bits}_{kind}')}"


def _add_inputs(scenario: Scenario, b: int, arrays: Sequence[np.ndarray]) -> None:
    for i, (value, array) in enumerate(zip(scenario.plan.inputs, arrays, strict=True)):
        row = scenario.rows[_tensor(scenario, value, b)]
        row["src"] = f"input_{b}_{i}.npy"
        scenario.files[row["src"]] = checked_array(array, row, f"input {i} of the scenario")


def _add_outputs(scenario: Scenario, b: int) -> None:
    for i, value in enumerate(scenario.plan.outputs):
        row = scenario.rows.get(_uid(value, b), {})
        if not row or "src" in row or "dst" in row:
            why = "it is an input or a constant_value, or is returned twice"
            raise ArtefactError(f"output {i} is not the result of a delegate", why=why, hint="do not return it")
        row["dst"] = f"output_{b}_{i}.npy"


# ---- stages: one for each delegate ----

Stage = Callable[
    [int, list[str], list[str]], Iterator[dict[str, Any]]
]  # batch, uids read_pte, uids written -> commands


def _stage(folder: Path, scenario: Scenario, i: int, piece: PteSegment, shaders: Shaders) -> Stage:
    assert piece.payload is not None
    if piece.backend in shaders:
        return _shader_stage(scenario, i, shaders[piece.backend](piece.payload))
    return _graph_stage(folder, scenario, i, piece.payload)


def _graph_stage(folder: Path, scenario: Scenario, i: int, vgf: bytes) -> Stage:
    file = folder / f"graph_{i}.vgf"
    file.write_bytes(vgf)
    template = scenario_template(file)
    names = {row["uid"]: row for row in scenario_tensors(template)}
    scenario.resources += [
        {"graph": r["graph"] | {"uid": f"graph_{i}", "src": file.name}} for r in template["resources"] if "graph" in r
    ]

    def commands(b: int, reads: list[str], writes: list[str]) -> Iterator[dict[str, Any]]:
        uids = {uid: _bound(row, reads, writes, scenario) for uid, row in names.items()}
        for kind, row in (
            (kind, row) for command in scenario_commands(template, uids.__getitem__) for kind, row in command.items()
        ):
            yield {kind: row | ({"graph_ref": f"graph_{i}"} if "graph_ref" in row else {})}

    return commands


def _bound(row: dict[str, Any], reads: list[str], writes: list[str], scenario: Scenario) -> str:
    """The program's tensor for an input or output of the .vgf."""
    place = int((row.get("src") or row["dst"]).rpartition("_")[2])
    uid = (reads if "src" in row else writes)[place]
    here, there = (f"{r['format']} of {r['dims']}" for r in (scenario.rows[uid], row))
    if here != there:
        raise ArtefactError(f"{uid} does not fit the .vgf", why=f"{there} in the .vgf, {here} in the program")
    return uid


def _shader_stage(scenario: Scenario, i: int, shader: Shader) -> Stage:
    scenario.files[shader.file] = shader.spirv
    constants = [{"id": k, "value": value} for k, value in shader.constants]
    row = {"uid": f"shader_{i}", "src": shader.file, "type": "SPIR-V", "specialization_constants": constants}
    scenario.resources.append({"shader": row})

    def commands(b: int, reads: list[str], writes: list[str]) -> Iterator[dict[str, Any]]:
        bound = dict(zip(shader.bindings, (*reads, *writes), strict=True))
        seen = {
            k: _texture(scenario, uid, shader.textures[k]) if k in shader.textures else uid for k, uid in bound.items()
        }
        bindings = [{"set": 0, "id": k, "resource_ref": uid} for k, uid in sorted(seen.items())]
        yield {"dispatch_compute": {"shader_ref": row["uid"], "rangeND": list(shader.groups), "bindings": bindings}}

    return commands


def _texture(scenario: Scenario, uid: str, format_: str) -> str:
    """A tensor as an image in the same memory, so that nothing is copied between a graph and a shader.

    An input is read_pte from its file twice instead: the runner fills shared memory without row alignment.
    """
    image, row = f"{uid}_texture", scenario.rows[uid]
    if image not in scenario.rows:
        _, height, width, _ = row["dims"]
        shared = {"memory_group": {"id": f"{uid}_memory"}, "tiling": "LINEAR"}
        source = {"src": row["src"]} if "src" in row else shared
        row |= {} if "src" in row else shared
        how = {"uid": image, "dims": [1, width, height, 1], "format": format_, "shader_access": "readonly"}
        scenario.rows[image] = how | source
        scenario.resources.append({"image": scenario.rows[image]})
    return image


def _save(folder: Path, scenario: Scenario) -> Path:
    for name, data in scenario.files.items():
        if isinstance(data, bytes):
            (folder / name).write_bytes(data)
        else:
            np.save(folder / name, data)
    file = folder / "scenario.json"
    text = json.dumps({"commands": scenario.commands, "resources": scenario.resources}, indent=1)
    file.write_text(text + "\n")
    return file
