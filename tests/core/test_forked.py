"""Work in a forked child: its files stay, its failures become exceptions."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingot.core.forked import CAN_FORK, ChildError, run_forked

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="forking is safe on Linux only")


def test_the_child_works_on_files(tmp_path: Path) -> None:
    parent = os.getpid()
    run_forked(lambda: (tmp_path / "pid").write_text(str(os.getpid())) and 0, 60, "the tool")
    assert int((tmp_path / "pid").read_text()) != parent


def _reports() -> int:
    print("Error: the network is too deep")
    return 1


def _raises() -> int:
    raise ValueError("no such accelerator")


@pytest.mark.parametrize(
    ("work", "seconds", "words"),
    [
        (lambda: ctypes.string_at(0), 60, "the tool failed: it ended with signal SIGSEGV"),
        (lambda: time.sleep(600), 0.2, r"the tool failed: it took more than 0\.2 seconds"),
        (_reports, 60, "the tool failed: Error: the network is too deep"),
        (_raises, 60, "the tool failed: ValueError: no such accelerator"),
    ],
    ids=["crash", "hang", "report", "exception"],
)
def test_a_failure_has_the_words_of_the_tool(work: Callable[[], object], seconds: float, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChildError, match=words):
        run_forked(work, seconds, "the tool")
    assert time.monotonic() - start < 30
