"""A Ray cluster of two nodes on this machine gives the rows of the local engine; a node that dies costs nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.fleet.ray_engine import able_nodes
from ingot.fleet.spec import Resources
from ingot.fleet.sweep import SweepResult
from tests.fleet.fleet_files import FAILURES, ONE_CELL, TIMES, TWO_NETS, by_cell, write_fleet

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


def test_what_sweeps_wrote_is_not_sent_to_nodes(cluster: Any, home: Path) -> None:
    """Folders of sweeps inside that of the fleet may have gigabytes; Ray refuses to send so much."""
    fleet = write_fleet(home / "large", ONE_CELL)
    for name in ("out", "earlier"):
        (home / "large" / name).mkdir()
        (home / "large" / name / "fleet.json").write_text("{}")
        with (home / "large" / name / "weights.bin").open("wb") as f:
            f.truncate(1 << 30)
    assert [r["verdict"] for r in ingot.sweep(fleet, home / "large/out", ray=cluster.address).rows] == ["passed"]


def test_no_node_has_the_board(cluster: Any, home: Path) -> None:
    """Ray would wait for such a node for ever."""
    fleet = write_fleet(home / "board", ONE_CELL + "[resources.xnnpack]\ncustom = { arm_board = 1 }\n")
    [row] = ingot.sweep(fleet, home / "board/out", ray=cluster.address).rows
    assert row["verdict"] == "lost"
    assert "no node of the cluster has 1 cores, 1 arm_board" in row["error"]["text"]


def test_which_nodes_can_run_a_cell() -> None:
    head, small, large = {"CPU": 0.0}, {"CPU": 4.0, "arm_board": 1.0}, {"CPU": 64.0, "memory": float(8 << 30)}
    nodes = [head, small, large]
    assert able_nodes(nodes, Resources()) == [small, large]
    assert able_nodes(nodes, Resources(custom={"arm_board": 1.0})) == [small]
    assert able_nodes(nodes, Resources(cpus=8.0, memory_gb=8.0)) == [large]
    assert able_nodes(nodes, Resources(cpus=65.0)) == []


def test_failures_are_rows(cluster: Any, home: Path) -> None:
    swept = ingot.sweep(write_fleet(home / "failures", FAILURES), home / "failures/out", ray=cluster.address)
    verdicts = {m: row["verdict"] for (m, _, r), row in by_cell(swept.rows).items() if r == "default"}
    assert verdicts == {
        "mlp": "passed", "broken": "refused", "no_such_data": "refused", "crashes": "crashed", "hangs": "timed out",
    }  # fmt: skip


def test_shards_are_recorded_on_nodes(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 shards on two nodes give the statistics, and so the plan, of one process; a missing one is told."""
    monkeypatch.chdir(tmp_path)
    for i in range(8):
        np.save(f"s{i}.npy", np.random.default_rng(i).standard_normal((4, 3, 32, 32)).astype(np.float32) * (1 + i % 3))
    shards = [f"s{i}.npy" for i in range(8)]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    program = ingot.capture(net, (torch.zeros(1, 3, 32, 32),))
    here, there = ingot.record_shards(program, shards), ingot.record_shards(program, shards, ray=cluster.address)
    assert there.to_json() == here.to_json()
    assert ingot.plan(program, there, "xnnpack").to_json() == ingot.plan(program, here, "xnnpack").to_json()
    with pytest.raises(ingot.InputError, match=r"shard 1 failed[\s\S]*gone\.npy"):
        ingot.record_shards(program, ["s0.npy", "gone.npy"], ray=cluster.address)


def test_no_cluster(home: Path) -> None:
    """Told in seconds, with either form of an address."""
    fleet, began = write_fleet(home / "none", TWO_NETS), time.monotonic()
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(ingot.TargetError, match="no Ray cluster"):
            ingot.sweep(fleet, home / "none/out", ray=address)
    assert time.monotonic() - began < 20
