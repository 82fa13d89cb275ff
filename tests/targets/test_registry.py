"""Targets from entry points and registered ones, without a backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

import ingot
from ingot.targets import registry
from ingot.targets.xnnpack.target import XNNPACK

OTHER = replace(XNNPACK, name="other", description="XNNPACK under another name")


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Pretend that a package with one entry point is installed."""

    def install(name: str, value: str) -> None:
        found = EntryPoint(name, value, registry.GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda group: [found] if group == registry.GROUP else [])

    return install


@pytest.mark.smoke
def test_an_entry_point_is_a_target(entry: Callable[[str, str], None]) -> None:
    entry("other", f"{__name__}:OTHER")
    assert registry.known_targets()["other"] is OTHER
    assert registry.find_target("other") is OTHER


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("broken", "no.such.module:TARGET", r"'broken' does not load.*ModuleNotFoundError"),
        ("setup", "ingot.targets.base:Setup", r"'setup' is a type.*must name a Target"),
        ("renamed", f"{__name__}:OTHER", r"'other' does not load.*entry point is named 'renamed'"),
    ],
)
def test_an_entry_point_that_is_none(entry: Callable[[str, str], None], name: str, value: str, said: str) -> None:
    entry(name, value)
    assert name not in {t.name for t in ingot.targets()}  # one bad package does not hide the others
    with pytest.raises(ingot.TargetError, match=said):
        registry.find_target(name)


@pytest.mark.smoke
def test_a_registered_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    assert registry.register_target(OTHER) is OTHER
    assert registry.find_target("other") is OTHER
    with pytest.raises(ingot.TargetError, match="unknown target 'othr' · try: did you mean 'other'"):
        registry.find_target("othr")
