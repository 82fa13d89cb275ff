"""A bad environment: a package that is not installed, a disk that is full."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

import pytest

import ingot


def without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Make a package look as if it were not installed."""
    installed = importlib.metadata.version

    def version(package: str) -> str:
        if package == missing:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", version)


def _attempt(work: Callable[[], Any], answer: Any) -> None:
    """Run in a child process in which no file may grow beyond 100 bytes: a full disk without a mount."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    try:
        answer.send(work())
    except Exception as e:
        answer.send(e if isinstance(e, ingot.IngotError) else repr(e))


def on_a_full_disk(work: Callable[[], Any]) -> Any:
    """The result of the work, or the error that it raised."""
    forked = multiprocessing.get_context("fork")
    answer, theirs = forked.Pipe(duplex=False)
    child = forked.Process(target=_attempt, args=(work, theirs))
    child.start()
    result = answer.recv() if answer.poll(60) else "no answer"
    child.join()
    return result
