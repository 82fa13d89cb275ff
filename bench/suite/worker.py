"""Runs cases of the suite: ids come in by stdin, one row each goes out as a JSON line on file descriptor 3.

python -m bench.suite.worker FLOW TARGET SUITE, with FLOW ingot or stock. A native crash ends it; `run` starts another.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import traceback
import unittest
import warnings
import zlib
from typing import Any

import torch

from bench.suite import judge, stock
from bench.suite.cases import Case, cases


def row_of(case: Case, flow: str, target: str) -> dict[str, Any]:
    """The result of a case: the worst of its models."""
    torch.manual_seed(zlib.crc32(case.id.encode()))
    random.seed(0)
    runner = judge.IngotRunner(target) if flow == "ingot" else stock.StockRunner(target, case.id)
    started = time.perf_counter()
    try:
        case.run(runner)
    except unittest.SkipTest as e:
        runner.rows.append(_row(flow, "invalid", f"skipped by the suite: {e}"))
    except Exception as e:  # the test's own code
        runner.rows.append(_row(flow, "invalid", f"{type(e).__name__}: {e}", traceback.format_exc()[-2000:]))
    order = judge.RESULTS if flow == "ingot" else stock.RESULTS
    worst = max(
        runner.rows, key=lambda r: order.index(r["result"]), default=_row(flow, "invalid", "hands over no model")
    )
    seconds = round(time.perf_counter() - started, 1)
    return {"id": case.id, "flow": flow, "target": target, **worst, "models": runner.rows, "seconds": seconds}


def _row(flow: str, result: str, why: str, trace: str = "") -> dict[str, Any]:
    return {"result": result if flow == "ingot" else "SKIPPED", "why": why[:300], **({"trace": trace} if trace else {})}


def main(flow: str, target: str, suite: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    known = {case.id: case for case in cases(suite)}
    with os.fdopen(3, "w") as out:
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(row_of(known[line.strip()], flow, target)), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
