"""Two sweeps: a regression is a change beyond noise, and exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ingot.cli import main
from ingot.fleet.compare import compare_fleets
from ingot.fleet.rows import Cell
from ingot.fleet.store import FleetStore

GOOD = {
    "verdict": "passed", "delegates": 1, "host_ops": 0, "bytes": 100_000, "sqnr_db": 38.0, "cycles": 5000,
    "measured_seconds": 0.010, "peak_memory_bytes": 500_000_000, "versions": {"torch": "2.13.0"},
}  # fmt: skip
CELL = {"model": "net", "target": "xnnpack", "recipe": "default"}


def compared(**changed: Any) -> list[tuple[str, str]]:
    found = compare_fleets([{**CELL, **GOOD}], [{**CELL, **GOOD, **changed}])
    assert found["regressions"] == sum(c["trend"] == "worse" for c in found["changes"])
    return [(c["what"], c["trend"]) for c in found["changes"]]


@pytest.mark.parametrize(
    ("key", "worse", "better", "noise"),
    [
        ("delegates", 2, 0, 1),
        ("host_ops", 1, -1, 0),
        ("bytes", 101_000, 99_000, 100_100),
        ("sqnr_db", 37.0, 39.0, 37.7),
        ("cycles", 5100, 4900, 5010),
        ("measured_seconds", 0.012, 0.008, 0.011),
        ("peak_memory_bytes", 600_000_000, 400_000_000, 520_000_000),
    ],
)
def test_a_change_beyond_noise(key: str, worse: float, better: float, noise: float) -> None:
    assert compared(**{key: worse}) == [(key, "worse")]
    assert compared(**{key: better}) == [(key, "better")]
    assert compared(**{key: noise}) == []


def test_a_verdict_that_changed() -> None:
    refused = {"verdict": "refused", "error": {"text": "no kernel"}}
    found = compare_fleets([{**CELL, **GOOD}], [{**CELL, **refused}])
    assert [(c["what"], c["trend"], c["why"]) for c in found["changes"]] == [("verdict", "worse", "no kernel")]
    back = compare_fleets([{**CELL, **refused}], [{**CELL, **GOOD}])
    assert [(c["what"], c["trend"]) for c in back["changes"]] == [("verdict", "better")]


def test_a_lost_cell_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no regression, and a gate must not take it for a cell that is as before."""
    assert compared(verdict="lost") == []
    old, new = stored(tmp_path / "old"), stored(tmp_path / "new", verdict="lost")
    assert main(["compare", str(old), str(new)]) == 4
    assert "lost    net · xnnpack · default" in capsys.readouterr().out
    assert main(["compare", str(new), str(old)]) == main(["compare", str(new), str(new)]) == 0


def test_a_model_that_was_taken_out_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder may still be there, with figures of an earlier sweep."""
    old, new = stored(tmp_path / "old"), stored(tmp_path / "new", bytes=900_000)
    FleetStore(new).end_sweep([], [], "2026-02-01T00:00:00Z")
    assert main(["compare", str(old), str(new), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["cells"], said["gone"]) == (0, ["net · xnnpack · default"])


def test_other_versions_are_named() -> None:
    found = compare_fleets([{**CELL, **GOOD}], [{**CELL, **GOOD, "versions": {"torch": "2.14.0"}}])
    assert found["versions"] == [{"what": "torch", "first": "2.13.0", "second": "2.14.0"}]


def stored(folder: Path, **changed: Any) -> Path:
    store, cell = FleetStore(folder), Cell(**CELL, key="k")
    row = store.write_cell(cell, {**GOOD, **changed}, {}, b"")
    store.end_sweep([row], [cell], "2026-01-01T00:00:00Z")
    return folder


@pytest.mark.parametrize(("bytes_now", "code"), [(100_000, 0), (90_000, 0), (150_000, 1)])
def test_the_exit_code(tmp_path: Path, bytes_now: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = stored(tmp_path / "old"), stored(tmp_path / "new", bytes=bytes_now)
    assert main(["compare", str(old), str(new), "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert said["regressions"] == code
    assert said["cells"] == 1
