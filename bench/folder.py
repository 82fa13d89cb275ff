"""The stock flow's casting of one's own model as a folder that `ingot compare` reads.

python -m bench.folder net.py:build net.py:batches stock/
ingot compare stock/ out/
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from bench import stock
from bench.entry import Entry
from ingot.data.calibration import load_calibration
from ingot.data.models import load_model
from ingot.plan.plan_data import Plan
from ingot.result.details.versions import versions_of
from ingot.result.report.text import json_ready
from ingot.runtime.worker import run_pte
from ingot.targets.registry import find_target
from ingot.verify.check import flat_tensors
from ingot.verify.metrics import measure


def main(model: str, data: str, folder: Path) -> None:
    found = load_model(model)
    batches = list(load_calibration(data, found.example_inputs))
    entry = Entry(found.model, tuple(found.example_inputs or batches[0]), batches, "")
    pte, facts = stock.cast(entry)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pte").write_bytes(pte)
    (folder / "plan.json").write_text(Plan("xnnpack", "stock", ()).to_json())
    (folder / "report.json").write_text(json.dumps(json_ready(_facts(entry, bytes(pte), facts))))


def _facts(entry: Entry, pte: bytes, facts: dict[str, Any]) -> dict[str, Any]:
    """In the words of a report; what the stock flow does not say is empty."""
    delegates = [{"backend": "XnnpackBackend"}] * facts["delegates"]
    left = [op for op, n in facts["host_kinds"].items() for _ in range(n)]
    hosts = [{"op": op, "source": "?", "reason": "the stock flow gives none", "hint": ""} for op in left]
    return {
        "target": "xnnpack, stock", "bytes": len(pte), "delegates": delegates, "host_ops": hosts,
        "check": _check(entry, pte), "performance": [], "timings": facts["timings"], "nodes": [], "timing": None,
        "versions": versions_of(find_target("xnnpack")), "hosted": {}, "io": {}, "notes": [], "weights": [],
        "rewrites": [],
        "recorded": None, "sha256": "", "sizes": [],
    }  # fmt: skip


def _check(entry: Entry, pte: bytes) -> dict[str, Any]:
    """Executed as Ingot's are, and compared with the float model."""
    batches = entry.calibration[:8]
    made = [flat_tensors(o) for o in run_pte(pte, batches)]
    with torch.no_grad():
        wanted = [flat_tensors(entry.model(*b)) for b in batches]
    each = [measure([w[i] for w in wanted], [m[i] for m in made]) for i in range(len(wanted[0]))]
    outputs = [{"name": f"output {i}", "sqnr_db": c.sqnr_db} for i, c in enumerate(each)]
    where = "ExecuTorch runtime, XNNPACK delegate, in a child process"
    return {"executed_on": where, "passed": not any(c.defect for c in each), "culprit": None, "outputs": outputs}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
