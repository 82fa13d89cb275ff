"""Infinities and NaN: valid JSON everywhere, in one form, and read back as numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.cli.output import say
from ingot.core.artefact import Check, OutputCheck
from tests.support.castings import lowered

BAD = OutputCheck("y", float("-inf"), float("inf"), float("nan"), 3.0, "dead")


@pytest.mark.smoke
def test_an_answer_is_valid_json_whatever_its_numbers(capsys: Any) -> None:
    assert say(0, {"a": float("nan"), "b": [float("inf"), {"c": float("-inf")}]}, "", as_json=True) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told == {"a": "nan", "b": ["inf", {"c": "-inf"}]}


def test_a_failed_check_is_saved_and_loaded(tmp_path: Path) -> None:
    """A wrong shape has an SQNR of -inf."""
    casting = replace(lowered(b"PTE"), check=Check("here", 1, (BAD,), passed=False), evidence=None)
    folder = casting.save_folder(tmp_path / "out")
    for file in ("casting.json", "report.json", "plan.json"):
        json.loads((folder / file).read_text(), parse_constant=pytest.fail)
    check = ingot.Casting.load(folder).check
    assert check is not None
    assert repr(check) == repr(casting.check)  # nan is not equal to itself
