"""A backend that computes something else than its op says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingot.backends import registry
from tests.support.wrong_kernels import register


@pytest.fixture
def wrong_backend() -> Iterator[str]:
    register()
    yield "doubling"
    registry._registered.clear()
