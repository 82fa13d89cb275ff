"""`make damage N=2000`: each kind of file that Ingot reads, damaged N times: an IngotError or a result, nothing else.

A worker process reads the damaged files; its death, a hang and gigabytes of memory are findings like any other error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import damaged
from fuzz.pool import run_all

RESULTS = Path(__file__).parent / "results"
MOST_MEGABYTES = 1500  # that reading one damaged file of kilobytes may add to the peak
RENEWED_AFTER = 5_000  # files: a worker takes as long to start as to read some hundred
UNDAMAGED = -1  # the seed that damages nothing
FOUND = ("crashed", "died", "hang", "memory")


def main() -> int:
    from fuzz.samples import KINDS, make_samples, missing_kinds

    parser = argparse.ArgumentParser(prog="python -m fuzz.damage", description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=200, help="how many of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--workers", type=int, default=2, choices=(1, 2))
    parser.add_argument("--minutes", type=float, default=1e9)
    asked = parser.parse_args()
    for kind, install in missing_kinds().items():
        print(f"left out: {kind}; {install}")
    with tempfile.TemporaryDirectory(prefix="ingot-damage-") as name:
        make_samples(Path(name))
        _check_samples(Path(name), asked.kinds)
        outcomes = list(_outcomes(Path(name), asked))
    _write(outcomes)
    print(damage_table(outcomes))
    return 1 if any(o["kind"] in FOUND for o in outcomes) else 0


def _outcomes(root: Path, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + 60 * asked.minutes
    seeds = range(asked.first, asked.first + asked.n)
    requests = ({"damage": k, "seed": s, "root": str(root), "target": k} for s in seeds for k in asked.kinds)
    answers = run_all(_while_time(requests, end), asked.workers, 60.0, renewed_after=RENEWED_AFTER)
    for done, (_, answer) in enumerate(answers, 1):
        if answer["kind"] in FOUND:
            print(f"seed {answer['seed']} {answer['target']} {answer['kind']}: {answer['reason']}", file=sys.stderr)
        if done % 500 == 0:
            print(f"{done} files", file=sys.stderr)
        yield answer


def _check_samples(root: Path, kinds: list[str]) -> None:
    """Undamaged, each is read: a sample that is refused anyway would test nothing."""
    requests = ({"damage": k, "seed": UNDAMAGED, "root": str(root), "target": k} for k in kinds)
    for _, answer in run_all(requests, 1, 120.0):
        if answer["kind"] != "read":
            raise SystemExit(f"the sample of {answer['target']} is not read: {answer['kind']} {answer['text']}")


def _while_time(requests: Iterator[dict[str, Any]], end: float) -> Iterator[dict[str, Any]]:
    for request in requests:
        if time.monotonic() > end:
            return
        yield request


def _write(outcomes: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "damage.jsonl").open("w") as out:
        out.writelines(json.dumps(o) + "\n" for o in outcomes)


def damage_table(outcomes: list[dict[str, Any]]) -> str:
    counts = Counter((o["target"], o["kind"]) for o in outcomes)
    kinds = sorted({k for _, k in counts})
    rows = [["file", *kinds, "ms each"]]
    rows += [
        [t, *(str(counts[t, k]) for k in kinds), _mean_ms(outcomes, t)] for t in dict.fromkeys(t for t, _ in counts)
    ]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
    found = Counter((o["target"], o["kind"], o["reason"]) for o in outcomes if o["kind"] in FOUND)
    return "\n".join([*lines, "", *(f"{n:5} {' · '.join(key)}" for key, n in found.most_common())])


def _mean_ms(outcomes: list[dict[str, Any]], target: str) -> str:
    seconds = [o["seconds"] for o in outcomes if o["target"] == target and "seconds" in o]
    return f"{1000 * sum(seconds) / len(seconds):.0f}" if seconds else ""


# ---- in the worker ----


def read_damaged(request: dict[str, Any]) -> dict[str, Any]:
    """Read one damaged file; what came of it."""
    from fuzz.samples import KINDS

    kind, root = KINDS[request["damage"]], Path(request["root"])
    facts = {"seed": request["seed"], "target": request["damage"]}
    start, before = time.perf_counter(), _peak_megabytes()
    with tempfile.TemporaryDirectory(prefix="ingot-damaged-") as name:
        folder = Path(name) / "it"
        shutil.copytree(root / kind.folder, folder, copy_function=_linked(root / kind.folder, kind.file))
        others = _all_samples(root)
        random = Random(f"{request['damage']} {request['seed']}")
        if request["seed"] != UNDAMAGED:
            (folder / kind.file).write_bytes(damaged(random, (folder / kind.file).read_bytes(), others))
        if kind.signed:
            _sign(folder, kind.file)
        answer = {**facts, **_outcome(kind.read, folder)}
    answer |= {"seconds": time.perf_counter() - start}
    grown = _peak_megabytes() - before
    return {**answer, "kind": "memory", "reason": f"{grown} MB"} if grown > MOST_MEGABYTES else answer


def _linked(source: Path, name: str) -> Callable[[str, str], Any]:
    """Files that stay as they are need no copy; the damaged one and the digests are written."""
    written = {str(source / name), str(source / "casting.json")}
    return lambda old, new: shutil.copyfile(old, new) if old in written else os.link(old, new)


@cache
def _all_samples(root: Path) -> list[bytes]:
    from fuzz.samples import KINDS

    return [(root / k.folder / k.file).read_bytes() for k in KINDS.values()]


def _peak_megabytes() -> int:
    """Since the last call: the peak of the whole life of the process would hide every smaller one after it."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def _sign(folder: Path, name: str) -> None:
    from ingot.core.digests import RECORDS, digests_of

    records = json.loads((folder / RECORDS).read_text())
    records["digests"] |= digests_of({name: (folder / name).read_bytes()})
    (folder / RECORDS).write_text(json.dumps(records))


def _outcome(read: Any, folder: Path) -> dict[str, Any]:
    import ingot
    from fuzz.judge import reason_of

    try:
        read(folder)
    except ingot.IngotError as e:
        return {"kind": "refused", "reason": type(e).__name__, "text": str(e)[:500]}
    except BaseException as e:  # also a SystemExit that a library raises
        return {"kind": "crashed", "reason": reason_of(e), "text": "".join(traceback.format_exception(e))[-3000:]}
    return {"kind": "read", "reason": "", "text": ""}


if __name__ == "__main__":
    sys.exit(main())
