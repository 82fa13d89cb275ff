"""Arm's tools for .vgf files and the Vulkan loader and driver they need: where they are, and what their errors mean."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ingot.core.versions import install_line
from ingot.errors import ArtefactError
from ingot.targets.base import Requirement

STACK = ("VkLayer_Graph", "VkLayer_Tensor")  # in this order: the graph layer uses the tensors of the other


def run_tool(
    tool: Requirement, arguments: list[str], seconds: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    require_tools(tool)
    command = [str(tool.found()), *arguments]
    how: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL, "text": True, "errors": "replace"}
    try:
        return subprocess.run(command, env=env, timeout=seconds, check=False, **how)
    except subprocess.TimeoutExpired as e:
        hint = "a larger run_timeout in the recipe, or fewer batches"
        raise ArtefactError(f"{tool.name} timed out", why=f"it took more than {seconds:g} s", hint=hint) from e
    except OSError as e:
        raise ArtefactError(f"{tool.name} does not start", why=str(e), hint=tool.install) from e


def require_tools(*needed: Requirement) -> None:
    if missing := [r for r in needed if r.found() is None]:
        why = f"not found: {', '.join(r.name for r in missing)}"
        remedies = dict.fromkeys(_remedy(r) for r in missing)
        raise ArtefactError("a .vgf cannot be run here", why=why, hint="; ".join(remedies))


def _remedy(needed: Requirement) -> str:
    wrong = [v for v in DRIVER_VARIABLES if needed is DRIVER and os.environ.get(v)]
    return f"unset {' and '.join(wrong)}: no driver named there works" if wrong else needed.install


def tool_error(tool: Requirement, done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line and "WARNING" not in line][-3:]
    said = " | ".join(lines) or _exit_reason(done.returncode)
    for pattern, why, needed in CAUSES:
        if re.search(pattern, said):
            return ArtefactError(f"{tool.name} failed", why=f"{why}: {said}", hint=_remedy(needed or tool))
    hint = f"the file may be damaged or made for another version of the tools: {tool.install}"
    return ArtefactError(f"{tool.name} failed", why=said, hint=hint)


def _exit_reason(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}, no results"


def _installed(package: str, name: str) -> Path | None:
    """A file of an installed package; not its wrapper script outside the package."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = [Path(str(f.locate())) for f in files if f.name == name and ".." not in f.parts]
    return next((p for p in inside if p.exists()), None)


def _find_tool(name: str, package: str) -> str | None:
    found = _installed(package, name)
    return shutil.which(name) if found is None else str(found)


def emulation_layers() -> list[tuple[Path, Path]]:
    """Manifest and library of each installed layer, in the order of STACK."""
    pairs = [(_installed(EMULATION, f"{name}.json"), _installed(EMULATION, f"lib{name}.so")) for name in STACK]
    return [(manifest, library) for manifest, library in pairs if manifest and library]


def _find_layers() -> str | None:
    return importlib.metadata.version(EMULATION) if len(emulation_layers()) == len(STACK) else None


def _tool(name: str, package: str) -> Requirement:
    return Requirement(name, partial(_find_tool, name, package), install_line(package))


def _find_loader() -> str | None:
    try:
        return ctypes.CDLL("libvulkan.so.1")._name  # as the runner loads it
    except OSError:
        return None


def _find_driver() -> str | None:
    """Driver manifests, searched where the Vulkan loader searches."""
    if chosen := next(filter(None, map(os.environ.get, DRIVER_VARIABLES)), None):
        files = [Path(p) for p in chosen.split(os.pathsep)]
    else:
        given = [p for v, usual in SEARCH_VARIABLES.items() for p in (os.environ.get(v) or usual).split(os.pathsep)]
        folders = [Path(p).expanduser() for p in (*SYSTEM_FOLDERS, *given)]
        files = [f for folder in folders for f in sorted(folder.glob("vulkan/icd.d/*.json"))]
    return ", ".join(f.name for f in files if f.exists()) or None


DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # old name second; both replace the search
SYSTEM_FOLDERS = ("/usr/local/etc", "/etc")
SEARCH_VARIABLES = {  # variable -> its default
    "XDG_CONFIG_HOME": "~/.config",
    "XDG_CONFIG_DIRS": "/etc/xdg",
    "XDG_DATA_HOME": "~/.local/share",
    "XDG_DATA_DIRS": "/usr/local/share:/usr/share",
}
EMULATION = "ai_ml_emulation_layer_for_vulkan"
DEBIAN = "apt-get update -qq && apt-get install -qq -y --no-install-recommends mesa-vulkan-drivers libvulkan1"
RUNNER = _tool("scenario-runner", "ai_ml_sdk_scenario_runner")
VGF_DUMP = _tool("vgf_dump", "ai_ml_sdk_vgf_library")
LAYERS = Requirement("ML emulation layers", _find_layers, install_line(EMULATION))
LOADER = Requirement("Vulkan loader", _find_loader, DEBIAN)
DRIVER = Requirement("Vulkan driver", _find_driver, DEBIAN)
RUNNING = (RUNNER, LAYERS, LOADER, DRIVER)
REQUIREMENTS = (*RUNNING, VGF_DUMP)
# Pattern in a tool's output, what it means, what to install again (None: the tool itself).
CAUSES = (
    ("GLIBC|error while loading shared libraries", "it was built for another system", None),
    ("Failed to load vulkan library", "the Vulkan loader does not load", LOADER),
    ("ErrorIncompatibleDriver|enumeratePhysicalDevices", "no Vulkan driver offers a device", DRIVER),
    ("Cannot find queue index|Error(Layer|Extension|Feature)NotPresent", "the emulation layers did not load", LAYERS),
)
