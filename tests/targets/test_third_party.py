"""A target from a package of its own: installed by pip, found by its entry point, planned, lowered, executed, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ingot-tinynpu"

SCRIPT = """
import json
import sys

import torch
from torch import nn

import ingot


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(48, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.first(x.flatten(1)))
        x = torch.relu(x + self.inner(x))
        return self.last(x + x)


class WithSigmoid(Residual):
    def forward(self, x):
        return self.last(torch.sigmoid(self.first(x.flatten(1))))


def cast(net, **how):
    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 4, 4),) for _ in range(8)]
    return ingot.cast(net().eval(), batches[0], target="tinynpu", calibration=batches, **how)


def described(casting):
    return {
        "delegates": [[d.backend, list(d.kinds)] for d in casting.delegates],
        "host_ops": {h.op: h.reason for h in casting.host_ops},
        "passed": casting.check.passed,
        "executed_on": casting.check.executed_on,
        "faithful_db": casting.check.outputs[0].faithful_db,
        "sqnr_db": casting.check.outputs[0].sqnr_db,
    }


def refused(**options):
    try:
        cast(Residual, recipe={"options": options, "recover": False})
    except ingot.IngotError as e:
        return [type(e).__name__, str(e)]


targets = {t.name: t.installed for t in ingot.targets()}
made = {
    "targets": targets,
    "imported": [m for m in sys.modules if m.startswith("executorch")],
    "whole": described(cast(Residual)),
    "split": described(cast(WithSigmoid)),
    "narrow": refused(accumulator_bits=16),
    "recovered": described(cast(Residual, recipe={"options": {"accumulator_bits": 16}})),
    "unknown": refused(accumulator_bits=8),
}
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh Python process makes with the installed package. The environment of the tests stays as it is."""
    folder = tmp_path_factory.mktemp("third-party")
    source = shutil.copytree(EXAMPLE, folder / "source")  # a build leaves files in the source folder
    how = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "installed")]
    subprocess.run([sys.executable, "-m", "pip", "install", *how, str(source)], check=True)
    (folder / "script.py").write_text(SCRIPT)  # a file, since Ingot names its lines
    path = os.pathsep.join([str(ROOT), str(folder / "installed")])
    command = [sys.executable, "-W", "ignore", str(folder / "script.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_is_listed(made: dict[str, Any]) -> None:
    assert made["targets"]["tinynpu"]
    assert made["targets"]["xnnpack"]
    assert made["imported"] == []  # a list of targets needs no backend


def test_a_net_is_one_delegate_and_executed_by_its_own_executor(made: dict[str, Any]) -> None:
    whole = made["whole"]
    ops = ["view_copy", "linear", "relu", "linear", "add", "relu", "add", "linear"]
    assert [[b, [k.split(".")[0] for k in kinds]] for b, kinds in whole["delegates"]] == [["TinyNpuBackend", ops]]
    assert whole["host_ops"] == {}
    assert whole["passed"]
    assert whole["executed_on"] == "TinyNPU simulator in numpy, integer arithmetic"
    assert whole["faithful_db"] > 100  # every integer is that of the quantized graph
    assert whole["sqnr_db"] > 30


def test_an_op_that_it_does_not_take_is_on_the_host_with_its_reason(made: dict[str, Any]) -> None:
    split = made["split"]
    assert [backend for backend, _ in split["delegates"]] == ["TinyNpuBackend", "TinyNpuBackend"]
    assert split["host_ops"]["sigmoid.default"] == "TinyNPU has no kernel for sigmoid"
    assert split["passed"]


def test_wrong_arithmetic_is_refused(made: dict[str, Any]) -> None:
    """An accumulator of 16 bits wraps around: the artefact runs, and its numbers are wrong."""
    kind, message = made["narrow"]
    assert kind == "MismatchError"
    assert "linear" in message
    assert "script.py" in message


def test_an_op_with_wrong_arithmetic_runs_on_the_host(made: dict[str, Any]) -> None:
    assert made["recovered"]["passed"]
    assert made["recovered"]["faithful_db"] > 100
    assert any("disagrees" in reason for reason in made["recovered"]["host_ops"].values()), made["recovered"]


def test_an_option_it_does_not_have_is_refused(made: dict[str, Any]) -> None:
    kind, message = made["unknown"]
    assert kind == "InputError"
    assert "accumulator_bits: 16 or 32" in message
