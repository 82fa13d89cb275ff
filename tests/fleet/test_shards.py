"""Statistics of shards merge to those of one pass, in one process, in several and on Ray; memory does not grow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main

SHARDS, BATCHES = 8, 3


class Net(nn.Module):
    """Values of 16 384 elements: their histograms are samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.sigmoid(self.first(x)) * 3)


NET = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), (torch.zeros(2, 8),)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Shards whose ranges differ; the first is not the widest."""
    folder, generator = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    files = [folder / f"shard{i}.npy" for i in range(SHARDS)]
    for i, file in enumerate(files):
        np.save(file, ((1 + i % 5) * generator.standard_normal((BATCHES, 3, 32, 32))).astype(np.float32))
    return files


@pytest.fixture(scope="module")
def program() -> ingot.Program:
    torch.manual_seed(0)
    return ingot.capture(Net().eval(), (torch.zeros(1, 3, 32, 32),))


@pytest.fixture(scope="module")
def one_process(program: ingot.Program, data: list[Path]) -> ingot.Ranges:
    return ingot.record_shards(program, data)


def whole(files: list[Path]) -> Iterator[tuple[torch.Tensor]]:
    for file in files:
        yield from ((torch.from_numpy(x[None]),) for x in np.load(file))


def test_shards_against_one_pass_over_all_batches(
    program: ingot.Program, data: list[Path], one_process: ingot.Ranges
) -> None:
    """All is equal but which 2 048 elements of a large value are in its histogram: as many, within the same range."""
    one = ingot.record(program, whole(data))
    assert (one.batches, one.samples) == (one_process.batches, one_process.samples) == (SHARDS * BATCHES,) * 2
    assert one.sensitivity == one_process.sensitivity
    assert one.notes == one_process.notes
    assert len(one.cached_batches) == len(one_process.cached_batches)
    for a, b in zip(one.cached_batches, one_process.cached_batches, strict=True):
        assert torch.equal(a[0], b[0])
    for name, stats in one.values.items():
        merged = one_process.values[name]
        assert replace(stats, histogram={}) == replace(merged, histogram={}), name
        assert sum(stats.histogram.values()) == pytest.approx(sum(merged.histogram.values()), rel=0.01)


def test_small_values_are_equal_bit_for_bit() -> None:
    """Up to 2 048 elements a batch nothing is sampled; so the plan is the same too."""
    torch.manual_seed(0)
    batches = [(torch.randn(4, 16) * (1 + i % 7),) for i in range(24)]
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    small = ingot.capture(net, batches[0])
    one = ingot.record(small, batches)
    parts = [ingot.record(small, batches[3 * i : 3 * i + 3], shard=i) for i in range(SHARDS)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert merged.to_json() == one.to_json()
    assert ingot.plan(small, merged, "xnnpack").to_json() == ingot.plan(small, one, "xnnpack").to_json()


def test_several_processes_give_what_one_gives(
    program: ingot.Program, data: list[Path], one_process: ingot.Ranges
) -> None:
    seen: list[int] = []
    several = ingot.record_shards(program, data, processes=2, on_shard=seen.append)
    assert seen == list(range(SHARDS))
    assert several.to_json() == one_process.to_json()
    assert ingot.plan(program, several, "xnnpack").to_json() == ingot.plan(program, one_process, "xnnpack").to_json()


def test_recordings_of_equal_weight() -> None:
    """Whichever way recordings with a sensitivity of their own are joined, each counts once."""
    parts = [ingot.Ranges({}, 1, 1, sensitivity={"x": s, "w": (s, 2 * s)}) for s in (1.0, 2.0, 6.0, 7.0)]
    a, b, c, d = parts
    left, right = a.merge(b).merge(c).merge(d), a.merge(b.merge(c.merge(d)))
    assert left.sensitivity == right.sensitivity == {"x": 4.0, "w": (4.0, 8.0)}
    assert left.sensitivity_weight == 4
    loaded = ingot.Ranges.from_json(left.to_json())
    assert loaded.merge(ingot.Ranges({}, 1, 1)).sensitivity == left.sensitivity
    assert loaded.merge(replace(a, sensitivity={"x": 9.0})).sensitivity["x"] == 5.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_the_data() -> None:
    """100 000 samples from a generator."""
    torch.manual_seed(0)
    program = ingot.capture(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), (torch.zeros(10, 8),))
    resident: list[int] = []

    def batches() -> Iterator[tuple[torch.Tensor]]:
        for i in range(10_000):
            if i % 1000 == 500:
                resident.append(resident_bytes())
            yield (torch.randn(10, 8),)

    ranges = ingot.record(program, batches())
    assert ranges.samples == 100_000
    assert ranges.values["linear"].count == 100_000 * 16
    assert max(resident[1:]) - resident[0] < 4 << 20


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    for i in range(3):
        np.save(tmp_path / f"s{i}.npy", np.random.default_rng(i).standard_normal((6, 8)).astype(np.float32) * (i + 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = ["--data", "s0.npy", "s1.npy", "s2.npy", "--quiet"]
    assert main(["record", "net.py:build", *shards, "-o", "one.json"]) == 0
    assert main(["record", "net.py:build", *shards, "--processes", "2", "-o", "two.json"]) == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    found = json.loads(Path("one.json").read_text())
    assert (found["batches"], found["samples"]) == (9, 18)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--calibrate", "s0.npy", "--data", "s1.npy"], "--calibrate would be ignored"),
        (["--calibrate", "s0.npy", "--processes", "2"], "--processes would be ignored"),
        (["--data", "s0.npy", "gone.npy"], "gone.npy"),
        (["--data", "s0.npy", "gone.npy", "--processes", "2"], "gone.npy"),
    ],
)
def test_what_is_refused(net: Path, options: list[str], said: str, capsys: Any) -> None:
    assert main(["record", "net.py:build", *options, "-o", "r.json", "--quiet"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("r.json").exists()


def test_a_program_with_state_is_one_sequence() -> None:
    class Sums(nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    program = ingot.capture(Sums().eval(), (torch.zeros(4),))
    with pytest.raises(ingot.InputError, match=r"cannot be recorded in shards[\s\S]*state"):
        ingot.record_shards(program, ["a.npy", "b.npy"])
