"""Packages that targets require, in the tested versions."""

from __future__ import annotations

from functools import partial

from ingot.core.versions import install_line, installed
from ingot.targets.base import Requirement


def package(name: str, *, no_deps: bool = False) -> Requirement:
    """A Python package. Its version is read from metadata; nothing is imported."""
    return Requirement(name, partial(installed, name), install_line(name, no_deps=no_deps))


EXECUTORCH = (package("torch"), package("executorch"), package("torchao"))
