"""bench.folder: the stock flow's program in a folder that `ingot compare` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import folder
from ingot.cli import main

NET = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()


def build():
    return net, (torch.randn(1, 3, 8, 8),)


def batches():
    return [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
"""


def test_the_stock_flow_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program of the stock flow is executed, its host ops are counted, and both castings are in one table."""
    (tmp_path / "net.py").write_text(NET)
    model, data = (f"{tmp_path / 'net.py'}:{name}" for name in ("build", "batches"))
    folder.main(model, data, tmp_path / "stock")
    assert main(["cast", model, "--target", "xnnpack", "--calibrate", data, "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "stock"), str(tmp_path / "out"), "--json"]) == 0
    rows = {r["what"]: r for r in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["target"]["first"] == "xnnpack, stock"
    assert rows["delegates"]["first"] >= rows["delegates"]["second"] == 1
    stock, ours = rows["SQNR of output 0"]["first"], rows["SQNR of output 0"]["second"]
    assert min(stock, ours) > 20
