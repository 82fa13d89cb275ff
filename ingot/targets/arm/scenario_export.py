"""A whole program as one scenario: the .vgf of each delegate and the shaders between them, in one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingot.backends.base import Shader
from ingot.errors import ArtefactError
from ingot.runtime.segments import (
    PteSegment,
    constant_value,
    read_pte,
    segment_io,
    segments_of,
    to_memory_order,
    torch_dtype_of,
)
from ingot.targets.arm.scenario_runner import commands_of, fitting, template_of, tensors_of

FORMATS = {"float32": "R32_SFLOAT", "float16": "R16_SFLOAT", "bool": "R8_BOOL_ARM"}
Shaders = Mapping[str, Callable[[bytes], Shader]]  # by backend: what runs a delegate of it
Arrays = Sequence[Sequence[np.ndarray]]


@dataclass
class Scenario:
    """What is written: the JSON's two lists, and files by name."""

    program: Any
    commands: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes | np.ndarray] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # tensors by uid

    @property
    def plan(self) -> Any:
        return self.program.execution_plan[0]


def write(folder: Path, pte: bytes, batches: Arrays, shaders: Shaders | None = None) -> Path:
    """scenario.json, the .vgf files and shaders, input_<batch>_<i>.npy; running it leaves output_<batch>_<i>.npy."""
    made, shaders = Scenario(read_pte(pte).program), shaders or {}
    pieces = list(segments_of(made.program, {"VgfBackend", *shaders}))
    _refuse_host(pieces, made.plan)
    folder.mkdir(parents=True, exist_ok=True)
    stages = [_stage(folder, made, i, piece, shaders) for i, piece in enumerate(pieces)]
    for b, arrays in enumerate(batches):
        _add_inputs(made, b, arrays)
        known = set(made.plan.inputs)
        for piece, stage in zip(pieces, stages, strict=True):
            reads, writes = segment_io(made.plan, piece, known)
            made.commands += stage(b, [_tensor(made, v, b) for v in reads], [_tensor(made, v, b) for v in writes])
            known |= set(writes)
        _add_outputs(made, b)
    return _save(folder, made)


def _refuse_host(pieces: Sequence[PteSegment], plan: Any) -> None:
    host = [
        plan.operators[i.instr_args.op_index].name
        for p in pieces
        if p.payload is None
        for i in p.instructions
        if hasattr(i.instr_args, "op_index")
    ]
    if host or any(p.payload is None for p in pieces):
        why = f"the host computes between its delegates: {', '.join(dict.fromkeys(host)) or 'something'}"
        hint = "casting.host_ops says why of each; inputs and outputs without a spec may need one"
        raise ArtefactError("this program is no scenario", why=why, hint=hint)


# ---- tensors: one for each value of the program and batch ----


def _uid(value: int, b: int) -> str:
    return f"value_{value}_{b}"


def _tensor(made: Scenario, value: int, b: int) -> str:
    """The uid of a value, declared when it is first met."""
    info = made.plan.values[value].val
    fixed = info.data_buffer_idx != 0
    uid = f"constant_{value}" if fixed else _uid(value, b)
    if uid not in made.rows:
        sizes = [info.sizes[i] for i in info.dim_order] or [1]
        made.rows[uid] = {"uid": uid, "dims": sizes, "format": _format(info), "shader_access": "readwrite"}
        made.resources.append({"tensor": made.rows[uid]})
        if fixed:
            made.rows[uid]["src"] = f"{uid}.npy"
            made.files[f"{uid}.npy"] = to_memory_order(constant_value(made.program, value), info.dim_order).reshape(
                sizes
            )
    return uid


def _format(info: Any) -> str:
    name = str(torch_dtype_of(info)).removeprefix("torch.")
    kind = "SINT" if name.startswith("int") else "UINT"
    bits = "".join(c for c in name if c.isdecimal())
    return f"VK_FORMAT_{FORMATS.get(name, f'R{bits}_{kind}')}"


def _add_inputs(made: Scenario, b: int, arrays: Sequence[np.ndarray]) -> None:
    for i, (value, array) in enumerate(zip(made.plan.inputs, arrays, strict=True)):
        row = made.rows[_tensor(made, value, b)]
        row["src"] = f"input_{b}_{i}.npy"
        made.files[row["src"]] = fitting(array, row, f"input {i} of the scenario")


