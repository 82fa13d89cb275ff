"""Calibration batches that are kept from the recording: how many, which, and what is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ingot
from ingot.calibrate import held_out
from ingot.calibrate.held_out import Split, validation_data
from ingot.capture.inputs import call_of


def numbers(batches: Any) -> list[int]:
    return [int(call_of(b)[0][0]) for b in batches]


def batches(n: int) -> list[tuple[torch.Tensor]]:
    return [(torch.tensor(float(i)),) for i in range(n)]


def stream(n: int) -> Iterator[tuple[torch.Tensor]]:
    """Without a length, and with one buffer for all."""
    buffer = torch.tensor(0.0)
    for i in range(n):
        yield (buffer.fill_(i),)


def split(source: Any, **how: Any) -> tuple[list[int], list[int], str]:
    """What was recorded, what verifies, and where that is from."""
    made = Split(**how)
    recorded = [number for b in made.recorded(source) for number in numbers([b])]  # one by one: the buffer is reused
    return recorded, numbers(made.data.batches), made.data.source


@pytest.mark.smoke
@pytest.mark.parametrize("source", [batches, stream])
@pytest.mark.parametrize("n", [16, 17, 19, 20, 50])
def test_a_quarter_of_sixteen_or_more(source: Any, n: int) -> None:
    recorded, verify, origin = split(source(n))
    assert origin == "held-out"
    assert verify == list(range(3, n, 4))
    assert sorted(recorded + verify) == list(range(n))


@pytest.mark.smoke
@pytest.mark.parametrize("n", [1, 3, 4, 8, 15])
def test_fewer_are_all_recorded(n: int) -> None:
    recorded, verify, origin = split(batches(n))
    assert (recorded, verify, origin) == (list(range(n)), list(range(min(n, 8))), "calibration")
    recorded, verify, origin = split(stream(n))
    assert sorted(recorded) == list(range(n))
    assert verify == recorded[:8]
    assert origin == "calibration"


@pytest.mark.smoke
def test_a_length_that_is_not_true() -> None:
    """A loader may promise more or fewer batches than it gives: nothing is lost, and the origin is told rightly."""

    class Loader:
        def __init__(self, promised: int, given: int):
            self.promised, self.given = promised, given

        def __len__(self) -> int:
            return self.promised

        def __iter__(self) -> Iterator[Any]:
            return stream(self.given)

    recorded, verify, origin = split(Loader(100, 10))
    assert sorted(recorded) == list(range(10))
    assert origin == "calibration"
    recorded, verify, origin = split(Loader(4, 20))
    assert recorded == list(range(20))
    assert (verify, origin) == (list(range(8)), "calibration")


@pytest.mark.smoke
def test_bytes_are_bounded_and_what_is_beyond_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST_BYTES", 8)  # two numbers of float32
    recorded, verify, origin = split(stream(40))
    assert (verify, origin) == ([3, 7], "held-out")
    assert sorted(recorded + verify) == list(range(40))
    monkeypatch.setattr(held_out, "MOST_BYTES", 0)
    recorded, verify, origin = split(stream(40))
    assert recorded == list(range(40))
    assert (verify, origin) == ([0], "calibration")  # one at least: an artefact is always executed


@pytest.mark.smoke
def test_their_number_is_bounded() -> None:
    assert len(split(stream(1000))[1]) == held_out.MOST_BATCHES
    assert split(stream(40), most=2) == ([i for i in range(40) if i not in (3, 7)], [3, 7], "held-out")
    assert split(batches(10), most=2)[1] == [0, 1]


@pytest.mark.smoke
def test_a_sequence_is_not_split() -> None:
    assert split(stream(40), hold=False)[0] == list(range(40))


@pytest.mark.smoke
def test_validation_data_is_copied_and_not_empty() -> None:
    assert numbers(validation_data(stream(5)).batches) == [0, 1, 2, 3, 4]
    with pytest.raises(ingot.InputError, match="validation data is empty"):
        validation_data([])
