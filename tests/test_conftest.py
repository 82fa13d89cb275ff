"""How tests run: warnings of ingot are errors, and in CI a missing tool is a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.smoke
SKIPPED = """
import pytest
from tests.support.requirements import skip_without

def test_with_a_tool():
    skip_without("vgf", ["pip install converter"])

@pytest.fixture
def tool():
    skip_without("vgf", ["pip install converter"])

def test_with_a_tool_in_a_fixture(tool): ...

@pytest.mark.skip(reason="not on this platform")
def test_elsewhere(): ...
"""


def warn_as(module: str) -> None:
    exec("import warnings; warnings.warn('about something')", {"__name__": module})


@pytest.mark.parametrize("module", ["ingot", "ingot.plan.solve"])
def test_a_warning_of_ingot_is_an_error(module: str) -> None:
    with pytest.raises(UserWarning, match="about something"):
        warn_as(module)


@pytest.mark.parametrize("module", ["torch.export", "ingots", "tests.support.arm"])
def test_a_warning_of_others_is_ignored(module: str) -> None:
    warn_as(module)


@pytest.fixture
def outcomes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("INGOT_CACHE", os.environ["INGOT_CACHE"])  # the run inside sets another
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyfile(SKIPPED)
    return pytester


@pytest.mark.parametrize(
    ("ci", "allowed", "expected"),
    [
        ("", "", {"skipped": 3}),
        ("true", "", {"skipped": 1, "failed": 1, "errors": 1}),
        ("true", "1", {"skipped": 3}),
    ],
)
def test_in_ci_a_missing_tool_is_a_failure(
    outcomes: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str, allowed: str, expected: dict[str, int]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("INGOT_ALLOW_SKIPS", allowed)
    result = outcomes.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-rsfE")
    result.assert_outcomes(**expected)
    result.stdout.fnmatch_lines("*missing tool: vgf needs: pip install converter*")
