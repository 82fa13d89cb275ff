"""Shared by all tests: fixed seeds, one thread pool, quiet backends."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("executorch").setLevel(logging.ERROR)
