"""Shared by all tests: fixed seeds, one thread pool, quiet backends, no silent skips in CI, no silent recovery."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from unittest.mock import patch

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


# Tests of kernels: a cast that recovers from a wrong or refused one would pass all the same.
WITHOUT_RECOVERY = frozenset({"backends", "fuzz", "lower", "patches", "quantize", "rewrite", "runtime", "targets"})
_may_recover = True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of any scope. The marker `recovers` allows it where recovery itself is tested."""
    global _may_recover
    _may_recover = item.path.parent.name not in WITHOUT_RECOVERY or "recovers" in item.keywords


@pytest.fixture(autouse=True, scope="session")
def _no_silent_recovery() -> Iterator[None]:
    """A cast that would recover ends as with `recover = false` in its recipe."""
    from ingot.result.recovery.recover import _Recovery

    real = _Recovery.recovered
    with patch.object(_Recovery, "recovered", lambda self, first: real(self, first) if _may_recover else first):
        yield


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
