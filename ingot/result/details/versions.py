"""Versions of all software that took part in a casting."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import Any

import ingot


def versions_of(target: Any) -> dict[str, str]:
    """With the versions of the target's required and optional tools."""
    known = {p: found for p in ("torch", "torchao", "executorch", "numpy") if (found := _version(p))}
    needs = (*target.setup.requirements, *target.setup.extras) if target is not None else ()
    tools = {r.name: _without_path(found, r.install) for r in needs if (found := r.found())}
    return {"ingot": ingot.__version__, "python": platform.python_version(), **known, **tools, "machine": _machine()}


def _without_path(found: str, install: str) -> str:
    """A path is replaced by the version of the tool's package: a report must not contain local paths."""
    package = re.search(r"pip install (?:-\S+ )*([\w.-]+)==", install)
    return found if os.sep not in found else (_version(package[1]) if package else None) or "installed"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}"
