"""Versions of everything that had a part in a casting."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

import ingot


def versions_of(target: Any) -> dict[str, str]:
    """Also of the tools that the target needs, and of what it can do without."""
    known = {p: found for p in ("torch", "torchao", "executorch", "numpy") if (found := _version(p))}
    needs = (*target.requirements, *target.extras) if target is not None else ()
    tools = {r.name: found for r in needs if (found := r.found())}
    return {"ingot": ingot.__version__, "python": platform.python_version(), **known, **tools, "machine": _machine()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}"
