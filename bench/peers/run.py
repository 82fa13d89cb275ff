"""`python -m bench.peers.run [NET …] [--threads N] [--rounds N]`: a row for each net and peer, and a table.

A net that has a row is not measured again; delete bench/results/peers/NET to do so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import nets
from bench.peers.environments import ABSENT, PEERS, ROOT, Peer, environment, prepare
from bench.peers.serving import batches

RESULTS = ROOT / "bench" / "results" / "peers"
Row = dict[str, Any]
COLUMNS = (
    "net",
    "peer",
    "median_ms",
    "low_ms",
    "high_ms",
    "ratio",
    "load_s",
    "resident_mb",
    "file_mb",
    "sqnr_db",
    "cosine",
)


def main() -> None:
    options = _options()
    missing = {p.name: why for p in PEERS if (why := prepare(p)) is not None}
    rows = [row for net in options.nets for row in _rows(net, options, missing)]
    print(_table(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(nets.NAMES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


def _rows(net: str, options: argparse.Namespace, missing: dict[str, str]) -> list[Row]:
    folder, threads = RESULTS / net, options.threads
    kept = folder / "rows.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rows = _measure(net, folder, threads, options.rounds, missing)
        kept.write_text(json.dumps(rows, indent=1))
    return json.loads(kept.read_text())  # type: ignore[no-any-return]


def _measure(net: str, folder: Path, threads: int, rounds: int, missing: dict[str, str]) -> list[Row]:
    problem = _run([sys.executable, "-m", "bench.peers.exchange", net, str(folder)], threads)[1]
    rows: dict[str, Row] = {p.name: {"net": net, "peer": p.name, "threads": threads} for p in PEERS}
    for peer in PEERS:
        if problem and not (folder / "entry.pt").exists():
            rows[peer.name]["error"] = problem
        elif peer.name in missing:
            rows[peer.name]["error"] = missing[peer.name]
        else:
            made, why = _run(peer.command("make", str(folder)), threads)
            rows[peer.name] |= {"error": why} if why else {"file_mb": made["bytes"] / 1e6, "make_s": made["seconds"]}
    _time(folder, threads, rounds, rows)
    absent = [{"net": net, "peer": name, "error": "not installed"} for name in ABSENT]
    return [*_with_ratios(rows), *absent]


def _run(command: list[str], threads: int) -> tuple[Row, str | None]:
    """Its last line as JSON, or why it failed."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(threads))
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        return {}, (done.stderr.strip().splitlines() or ["failed"])[-1][:300]
    return (json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}), None


class _Server:
    """A peer that is loaded and waits."""

    def __init__(self, peer: Peer, folder: Path, threads: int):
        pipe, self.times, self.resident = subprocess.PIPE, list[float](), 0
        self.process = subprocess.Popen(
            peer.command("serve", str(folder), str(threads)), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL,
            text=True, cwd=ROOT, env=environment(threads),
        )  # fmt: skip
        self.loaded = self._answer()

    def ask(self, what: str) -> Row:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Row:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)  # type: ignore[no-any-return]
        raise RuntimeError("it ended")


def _time(folder: Path, threads: int, rounds: int, rows: dict[str, Row]) -> None:
    """All peers are loaded, then take turns, in one order and in the other."""
    servers: dict[str, _Server] = {}
    for peer in (p for p in PEERS if "error" not in rows[p.name]):
        try:
            servers[peer.name] = _Server(peer, folder, threads)
            servers[peer.name].ask(f"outputs-{peer.name}")
        except (RuntimeError, OSError) as e:
            rows[peer.name]["error"] = f"does not run: {e}"
            servers.pop(peer.name, None)
    for turn in range(rounds):
        for name in list(servers) if turn % 2 == 0 else list(reversed(servers)):
            answer = servers[name].ask("time")
            servers[name].times.append(answer["seconds"])
            servers[name].resident = max(servers[name].resident, answer["resident_bytes"])
    for name, server in servers.items():
        server.process.kill()
        server.process.wait()
        rows[name] |= _facts(server) | _quality(folder, name)


def _facts(server: _Server) -> Row:
    low, middle, high = (1e3 * t for t in statistics.quantiles(server.times, n=4))
    memory = {"resident_mb": server.resident / 1e6, "loaded_mb": server.loaded["loaded_bytes"] / 1e6}
    return {"median_ms": middle, "low_ms": low, "high_ms": high, "load_s": server.loaded["load_s"], **memory}


def _quality(folder: Path, name: str) -> Row:
    """The lowest SQNR of an output over all unseen batches, and the smallest cosine of one."""
    pairs = zip(batches(folder, "expected"), batches(folder, f"outputs-{name}"), strict=True)
    both = [
        (e.astype(np.float64).ravel(), g.astype(np.float64).ravel())
        for a, b in pairs
        for e, g in zip(a, b, strict=True)
    ]
    sqnr = [10 * np.log10((e @ e + 1e-300) / ((e - g) @ (e - g) + 1e-300)) for e, g in both]
    cosine = [float(e @ g / (np.linalg.norm(e) * np.linalg.norm(g) + 1e-300)) for e, g in both]
    return {"sqnr_db": float(np.mean(sqnr)), "lowest_sqnr_db": float(min(sqnr)), "cosine": min(cosine)}


def _with_ratios(rows: dict[str, Row]) -> list[Row]:
    """Of each median to Ingot's."""
    ours = rows["ingot"].get("median_ms")
    return [{**r, "ratio": ours / r["median_ms"]} if ours and "median_ms" in r else r for r in rows.values()]


def _table(rows: list[Row]) -> str:
    cells = [list(COLUMNS), *([_cell(r, c) for c in COLUMNS] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(["`ratio`: Ingot's median over this one's; below 1 Ingot is faster", *lines])


def _cell(row: Row, column: str) -> str:
    value = row.get(column, row.get("error", "")[:40] if column == "median_ms" else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
