"""Localize errors in artefacts that are really wrong: an XNNPACK kernel, a kernel of our own, a plan, a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.plan.plan_data import QuantizationPoint
from ingot.verify.localize.observed_values import evenly_spaced
from tests.support.wrong_kernels import FILE, IMAGES, Net, sharpened, stretched


def cast(middle: Any, **options: Any) -> ingot.Casting:
    net = Net(middle).eval()
    return ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, on_mismatch="keep", **options)


def rows(finding: ingot.Finding) -> dict[str, Any]:
    return {v.name: v for v in finding.values}


def test_a_kernel_that_computes_something_else() -> None:
    casting = cast(stretched)
    finding = ingot.localize(casting, IMAGES)
    assert (finding.kind, finding.value, finding.mismatch) == ("backend", "upsample_bilinear2d", "upsample_bilinear2d")
    assert "disagrees with the quantized graph on the same inputs: SQNR" in finding.verdict
    assert "wrong_kernels.py" in finding.culprit
    assert casting.check.culprit == finding.culprit
    seen = {n: v.artefact_db for n, v in rows(finding).items() if v.artefact_db is not None}
    right = [n for n, db in seen.items() if db > 60]
    assert {"relu_2"} <= set(right)
    assert all(n < "relu_3" or n == "relu" for n in right), "values after the wrong op are wrong"
    assert rows(finding)["conv2d"].stored == "fused"


def test_integers_are_compared_in_steps(wrong_backend: str) -> None:
    finding = ingot.localize(cast(sharpened, recipe={"extra_backends": [wrong_backend]}), IMAGES)
    assert (finding.kind, finding.value) == ("backend", "sharpen")
    assert "on the same inputs: largest error" in finding.verdict
    assert rows(finding)["sharpen"].stored == "int8"
    assert rows(finding)["sharpen"].steps > 5
    assert rows(finding)["relu_2"].steps <= 1


def test_a_plan_that_is_too_coarse() -> None:
    program = ingot.capture(Net(nn.Identity()).eval(), IMAGES[0])
    plan = ingot.plan(program, ingot.record(program, IMAGES), "xnnpack")
    spoilt = tuple(
        dataclasses.replace(d, qparams=dataclasses.replace(d.qparams, scale=d.qparams.scale * 150))
        if d.point == QuantizationPoint("relu_1") or d.reads == "relu_1"
        else d
        for d in plan
    )
    finding = ingot.localize(ingot.lower(program, dataclasses.replace(plan, decisions=spoilt)), IMAGES)
    assert (finding.kind, finding.value, finding.mismatch) == ("rounding", "relu_1", None)
    assert "too coarse at relu_1 (wrong_kernels.py" in finding.verdict
    assert 'name = "relu_1", precision = "float"' in finding.verdict


def test_a_file_of_another_model() -> None:
    casting, other = cast(nn.Identity()), cast(torch.neg)
    check = ingot.verify(dataclasses.replace(casting, pte=other.pte), IMAGES)
    assert not check.passed
    finding = ingot.localize(dataclasses.replace(casting, pte=other.pte), IMAGES)
    assert (finding.kind, finding.value) == ("file", None)


def test_nothing_is_wrong() -> None:
    finding = ingot.localize(cast(nn.Identity()), IMAGES)
    assert (finding.kind, finding.culprit, finding.mismatch) == ("none", None, None)
    assert finding.lowerings == 1
    assert not finding.notes, "with intermediate values returned it must still be one delegate"


def test_values_are_evenly_spaced_over_the_graph() -> None:
    names = [str(i) for i in range(100)]
    assert evenly_spaced(names, 4) == ["24", "49", "74", "99"]
    assert evenly_spaced(names[:3], 4) == ["0", "1", "2"]


def test_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE.format(middle="stretched"))
    assert main(["localize", "net.py:build", "--target", "xnnpack", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["value"] == "upsample_bilinear2d"
    assert {"graph_db", "artefact_db", "steps"} <= found["values"][0].keys()
    Path("fine.py").write_text(FILE.format(middle="torch.relu"))
    assert main(["localize", "fine.py:build", "--target", "xnnpack"]) == 0
    said = capsys.readouterr().out
    assert "nothing is wrong" in said
    assert "conv2d_4" in said  # every value has its row
