"""What is in a .vgf: its segments, and how many bytes it holds and asks for."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ingot.errors import ArtefactError
from ingot.targets.arm.scenario_runner import READ_SECONDS, dtype_of
from ingot.targets.arm.vulkan_tools import VGF_DUMP, call, failure


@dataclass(frozen=True)
class Segment:
    name: str
    kind: str  # GRAPH, or COMPUTE for a shader


@dataclass(frozen=True)
class Contents:
    """Counted, not estimated; the time it takes is known to the device alone."""

    format: str
    segments: tuple[Segment, ...]
    bytes: dict[str, int]  # of constants, inputs, outputs and what lies between segments

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def contents(files: Mapping[str, bytes]) -> Contents | None:
    """None without the tool that reads it, or where it says something else: no cast fails for this."""
    if "graph.vgf" not in files or VGF_DUMP.found() is None:
        return None
    with suppress(ArtefactError, KeyError, TypeError):
        return _counted(_table(files["graph.vgf"]))
    return None


def _counted(table: dict[str, Any]) -> Contents:
    segments = tuple(Segment(s["name"], s["type"]) for s in table["model_sequence"]["segments"])
    version = ".".join(str(table["header"][k]) for k in ("major", "minor", "patch"))
    return Contents(f"vgf {version}", segments, _bytes(table["resources"]))


def _table(vgf: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ingot-vgf-") as name:
        file = Path(name) / "graph.vgf"
        file.write_bytes(vgf)
        done = call(VGF_DUMP, ["--input", str(file)], READ_SECONDS)
    try:
        return dict(json.loads(done.stdout))
    except ValueError as e:
        raise failure(VGF_DUMP, done) from e


def _bytes(resources: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for r in resources:
        kind = r["category"].lower()
        found[kind] = found.get(kind, 0) + math.prod(r["shape"]) * dtype_of(r["vk_format"]).itemsize
    return found
