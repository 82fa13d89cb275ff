"""Rows as runs of MLflow: `ingot sweep --mlflow URI`. A row that is there already is not logged again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ingot.errors import InputError, TargetError, first_sentence
from ingot.fleet.rows import PASSED, Row

EXPERIMENT = "ingot fleet"
KEY = "ingot.row"
PARAMETERS = ("model", "target", "recipe", "verdict", "judged_on", "executed_on")
METRICS = (
    "delegates", "host_ops", "bytes", "sqnr_db", "cycles", "estimated_seconds", "measured_seconds", "export_seconds",
    "seconds", "peak_memory_bytes",
)  # fmt: skip


def log_rows(rows: Sequence[Row], uri: str) -> int:
    """How many were new in the experiment `ingot fleet` at `uri`."""
    client = _client()
    try:
        store = client(uri)
        experiment = store.get_experiment_by_name(EXPERIMENT)
        number = store.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        known = set(_logged(store, number))
        new = [r for r in rows if row_identity(r) not in known]
        for row in new:
            _log(store, number, row)
    except Exception as e:
        hint = "is the server running? The rows are in the folder; run the sweep again to log them"
        raise TargetError(f"cannot log to MLflow at '{uri}'", why=first_sentence(e), hint=hint) from e
    return len(new)


def row_identity(row: Row) -> str:
    """The hash of what the cell was made from; of a model that could not be captured, what was said."""
    if row.get("key"):
        return str(row["key"])
    said = [row.get(k) for k in ("model", "target", "recipe", "verdict", "error")]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _client() -> Any:
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as e:
        raise InputError("MLflow is not installed", why=str(e), hint="pip install 'ingot[mlflow]'") from e
    return MlflowClient


def _logged(store: Any, number: str) -> Iterator[str]:
    """The rows that the experiment has, page by page."""
    token = None
    while True:
        page = store.search_runs([number], max_results=1000, page_token=token)
        yield from (run.data.tags[KEY] for run in page if KEY in run.data.tags)
        token = page.token
        if not token:
            return


def _log(store: Any, number: str, row: Row) -> None:
    from mlflow.entities import Metric, Param

    now, versions = int(1000 * time.time()), row.get("versions") or {}
    tags = {KEY: row_identity(row), **{f"version.{k}": str(v) for k, v in versions.items()}, **_error(row)}
    name = f"{row['model']} · {row['target']} · {row['recipe']}"
    run = store.create_run(number, run_name=name, tags=tags).info.run_id
    metrics = [Metric(k, float(row[k]), now, 0) for k in METRICS if isinstance(row.get(k), (int, float))]
    goal = [Metric(f"goal.{k}", float(v), now, 0) for k, v in (row.get("goal") or {}).items()]
    parameters = [Param(k, str(row[k])) for k in PARAMETERS if row.get(k) is not None]
    store.log_batch(run, metrics=metrics + goal, params=parameters)
    store.set_terminated(run, "FINISHED" if row["verdict"] == PASSED else "FAILED")


def _error(row: Row) -> dict[str, str]:
    return {"error": row["error"]["text"][:2000]} if "error" in row else {}
