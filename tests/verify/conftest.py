"""A backend that computes something else than its op says."""

from __future__ import annotations

import pytest

from tests.support.wrong_kernels import register


@pytest.fixture
def wrong_backend() -> str:
    """The name under which a recipe may ask for it; without that it is never used."""
    register()
    return "doubling"
