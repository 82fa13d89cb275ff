"""A small fleet on disk: two nets that pass, one that cannot be built, one without its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NETS = """
import os, torch
from torch import nn

def batches(shape, n=8):
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(shape, generator=g),) for _ in range(n)]

def convolution():
    torch.manual_seed(0)
    m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    b = batches((1, 3, 16, 16))
    return m.eval(), b[0], b

def mlp():
    torch.manual_seed(0)
    b = batches((4, 16), 20)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), b[0], b

def cannot_be_built():
    raise RuntimeError("no weights here")

def crashes():
    os.abort()

def hangs():
    import time
    time.sleep(600)
"""

TWO_NETS = """
targets = ["xnnpack", "ethos-u55-128"]
[models.convolution]
model = "nets.py:convolution"
[models.mlp]
model = "nets.py:mlp"
[recipes]
default = {}
uncorrected = { correct_biases = false }
"""

ONE_CELL = """
targets = ["xnnpack"]
[models.mlp]
model = "nets.py:mlp"
[recipes]
default = {}
"""

FAILURES = """
targets = ["xnnpack"]
timeout = 25
[models.mlp]
model = "nets.py:mlp"
[models.broken]
model = "nets.py:cannot_be_built"
[models.no_such_data]
model = "nets.py:mlp"
calibrate = "nowhere.npz"
[models.crashes]
model = "nets.py:crashes"
[models.hangs]
model = "nets.py:hangs"
[recipes]
default = {}
gone = "gone.toml"
"""


def write_fleet(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nets.py").write_text(NETS)
    (folder / "fleet.toml").write_text(text)
    return folder / "fleet.toml"


TIMES = ("seconds", "timings", "export_seconds", "peak_memory_bytes", "measured_seconds", "estimated_seconds")


def by_cell(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(r["model"], r["target"], r["recipe"]): r for r in rows}
