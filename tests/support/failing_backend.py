"""Extra backends that own one op and die on it when it runs: one hangs, one crashes, in the child process of each."""

from __future__ import annotations

from ingot.backends.base import Backend, owning
from ingot.backends.registry import register_backend
from ingot.runtime.child_executor import child_executor
from tests.support.sharpen_backend import takes

HANG_SECONDS = 3.0


def register(name: str) -> str:
    """The name of the backend whose executor is `name` of tests/support/dying_executors.py."""
    ability = owning("aten::hardswish", precisions=("float", "int8"))
    run = child_executor(f"tests.support.dying_executors:{name}", HANG_SECONDS)
    register_backend(Backend(f"test-{name}", "TestBackend", ability, lambda: takes()("hardswish"), run))
    return f"test-{name}"
