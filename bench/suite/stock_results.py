"""Stock's results of the suite, kept in the repository: they depend on the version of ExecuTorch, not on Ingot.

One file per suite and target in `stock_results/`: the version, and the result of each test. With another version
installed the files are not used, and stock is run.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "stock_results"

Row = dict[str, Any]


def kept_rows(suite: str, target: str) -> list[Row]:
    """Rows of the installed version, as a run would give them."""
    file = _file(suite, target)
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("executorch") != version("executorch"):
        return []
    return [{"flow": "stock", "target": target, "id": i, "result": result} for i, result in kept["results"].items()]


def keep_rows(suite: str, target: str, rows: list[Row]) -> None:
    results = {r["id"]: r["result"] for r in sorted(rows, key=lambda r: r["id"]) if r["flow"] == "stock"}
    FOLDER.mkdir(exist_ok=True)
    _file(suite, target).write_text(
        json.dumps({"executorch": version("executorch"), "results": results}, indent=0) + "\n"
    )


def _file(suite: str, target: str) -> Path:
    return FOLDER / f"{suite}-{target}.json"
