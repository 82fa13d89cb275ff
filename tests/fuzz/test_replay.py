"""Programs that once failed, as minimised by `python -m fuzz.minimise`: each has the outcome that is right for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.judge import judge
from fuzz.program import program_from

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.json"))
RIGHT = ("ok", "refused")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_a_program_that_once_failed(path: Path) -> None:
    data = json.loads(path.read_text())
    expected = data.pop("expected", "ok")
    found = judge(program_from(data))
    assert expected in RIGHT
    assert found.kind == expected, f"{found.signature}\n{found.text}"
