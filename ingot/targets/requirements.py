"""Packages that targets need, in the versions that Ingot was tested with."""

from __future__ import annotations

from functools import partial

from ingot.core.versions import install_line, installed
from ingot.targets.base import Requirement


def package(name: str, *, no_deps: bool = False) -> Requirement:
    """A Python package; its version is found by its metadata, nothing is imported."""
    return Requirement(name, partial(installed, name), install_line(name, no_deps=no_deps))


EXECUTORCH = (package("torch"), package("executorch"), package("torchao"))
