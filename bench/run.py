"""Stock ExecuTorch against Ingot, model by model: `python -m bench.run --models quick --json out.json`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.table import summary, table
from bench.worker import FLOWS
from bench.zoo import QUICK, TRAINED, ZOO

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "executorch", "torchao", "torchvision", "transformers", "ethos-u-vela", "tosa-tools", "ingot")


def step(
    name: str,
    model: str,
    folder: Path,
    argument: str = "",
    limit: float = 1800,
    worker: Sequence[str] = ("bench.worker",),
) -> dict[str, Any]:
    """One step in a child process: its result, or how it died. `worker` is a module and what it wants to know first."""
    label = f"{name} {argument}" if argument in FLOWS else name
    out = folder / f"{label.replace(' ', '-')}.json"
    log = out.with_suffix(".log")
    command = [sys.executable, "-m", *worker, name, model, str(folder), *([argument] if argument else [])]
    started = time.perf_counter()
    place: dict[str, Any] = {
        "cwd": folder,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
    }  # executorch drops debug files where it runs
    with log.open("wb") as sink:
        code = _wait(subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True, **place), limit)
    say(f"  {label:12} {time.perf_counter() - started:6.1f} s")
    if code is None:
        return {"error": f"{name}: still running after {limit:.0f} s"}
    if out.exists():
        return json.loads(out.read_text())
    return {"error": f"{name}: {_death(code)}{_last_line(log)}"}


def _wait(child: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code, or None after `limit` seconds; then the child and what it started are ended, as they are on ^C."""
    try:
        return child.wait(limit)
    except BaseException as e:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if isinstance(e, subprocess.TimeoutExpired):
            return None
        raise


def measure(model: str, folder: Path, options: argparse.Namespace, stock_first: bool) -> dict[str, Any]:
    """One row: both casts in turn, each artefact run and compared, then both timed together."""
    flows = ["ingot"] if options.skip_stock else list(FLOWS if stock_first else reversed(FLOWS))
    row: dict[str, Any] = {"model": model, "order": flows, **step("build", model, folder)}
    if "skipped" in row or "error" in row:
        return row
    for flow in flows:
        row[flow] = step("cast", model, folder, flow, options.timeout)
        if "error" not in row[flow]:
            row[flow].update(step("check", model, folder, flow, options.timeout))
    if any("sqnr_db" in row[flow] for flow in flows):
        _add_latency(row, step("time", model, folder, str(options.rounds), options.timeout))
    return row


def _add_latency(row: dict[str, Any], times: dict[str, Any]) -> None:
    row.update({key: times[key] for key in ("ratio_low", "ratio_high", "load") if key in times})
    for flow in FLOWS:
        if flow in times:
            row[flow].update(times[flow])
        elif "error" in times and "sqnr_db" in row.get(flow, {}):
            row[flow]["error"] = f"timing: {times['error']}"


def _death(code: int) -> str:
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"exit code {code}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1][:160]})" if lines else ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": f"{platform.machine()} {platform.system()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def chosen(names: str) -> list[str]:
    groups = {"all": list(ZOO), "quick": list(QUICK), "trained": list(TRAINED)}
    wanted = groups.get(names) or [n.strip() for n in names.split(",")]
    unknown = [n for n in wanted if n not in ZOO]
    if unknown:
        raise SystemExit(f"unknown model: {', '.join(unknown)}. Known: {', '.join(ZOO)}")
    return wanted


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--models", default="all", help="names with commas, 'quick', 'trained' or 'all' (default)")
    parser.add_argument("--json", type=Path, help="write everything measured here, after every model")
    parser.add_argument("--skip-stock", action="store_true", help="only Ingot")
    parser.add_argument("--rounds", type=int, default=30, help="timed runs of each artefact (default 30)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds before a step is given up (default 1800)")
    parser.add_argument("--keep", type=Path, help="leave models, .pte files and logs in this folder")
    return parser.parse_args()


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ingot-bench-") as temporary:
        for i, model in enumerate(chosen(options.models)):
            say(f"{model}")
            folder = (options.keep or Path(temporary)).resolve() / model
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob("*.json"):
                stale.unlink()
            rows.append(measure(model, folder, options, stock_first=i % 2 == 0))
            if options.json:
                report = {"versions": versions(), "summary": summary(rows), "rows": rows}
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
