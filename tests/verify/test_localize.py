"""Localize errors in artefacts that are really wrong: an XNNPACK kernel, a kernel of our own, a plan, a file."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.cli import main
from ingot.core.deadline import OutOfTime
from ingot.plan.plan_data import QuantizationPoint
from ingot.verify.localize import diagnose, observed_values
from ingot.verify.localize.observed_values import evenly_spaced
from tests.support.wrong_kernels import FILE, IMAGES, Net, sharpened, sigmoid_for_tanh


@pytest.fixture(autouse=True)
def wrong_tanh() -> Iterator[None]:
    with sigmoid_for_tanh():
        yield


def cast(middle: Any, **options: Any) -> ingot.Casting:
    """Wrong, and kept: nothing is run elsewhere."""
    net, recipe = Net(middle).eval(), {"recover": False, **options.pop("recipe", {})}
    kept = {"on_mismatch": "keep", "recipe": recipe, **options}
    return ingot.cast(net, IMAGES[0], target="xnnpack", calibration=IMAGES, **kept)


def rows(finding: ingot.Finding) -> dict[str, Any]:
    return {v.name: v for v in finding.values}


def test_a_kernel_that_computes_something_else() -> None:
    casting = cast(torch.tanh)
    finding = ingot.localize(casting, IMAGES)
    assert (finding.kind, finding.value, finding.mismatch) == ("backend", "tanh", "tanh")
    assert "disagrees with the quantized graph on the same inputs: " in finding.verdict
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
    Path("net.py").write_text(FILE.format(middle="torch.tanh"))
    assert main(["localize", "net.py:build", "--target", "xnnpack", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["value"] == "tanh"
    assert {"graph_db", "artefact_db", "steps"} <= found["values"][0].keys()
    Path("fine.py").write_text(FILE.format(middle="torch.relu"))
    assert main(["localize", "fine.py:build", "--target", "xnnpack"]) == 0
    said = capsys.readouterr().out
    assert "nothing is wrong" in said
    assert "conv2d_4" in said  # every value has its row


class SlowRunner:
    """A runner that always takes as long as it may."""

    def __init__(self, real: Any) -> None:
        self.real, self.timeouts = real, list[float]()

    def run(self, pte: bytes, batches: Any, *, timeout: float, **_: Any) -> Any:
        self.timeouts.append(timeout)
        time.sleep(timeout * len(batches))
        raise ingot.ArtefactError("the run timed out")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def with_seconds(casting: ingot.Casting, seconds: float, **changes: Any) -> ingot.Casting:
    kept = casting.needed_evidence
    recipe = dataclasses.replace(kept.recipe, localize_seconds=seconds)
    return dataclasses.replace(casting, evidence=dataclasses.replace(kept, recipe=recipe, **changes))


def test_the_time_limit_holds_within_a_run() -> None:
    casting = cast(torch.tanh)
    runner = SlowRunner(casting.needed_evidence.target.runner)
    target = dataclasses.replace(casting.needed_evidence.target, runner=runner)
    start = time.monotonic()
    finding = ingot.localize(with_seconds(casting, 1.0, target=target), IMAGES)
    assert time.monotonic() - start < 3
    assert finding.kind == "unfinished"
    assert runner.timeouts
    assert sum(runner.timeouts) <= 1.0
    assert "localize_seconds = 1: no intermediate value was read by then" in finding.verdict


def test_no_lowering_is_started_that_does_not_fit() -> None:
    casting = cast(torch.tanh)
    slow = dataclasses.replace(casting, timings={**casting.timings, "lower": 1e6})
    finding = ingot.localize(with_seconds(slow, 60.0), IMAGES)
    assert (finding.kind, finding.lowerings) == ("unfinished", 0)
    assert finding.culprit == finding.verdict
    assert finding.largest_sqnr_drop, "the graph was compared all the same"


def test_a_search_that_runs_out_of_time_says_between_which_values_the_error_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    casting = cast(torch.tanh)
    monkeypatch.setattr(diagnose, "most_divergent_op", _out_of_time)
    finding = ingot.localize(casting, IMAGES)
    assert finding.kind == "unfinished"
    assert re.search(r"\w+ \(wrong_kernels.py:\d+\) still agrees with the graph, \w+ \(", finding.verdict)


def _out_of_time(_: Any) -> Any:
    raise OutOfTime


def test_the_first_batch_is_enough_where_it_shows_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    casting, sizes = cast(torch.tanh), list[int]()
    real = observed_values.run_with_intermediates

    def counted(evidence: Any, plan: Any, names: Any, batches: Any) -> Any:
        sizes.append(len(batches))
        return real(evidence, plan, names, batches)

    monkeypatch.setattr(observed_values, "run_with_intermediates", counted)
    assert ingot.localize(casting, IMAGES).value == "tanh"
    assert set(sizes) == {1}
