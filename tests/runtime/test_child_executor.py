"""Executors in a child process: what they return, and what becomes of a crash, a hang and an exception."""

from __future__ import annotations

import numpy as np
import pytest

from ingot.errors import ArtefactError
from ingot.runtime.child_executor import child_executor

BATCHES = [
    [np.arange(6, dtype=np.int8).reshape(2, 3), np.array([0.5], np.float32)],
    [np.zeros((2, 3), np.int8), np.array([2], np.float32)],
]
WHERE = "tests.support.dying_executors"


def test_arrays_keep_batch_order_shape_and_dtype() -> None:
    made = child_executor(f"{WHERE}:doubled", 60)(b"payload", BATCHES, 2)
    assert [[a.dtype for a in arrays] for arrays in made] == [[np.int8, np.float32]] * 2
    assert all(
        np.array_equal(m, 2 * g) for ms, gs in zip(made, BATCHES, strict=True) for m, g in zip(ms, gs, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "seconds", "words"),
    [
        ("hang", 0.3, r"it took more than 0\.6 seconds and was killed"),
        ("crash", 60, "it ended with signal SIGSEGV"),
        ("refuse", 60, "an exception.*ValueError: this payload is not mine"),
    ],
)
def test_a_failure_is_an_error_with_its_words(name: str, seconds: float, words: str) -> None:
    with pytest.raises(ArtefactError, match=words):
        child_executor(f"{WHERE}:{name}", seconds)(b"", BATCHES, 2)