def _add_outputs(made: Scenario, b: int) -> None:
    for i, value in enumerate(made.plan.outputs):
        row = made.rows.get(_uid(value, b), {})
        if not row or "src" in row or "dst" in row:
            why = "it is an input or a constant, or is returned twice"
            raise ArtefactError(
                f"output {i} is no result of a delegate", why=why, hint="leave it out of what you return"
            )
        row["dst"] = f"output_{b}_{i}.npy"


# ---- stages: what a delegate is in the scenario ----

Stage = Callable[[int, list[str], list[str]], Iterator[dict[str, Any]]]  # batch, uids read, uids written -> commands


def _stage(folder: Path, made: Scenario, i: int, piece: PteSegment, shaders: Shaders) -> Stage:
    assert piece.payload is not None
    if piece.backend in shaders:
        return _shader_stage(made, i, shaders[piece.backend](piece.payload))
    return _graph_stage(folder, made, i, piece.payload)


def _graph_stage(folder: Path, made: Scenario, i: int, vgf: bytes) -> Stage:
    file = folder / f"graph_{i}.vgf"
    file.write_bytes(vgf)
    template = template_of(file)
    names = {row["uid"]: row for row in tensors_of(template)}
    made.resources += [
        {"graph": r["graph"] | {"uid": f"graph_{i}", "src": file.name}} for r in template["resources"] if "graph" in r
    ]

    def commands(b: int, reads: list[str], writes: list[str]) -> Iterator[dict[str, Any]]:
        uids = {uid: _bound(row, reads, writes, made) for uid, row in names.items()}
        for kind, row in (
            (kind, row) for command in commands_of(template, uids.__getitem__) for kind, row in command.items()
        ):
            yield {kind: row | ({"graph_ref": f"graph_{i}"} if "graph_ref" in row else {})}

    return commands


def _bound(row: dict[str, Any], reads: list[str], writes: list[str], made: Scenario) -> str:
    """Which tensor of the program stands at a place of the .vgf."""
    place = int((row.get("src") or row["dst"]).rpartition("_")[2])
    uid = (reads if "src" in row else writes)[place]
    here, there = (f"{r['format']} of {r['dims']}" for r in (made.rows[uid], row))
    if here != there:
        raise ArtefactError(
            f"{uid} is not what the .vgf takes there", why=f"{there} in the .vgf, {here} in the program"
        )
    return uid


def _shader_stage(made: Scenario, i: int, shader: Shader) -> Stage:
    made.files[shader.file] = shader.spirv
    constants = [{"id": k, "value": value} for k, value in shader.constants]
    row = {"uid": f"shader_{i}", "src": shader.file, "type": "SPIR-V", "specialization_constants": constants}
    made.resources.append({"shader": row})

    def commands(b: int, reads: list[str], writes: list[str]) -> Iterator[dict[str, Any]]:
        bound = dict(zip(shader.bindings, (*reads, *writes), strict=True))
        seen = {k: _texture(made, uid, shader.textures[k]) if k in shader.textures else uid for k, uid in bound.items()}
        bindings = [{"set": 0, "id": k, "resource_ref": uid} for k, uid in sorted(seen.items())]
        yield {"dispatch_compute": {"shader_ref": row["uid"], "rangeND": list(shader.groups), "bindings": bindings}}

    return commands


def _texture(made: Scenario, uid: str, format_: str) -> str:
    """A tensor as an image: in the same memory, so that nothing is copied between a graph and a shader.

    What comes from a file is read twice instead: the runner fills shared memory without regard to how rows are aligned.
    """
    image, row = f"{uid}_texture", made.rows[uid]
    if image not in made.rows:
        _, height, width, _ = row["dims"]
        shared = {"memory_group": {"id": f"{uid}_memory"}, "tiling": "LINEAR"}
        source = {"src": row["src"]} if "src" in row else shared
        row |= {} if "src" in row else shared
        how = {"uid": image, "dims": [1, width, height, 1], "format": format_, "shader_access": "readonly"}
        made.rows[image] = how | source
        made.resources.append({"image": made.rows[image]})
    return image


def _save(folder: Path, made: Scenario) -> Path:
    for name, data in made.files.items():
        if isinstance(data, bytes):
            (folder / name).write_bytes(data)
        else:
            np.save(folder / name, data)
    file = folder / "scenario.json"
    text = json.dumps({"commands": made.commands, "resources": made.resources}, indent=1)
    file.write_text(text + "\n")
    return file
