"""Arm's tools that run a .vgf here, with the Vulkan they need: where they are, and what it means when they fail."""

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

STACK = ("VkLayer_Graph", "VkLayer_Tensor")  # the upper first: it computes on the tensors of the lower


def call(
    tool: Requirement, arguments: list[str], seconds: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    demand(tool)
    command = [str(tool.found()), *arguments]
    how: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL, "text": True, "errors": "replace"}
    try:
        return subprocess.run(command, env=env, timeout=seconds, check=False, **how)
    except subprocess.TimeoutExpired as e:
        hint = "give it more time (run_timeout in the recipe) or fewer batches"
        raise ArtefactError(f"{tool.name} did not end", why=f"it took more than {seconds:g} s", hint=hint) from e
    except OSError as e:
        raise ArtefactError(f"{tool.name} does not start", why=str(e), hint=tool.install) from e


def demand(*needed: Requirement) -> None:
    if missing := [r for r in needed if r.found() is None]:
        why = f"not found: {', '.join(r.name for r in missing)}"
        remedies = dict.fromkeys(_remedy(r) for r in missing)
        raise ArtefactError("nothing here runs a .vgf", why=why, hint="; ".join(remedies))


def _remedy(needed: Requirement) -> str:
    misled = [v for v in CHOOSING if needed is DRIVER and os.environ.get(v)]
    return f"unset {' and '.join(misled)}: no driver named there works" if misled else needed.install


def failure(tool: Requirement, done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line and "WARNING" not in line][-3:]
    said = " | ".join(lines) or _ending(done.returncode)
    for sign, why, needed in CAUSES:
        if re.search(sign, said):
            return ArtefactError(f"{tool.name} failed", why=f"{why}: {said}", hint=_remedy(needed or tool))
    hint = f"is what it was given whole, and made for this version of the tools? {tool.install}"
    return ArtefactError(f"{tool.name} failed", why=said, hint=hint)


def _ending(code: int) -> str:
    return f"it died of {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code} and left no results"


def _installed(package: str, name: str) -> Path | None:
    """A file of a package, wherever its wheel puts it; not the script in Python that stands for it outside."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = [Path(str(f.locate())) for f in files if f.name == name and ".." not in f.parts]
    return next((p for p in inside if p.exists()), None)


def _find_tool(name: str, package: str) -> str | None:
    found = _installed(package, name)
    return shutil.which(name) if found is None else str(found)


def layers() -> list[tuple[Path, Path]]:
    """Manifest and library of each layer that is installed, the upper first."""
    pairs = [(_installed(EMULATION, f"{name}.json"), _installed(EMULATION, f"lib{name}.so")) for name in STACK]
    return [(manifest, library) for manifest, library in pairs if manifest and library]


def _find_layers() -> str | None:
    return importlib.metadata.version(EMULATION) if len(layers()) == len(STACK) else None


def _tool(name: str, package: str) -> Requirement:
    return Requirement(name, partial(_find_tool, name, package), install_line(package))


def _find_loader() -> str | None:
    try:
        return ctypes.CDLL("libvulkan.so.1")._name  # as the runner does
    except OSError:
        return None


def _find_driver() -> str | None:
    """Manifests of drivers, looked for where the loader looks."""
    if given := next(filter(None, map(os.environ.get, CHOOSING)), None):
        files = [Path(p) for p in given.split(os.pathsep)]
    else:
        places = [p for v, usual in SEARCHED.items() for p in (os.environ.get(v) or usual).split(os.pathsep)]
        files = [f for p in (*ALWAYS, *places) for f in sorted(Path(p).expanduser().glob("vulkan/icd.d/*.json"))]
    return ", ".join(f.name for f in files if f.exists()) or None


CHOOSING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the second is the older name; both replace the search
ALWAYS = ("/usr/local/etc", "/etc")
SEARCHED = {  # variable -> what stands in for it
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
# What the tools say, what that means, and what is to be installed anew (None: the tool itself).
CAUSES = (
    ("GLIBC|error while loading shared libraries", "it was built for another system", None),
    ("Failed to load vulkan library", "the Vulkan loader does not load", LOADER),
    ("ErrorIncompatibleDriver|enumeratePhysicalDevices", "no Vulkan driver offers a device", DRIVER),
    ("Cannot find queue index|Error(Layer|Extension|Feature)NotPresent", "the emulation layers did not load", LAYERS),
)
