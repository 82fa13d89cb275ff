"""A Ray cluster of two nodes on this machine gives the rows of the local engine; a node that dies costs nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.fleet.sweep import SweepResult
from tests.fleet.fleet_files import FAILURES, TIMES, TWO_NETS, by_cell, write_fleet

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def local(home: Path) -> SweepResult:
    return ingot.sweep(write_fleet(home, TWO_NETS), home / "local", processes=2)


def without_times(result: SweepResult) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {cell: {k: v for k, v in row.items() if k not in TIMES} for cell, row in by_cell(result.rows).items()}


def test_the_rows_are_those_of_the_local_engine(cluster: Any, local: SweepResult, home: Path) -> None:
    remote = ingot.sweep(home / "fleet.toml", home / "ray", ray=cluster.address)
    assert remote.computed == 8
    assert without_times(remote) == without_times(local)
    assert ingot.sweep(home / "fleet.toml", home / "ray", ray=cluster.address).computed == 0
    assert ingot.sweep(home / "fleet.toml", home / "ray").computed == 0  # another engine, the same cells


def test_a_node_dies(cluster: Any, local: SweepResult, home: Path) -> None:
    third = cluster.add_node(num_cpus=1)
    out = home / "died"
    killed: list[float] = []

    def kill() -> None:
        while not list(out.glob("cells/*/*/*/row.json")):
            time.sleep(0.1)
        cluster.remove_node(third, allow_graceful=False)
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    swept = ingot.sweep(home / "fleet.toml", out, ray=cluster.address)
    killer.join()
    assert killed
    assert without_times(swept) == without_times(local)


def test_failures_are_rows(cluster: Any, home: Path) -> None:
    swept = ingot.sweep(write_fleet(home / "failures", FAILURES), home / "failures/out", ray=cluster.address)
    verdicts = {m: row["verdict"] for (m, _, r), row in by_cell(swept.rows).items() if r == "default"}
    assert verdicts == {
        "mlp": "passed", "broken": "refused", "no_such_data": "refused", "crashes": "crashed", "hangs": "timed out",
    }  # fmt: skip


def test_no_cluster(home: Path) -> None:
    with pytest.raises(ingot.TargetError, match="no Ray cluster"):
        ingot.sweep(write_fleet(home / "none", TWO_NETS), home / "none/out", ray="127.0.0.1:1")
