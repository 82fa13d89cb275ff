"""Rows of a sweep; what is done is not done again; every way to fail is a row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.cli import main
from ingot.fleet.store import FleetStore
from ingot.fleet.sweep import SweepResult
from tests.fleet.fleet_files import FAILURES, NETS, TWO_NETS, by_cell, write_fleet


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def swept(home: Path) -> SweepResult:
    return ingot.sweep(write_fleet(home, TWO_NETS), home / "out", processes=2)


@pytest.fixture(scope="module")
def failures(home: Path) -> SweepResult:
    return ingot.sweep(write_fleet(home / "failures", FAILURES), home / "failures/out", processes=2)


def test_a_row_for_each_cell(swept: SweepResult) -> None:
    assert len(swept.rows) == swept.computed == 8
    assert {r["verdict"] for r in swept.rows} == {"passed"}
    for row in swept.rows:
        assert row["delegates"] == 1
        assert (
            row["bytes"]
            == (swept.folder / "cells" / row["model"] / row["target"] / row["recipe"] / "model.pte").stat().st_size
        )
        assert row["sqnr_db"] > 20
        assert row["peak_memory_bytes"] > 1 << 27
        assert row["versions"]["torch"]
        assert len(row["key"]) == 64
    assert all(r["cycles"] for r in swept.rows if r["target"] == "ethos-u55-128")


def test_the_rows_are_those_of_a_cast(swept: SweepResult, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell is what `ingot.cast` gives for the same model, data and recipe."""
    scope: dict[str, Any] = {}
    exec(NETS, scope)
    model, example, batches = scope["mlp"]()
    casting = ingot.cast(model, example, calibration=batches, target="xnnpack")
    row = by_cell(swept.rows)["mlp", "xnnpack", "default"]
    assert casting.check is not None
    assert row["bytes"] == len(casting.pte)
    assert row["sqnr_db"] == pytest.approx(casting.check.outputs[0].sqnr_db, abs=1e-3)
    assert row["judged_on"] == casting.check.judged_on


def test_nothing_is_computed_twice(swept: SweepResult, home: Path) -> None:
    files = {p: p.stat().st_mtime_ns for p in home.glob("out/cells/*/*/*/*")}
    again = ingot.sweep(home / "fleet.toml", home / "out")
    assert again.computed == 0
    assert by_cell(again.rows) == by_cell(swept.rows)
    assert {p: p.stat().st_mtime_ns for p in home.glob("out/cells/*/*/*/*")} == files


def test_what_changed_is_computed(swept: SweepResult, tmp_path: Path, home: Path) -> None:
    """Another recipe concerns its cells; another model file all cells of its models."""
    out = tmp_path / "out"
    fleet = write_fleet(tmp_path, TWO_NETS.replace('["xnnpack", "ethos-u55-128"]', '["xnnpack"]'))
    assert ingot.sweep(fleet, out, processes=2).computed == 4
    fleet.write_text(fleet.read_text().replace("correct_biases = false", "range = 'minmax'"))
    assert ingot.sweep(fleet, out, processes=2).computed == 2
    (tmp_path / "nets.py").write_text(NETS.replace("16, 32)", "16, 24)").replace("(32, 8)", "(24, 8)"))
    last = ingot.sweep(fleet, out, processes=2)
    assert last.computed == 2  # both cells of the mlp; the convolution is built as before
    assert {r["model"] for r in last.rows} == {"mlp", "convolution"}


def test_every_failure_is_a_row(failures: SweepResult) -> None:
    rows = by_cell(failures.rows)
    assert len(rows) == 10
    verdicts = {(m, r): row["verdict"] for (m, _, r), row in rows.items()}
    assert verdicts["mlp", "default"] == "passed"
    assert {verdicts[m, "default"] for m in ("broken", "no_such_data")} == {"refused"}
    assert verdicts["mlp", "gone"] == "refused"
    assert verdicts["crashes", "default"] == "crashed"
    assert verdicts["hangs", "default"] == "timed out"
    said = {m: rows[m, "xnnpack", "default"]["error"]["text"] for m in ("broken", "no_such_data", "crashes", "hangs")}
    assert "no weights here" in said["broken"]
    assert "nowhere.npz" in said["no_such_data"]
    assert "SIGABRT" in said["crashes"]
    assert "25 seconds" in said["hangs"]
    assert "gone.toml" in rows["mlp", "xnnpack", "gone"]["error"]["text"]


def test_the_driver_is_killed(home: Path, tmp_path: Path) -> None:
    """What was done stays, nothing of it is done again, and no process is left."""
    fleet = write_fleet(tmp_path, TWO_NETS.replace(', "ethos-u55-128"', ""))
    command = [sys.executable, "-c", "import sys; from ingot.cli import main; sys.exit(main())"]
    command += ["sweep", str(fleet), "-o", str(tmp_path / "out")]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    done = _wait_for_rows(tmp_path / "out", 2)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _wait_until_alone(driver.pid)
    written = {p: p.stat().st_mtime_ns for p in done}
    resumed = ingot.sweep(fleet, tmp_path / "out", processes=2)
    assert resumed.computed in (4 - len(done), 4 - len(done) - 1)  # one may end as it is killed
    assert {p: p.stat().st_mtime_ns for p in done} == written
    assert {r["verdict"] for r in resumed.rows} == {"passed"}


def _wait_for_rows(out: Path, number: int) -> list[Path]:
    for _ in range(1200):
        if len(found := list(out.glob("cells/*/*/*/row.json"))) >= number:
            return found
        time.sleep(0.1)
    raise AssertionError("the sweep makes no rows")


def _wait_until_alone(session: int) -> None:
    """Until no process of the session lives."""
    for _ in range(100):
        if subprocess.run(["pgrep", "-s", str(session)], stdout=subprocess.DEVNULL).returncode:
            return
        time.sleep(0.1)
    raise AssertionError("processes are left")


def test_a_damaged_row_is_named(swept: SweepResult, tmp_path: Path) -> None:
    row = tmp_path / "cells/a/xnnpack/default/row.json"
    row.parent.mkdir(parents=True)
    row.write_text("{")
    with pytest.raises(ingot.InputError, match=r"row\.json"):
        FleetStore(tmp_path).rows()


def test_the_report_of_a_cell_is_there(swept: SweepResult) -> None:
    folder = swept.folder / "cells/mlp/xnnpack/default"
    assert json.loads((folder / "report.json").read_text())["target"] == "xnnpack"
    assert (folder / "report.html").stat().st_size > 10_000


def test_against_a_fleet_that_changed(swept: SweepResult, home: Path, tmp_path: Path, capsys: Any) -> None:
    """All cells are done: nothing is cast, and the exit code is that of the comparison."""
    sweep = ["sweep", str(home / "fleet.toml"), "-o", str(swept.folder), "--quiet", "--against"]
    assert main([*sweep, str(swept.folder)]) == 0
    before = shutil.copytree(swept.folder, tmp_path / "before")
    row = before / "cells/mlp/xnnpack/default/row.json"
    row.write_text(json.dumps({**json.loads(row.read_text()), "bytes": 10}))
    assert main([*sweep, str(before)]) == 1
    assert "worse   mlp · xnnpack · default: bytes 10 ->" in capsys.readouterr().out
    assert main([*sweep, str(tmp_path)]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err
