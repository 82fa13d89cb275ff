"""Rows in MLflow's file store: figures, errors, and no row twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.fleet.mlflow_log import log_rows

CELL = {"model": "net", "target": "xnnpack", "recipe": "default"}
PASSED: dict[str, Any] = {
    **CELL, "key": "a" * 64, "verdict": "passed", "sqnr_db": 38.5, "bytes": 1000, "delegates": 1, "host_ops": 0,
    "cycles": None, "goal": {"top1": 0.75}, "versions": {"torch": "2.13.0"},
}  # fmt: skip
REFUSED: dict[str, Any] = {**CELL, "recipe": "gone", "key": "", "verdict": "refused", "error": {"text": "no such file"}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("mlflow", reason="pip install 'ingot[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def runs(uri: str) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("ingot fleet")
    return {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}


def test_rows_are_runs(store: str) -> None:
    assert log_rows([PASSED, REFUSED], store) == 2
    found = runs(store)
    passed, refused = found["net · xnnpack · default"], found["net · xnnpack · gone"]
    assert passed.data.metrics == {
        "sqnr_db": 38.5, "bytes": 1000.0, "delegates": 1.0, "host_ops": 0.0, "goal.top1": 0.75,
    }  # fmt: skip
    assert passed.data.params == {**CELL, "verdict": "passed"}
    assert passed.data.tags["version.torch"] == "2.13.0"
    assert (passed.info.status, refused.info.status) == ("FINISHED", "FAILED")
    assert refused.data.tags["error"] == "no such file"


def test_a_row_is_logged_once(store: str) -> None:
    """A sweep that is resumed logs what is new: another recipe, another error, other versions (so another key)."""
    log_rows([PASSED, REFUSED], store)
    assert log_rows([PASSED, REFUSED], store) == 0
    assert log_rows([{**PASSED, "key": "b" * 64}, {**REFUSED, "error": {"text": "other"}}], store) == 2


def test_a_store_that_is_not_there(store: str) -> None:
    with pytest.raises(ingot.TargetError, match="cannot log to MLflow at 'nothing://here'"):
        log_rows([PASSED], "nothing://here")


def test_without_mlflow_the_command_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(ingot.InputError, match=r"MLflow is not installed[\s\S]*ingot\[mlflow\]"):
        log_rows([PASSED], "file:///nowhere")
