"""Shared by all tests: fixed seeds, one thread pool, quiet backends."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

# Two workers with two threads each on two cores wait for one another most of the time; children inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers a file stays with one of them, since it shares what it cast; parts of a long test do not."""
    for item in items:
        if "parts" not in item.keywords:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _fresh_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What backends said in earlier runs is not trusted here, and nothing is left in the home folder."""
    os.environ["INGOT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("executorch").setLevel(logging.ERROR)
