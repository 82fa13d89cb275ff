"""A backend that computes something else than its op, while a test runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingot.backends import registry as backends
from tests.support.wrong_kernels import register


@pytest.fixture
def wrong_backend() -> Iterator[str]:
    register()
    yield "doubling"
    backends._added.clear()
