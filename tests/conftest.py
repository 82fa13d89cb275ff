"""Shared by all tests: fixed seeds, one thread pool, quiet backends, and no silent skips in CI."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator

import pytest

# Two workers with two threads each on two cores wait for one another most of the time; children inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.support.requirements import MISSING_TOOL


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers a file stays with one of them, since it shares what it cast; parts of a long test do not."""
    for item in items:
        if "parts" not in item.keywords:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a missing tool is a failure: a green run has executed what it names. INGOT_ALLOW_SKIPS=1 allows it."""
    report = yield
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if MISSING_TOOL in reason and not _may_skip():
        report.outcome, report.longrepr = "failed", f"{reason}\nCI is set: install it, or set INGOT_ALLOW_SKIPS=1"
    return report


def _may_skip() -> bool:
    in_ci = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    return not in_ci or os.environ.get("INGOT_ALLOW_SKIPS") == "1"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _fresh_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What backends said in earlier runs is not trusted here, and nothing is left in the home folder."""
    os.environ["INGOT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    logging.getLogger("executorch").setLevel(logging.ERROR)
