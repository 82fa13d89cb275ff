"""What a .vgf contains: segments, and bytes of constants, inputs, outputs and intermediates."""

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
from ingot.targets.arm.scenario_runner import READ_SECONDS, numpy_dtype
from ingot.targets.arm.vulkan_tools import VGF_DUMP, run_tool, tool_error


@dataclass(frozen=True)
class VgfSegment:
    name: str
    kind: str  # GRAPH, or COMPUTE for a shader


@dataclass(frozen=True)
class VgfContents:
    """Counted, not estimated. Only a device knows the time."""

    format: str
    segments: tuple[VgfSegment, ...]
    bytes: dict[str, int]  # by category: constant, input, output, intermediate

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def vgf_contents(files: Mapping[str, bytes]) -> VgfContents | None:
    """None: vgf_dump is missing or prints something unknown. A cast does not fail for this."""
    if "graph.vgf" not in files or VGF_DUMP.found() is None:
        return None
    with suppress(ArtefactError, KeyError, TypeError):
        return _contents(_dump(files["graph.vgf"]))
    return None


def _contents(table: dict[str, Any]) -> VgfContents:
    segments = tuple(VgfSegment(s["name"], s["type"]) for s in table["model_sequence"]["segments"])
    version = ".".join(str(table["header"][k]) for k in ("major", "minor", "patch"))
    return VgfContents(f"vgf {version}", segments, _bytes(table["resources"]))


def _dump(vgf: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ingot-vgf-") as name:
        file = Path(name) / "graph.vgf"
        file.write_bytes(vgf)
        done = run_tool(VGF_DUMP, ["--input", str(file)], READ_SECONDS)
    try:
        return dict(json.loads(done.stdout))
    except ValueError as e:
        raise tool_error(VGF_DUMP, done) from e


def _bytes(resources: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for r in resources:
        kind = r["category"].lower()
        found[kind] = found.get(kind, 0) + math.prod(r["shape"]) * numpy_dtype(r["vk_format"]).itemsize
    return found
