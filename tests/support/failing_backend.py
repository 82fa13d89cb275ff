"""Extra backends that own one op and die on it when it runs: one hangs, one crashes, in the child process of each."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from ingot.backends.base import Backend, owning
from ingot.backends.registry import register_backend
from ingot.runtime.child_executor import child_executor
from tests.support.sharpen_backend import takes

HANG_SECONDS = 4.0


def hang(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    time.sleep(600)
    return []


def crash(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    ctypes.string_at(0)
    return []


def register() -> None:
    ability = owning("aten::hardswish", precisions=("float", "int8"))
    for name in ("hang", "crash"):
        run = child_executor(f"tests.support.failing_backend:{name}", HANG_SECONDS)
        register_backend(Backend(f"test-{name}", "TestBackend", ability, lambda: takes()("hardswish"), run))
