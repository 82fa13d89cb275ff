"""Versions of everything that had a part in a casting."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import Any

import ingot


def versions_of(target: Any) -> dict[str, str]:
    """Also of the tools that the target needs, and of what it can do without."""
    known = {p: found for p in ("torch", "torchao", "executorch", "numpy") if (found := _version(p))}
    needs = (*target.setup.requirements, *target.setup.extras) if target is not None else ()
    tools = {r.name: _told(found, r.install) for r in needs if (found := r.found())}
    return {"ingot": ingot.__version__, "python": platform.python_version(), **known, **tools, "machine": _machine()}


def _told(found: str, install: str) -> str:
    """The version of the package that a tool comes in, where it is found by its path: that is nobody's business."""
    package = re.search(r"pip install (?:-\S+ )*([\w.-]+)==", install)
    return found if os.sep not in found else (_version(package[1]) if package else None) or "installed"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}"
