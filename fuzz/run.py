"""`make fuzz N=10000`: random programs through `ingot.cast` for every target, each judged; findings are minimised.

Outcomes are JSON lines in fuzz/results/fuzz.jsonl. A second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.outcome import FINDINGS
from fuzz.pool import run_all
from tools.source_state import source_state, states_of

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    asked = _arguments()
    file = RESULTS / asked.name
    RESULTS.mkdir(exist_ok=True)
    if asked.fresh:
        file.unlink(missing_ok=True)
    known = {(o["seed"], o["asked"]) for o in read_outcomes(file)}
    requests = ({"seed": s, "target": asked.target} for s in range(asked.first, asked.first + asked.n))
    _run(file, (r for r in requests if (r["seed"], r["target"]) not in known), asked)
    wanted = range(asked.first, asked.first + asked.n)
    outcomes = [o for o in read_outcomes(file) if o["seed"] in wanted and o["asked"] == asked.target]
    print(table(outcomes))
    return 1 if any(o["kind"] in FINDINGS for o in outcomes) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=1000, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--target", help="only this target; else all are drawn")
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--seconds", type=float, default=120.0, help="after which a program counts as hanging")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; call again to go on")
    parser.add_argument("--fresh", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--name", default="fuzz.jsonl", help="the file in fuzz/results/")
    return parser.parse_args()


def _run(file: Path, requests: Iterator[dict[str, Any]], asked: argparse.Namespace) -> None:
    start, counts = time.monotonic(), Counter[str]()
    limited = _until(requests, start + 60 * asked.minutes)
    with file.open("a") as out:
        for request, answer in run_all(limited, asked.workers, asked.seconds):
            out.write(json.dumps({**answer, "asked": request["target"], "commit": source_state()}) + "\n")
            out.flush()
            counts[answer["kind"]] += 1
            _progress(answer, counts, time.monotonic() - start)


def _until(requests: Iterator[dict[str, Any]], end: float) -> Iterator[dict[str, Any]]:
    for request in requests:
        if time.monotonic() > end:
            return
        yield request


def _progress(answer: dict[str, Any], counts: Counter[str], seconds: float) -> None:
    if answer["kind"] in FINDINGS:
        print(f"seed {answer['seed']} {answer['target']} {answer['kind']}: {answer['reason']}", file=sys.stderr)
    if counts.total() % 25 == 0:
        shown = ", ".join(f"{k} {n}" for k, n in counts.most_common())
        print(f"{counts.total()} programs, {seconds / counts.total():.2f} s each: {shown}", file=sys.stderr)


def read_outcomes(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def table(outcomes: list[dict[str, Any]]) -> str:
    """Kinds by target, then the reasons of refusals and findings."""
    targets = sorted({o["target"] for o in outcomes})
    kinds = Counter((o["kind"], o["target"]) for o in outcomes)
    rows = [["outcome", *targets, "all"]]
    for kind in sorted({k for k, _ in kinds}):
        each = [kinds[kind, t] for t in targets]
        rows.append([kind, *map(str, each), str(sum(each))])
    rows.append(["total", *(str(sum(o["target"] == t for o in outcomes)) for t in targets), str(len(outcomes))])
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
    return "\n".join([states_of(outcomes), *lines, "", *_reasons(outcomes), "", *_times(outcomes)])


def _reasons(outcomes: list[dict[str, Any]]) -> Iterator[str]:
    found = Counter((o["kind"], o["reason"]) for o in outcomes if o["kind"] not in ("ok", "invalid"))
    for (kind, reason), count in found.most_common():
        example = next(o for o in outcomes if (o["kind"], o["reason"]) == (kind, reason))
        yield f"{count:5} {kind}: {reason} (seed {example['seed']}, {example['target']})"


def _times(outcomes: list[dict[str, Any]]) -> Iterator[str]:
    timed = [o for o in outcomes if o.get("seconds")]
    for step in dict.fromkeys(k for o in timed for k in o["seconds"]):
        each = [o["seconds"][step] for o in timed if step in o["seconds"]]
        yield f"{step:10} {sum(each) / len(each):6.2f} s on average over {len(each)} programs"


if __name__ == "__main__":
    sys.exit(main())
