"""A fleet locally, on a Ray cluster of two nodes, and with processes killed; rows are compared, cells are counted.

    python -m bench.fleet.run [--models 12] [--targets 4] [--recipes 3] [--keep DIR]

Needs Ray. Prints a line for each run: cells, cells computed, seconds, rows that differ from those of the local run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.fleet import nets

TARGETS = ("xnnpack", "ethos-u55-128", "vgf", "vulkan")
RECIPES = {"default": "{}", "minmax": '{ range = "minmax" }', "uncorrected": "{ correct_biases = false }"}
TIMES = ("seconds", "timings", "export_seconds", "peak_memory_bytes", "measured_seconds", "estimated_seconds")
INGOT = [sys.executable, "-c", "import sys; from ingot.cli import main; sys.exit(main())"]
Rows = dict[str, dict[str, Any]]


@dataclass
class Run:
    """One sweep, as a process of its own."""

    home: Path
    name: str
    ray: str | None = None

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--ray", self.ray] if self.ray else []
        command = [*INGOT, "sweep", "fleet.toml", "-o", self.name, "--json", *options]
        return subprocess.Popen(command, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def written(self) -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in (self.home / self.name).glob("cells/*/*/*/row.json")}

    def rows(self) -> Rows:
        """Without what is a time."""
        read = {str(p.parent.relative_to(self.home / self.name)): json.loads(p.read_bytes()) for p in self.written()}
        return {cell: {k: v for k, v in row.items() if k not in TIMES} for cell, row in read.items()}

    def seconds_of_cells(self) -> float:
        return sum(json.loads(p.read_bytes()).get("seconds", 0.0) for p in self.written())


def write_fleet(home: Path, models: int, targets: int, recipes: int) -> None:
    shutil.copy(nets.__file__, home / "nets.py")
    named = "".join(f'[models.{n.__name__}]\nmodel = "nets.py:{n.__name__}"\n' for n in nets.NETS[:models])
    recipe = "".join(f"{k} = {v}\n" for k, v in list(RECIPES.items())[:recipes])
    (home / "fleet.toml").write_text(f"targets = {json.dumps(TARGETS[:targets])}\n{named}[recipes]\n{recipe}")


def swept(run: Run, disturb: Callable[[Run, int], None] | None = None) -> dict[str, Any]:
    """A sweep to its end. What disturbs it is called after the third row; a driver that was killed is started again."""
    began, driver, done = time.monotonic(), run.start(), dict[Path, int]()
    if disturb is not None:
        _wait_for_rows(run, driver, 3)
        disturb(run, driver.pid)
        done = run.written()
    said, _ = driver.communicate()
    if driver.returncode == -signal.SIGKILL:
        done, driver = run.written(), run.start()
        said, _ = driver.communicate()
    kept = all(run.written().get(p) == t for p, t in done.items())
    facts = json.loads(said)
    return {**facts, "wall": time.monotonic() - began, "before": len(done), "kept": kept}


def _wait_for_rows(run: Run, driver: subprocess.Popen[bytes], number: int) -> None:
    while len(run.written()) < number and driver.poll() is None:
        time.sleep(0.05)


def kill_worker(run: Run, driver: int) -> None:
    """A worker of this cluster that has a task: Ray names the process after it."""
    while True:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "_run_on_node" in " ".join(process.cmdline()):
                    return process.kill()
        time.sleep(0.02)


def kill_driver(run: Run, driver: int) -> None:
    psutil.Process(driver).kill()


class TwoNodes:
    """A Ray cluster on this machine. A node that was killed is replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.second = self.cluster.add_node(num_cpus=1)

    def kill_node(self, run: Run, driver: int) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.cluster.add_node(num_cpus=1)


def report(name: str, run: Run, facts: dict[str, Any], wanted: Rows) -> bool:
    rows = run.rows()
    other = sum(rows.get(cell) != row for cell, row in wanted.items())
    over = (facts["wall"] - run.seconds_of_cells()) if not facts["before"] else None
    print(
        f"{name:16} cells {facts['cells']:4}  computed {facts['computed']:4}  done before {facts['before']:3}"
        f"  kept {facts['kept']!s:5}  rows that differ {other:3}  wall {facts['wall']:7.1f} s"
        f"  in cells {run.seconds_of_cells():7.1f} s" + (f"  rest {over:6.1f} s" if over is not None else ""),
        flush=True,
    )
    return not other and bool(facts["kept"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, most in (("models", len(nets.NETS)), ("targets", len(TARGETS)), ("recipes", len(RECIPES))):
        parser.add_argument(f"--{name}", type=int, default=most)
    parser.add_argument("--keep", type=Path, help="the folder of the sweeps (default: a temporary one)")
    options = parser.parse_args()
    home = options.keep or Path(tempfile.mkdtemp(prefix="ingot-bench-fleet-"))
    home.mkdir(parents=True, exist_ok=True)
    write_fleet(home, options.models, options.targets, options.recipes)
    local = Run(home, "local")
    facts = swept(local)
    wanted = local.rows()
    good = [report("local", local, facts, wanted)]
    two = TwoNodes()
    runs: dict[str, Callable[[Run, int], None] | None] = {
        "ray": None, "worker killed": kill_worker, "node killed": two.kill_node, "driver killed": kill_driver,
    }  # fmt: skip
    for name, disturb in runs.items():
        run = Run(home, name.replace(" ", "-"), two.cluster.address)
        good.append(report(name, run, swept(run, disturb), wanted))
    two.cluster.shutdown()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
