"""Executors that die. They import nothing: a child process runs them."""

from __future__ import annotations

import ctypes
import time
from typing import Any


def hang(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    time.sleep(600)
    return []


def crash(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    ctypes.string_at(0)
    return []


def refuse(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    raise ValueError("this payload is not mine")


def doubled(payload: bytes, batches: list[list[Any]], outputs: int) -> list[list[Any]]:
    return [[2 * a for a in arrays] for arrays in batches]
