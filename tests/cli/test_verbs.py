"""Verbs of the shell that work on files: record, lower, plans of several targets, folders of casts; refused options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.cli import main
from ingot.cli.parser import EXIT_CODES
from ingot.cli.tables import table

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval(), (torch.zeros(2, 8),)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", input=rng.normal(size=(12, 8)).astype(np.float32))
    np.savez(folder / "unseen.npz", input=rng.normal(size=(20, 8)).astype(np.float32))
    return folder


def model(home: Path, option: str = "--calibrate") -> list[str]:
    return [f"{home / 'net.py'}:build", option, str(home / "data.npz")]


@pytest.fixture(scope="module")
def cast(home: Path) -> Path:
    out = home / "out"
    more = ["--validation", str(home / "unseen.npz"), "--target", "xnnpack", "-o", str(out), "--quiet"]
    assert main(["cast", *model(home), *more]) == 0
    return out


def test_validation_data_is_verified_on_whole(cast: Path) -> None:
    check = ingot.Casting.load(cast).check
    assert check is not None
    assert check.batches == 10  # of the 20 unseen samples, two at a time; calibration has six


def test_record(home: Path, capsys: Any) -> None:
    file = home / "ranges.json"
    assert main(["record", *model(home), "-o", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 6
    assert ingot.Ranges.load(file).batches == 6


def test_a_plan_is_lowered_as_it_is_edited(home: Path, cast: Path, tmp_path: Path) -> None:
    data = json.loads((cast / "plan.json").read_text())
    edited = next(d for d in data["decisions"] if d["qparams"] and d["point"] == {"node": "relu", "operand": None})
    for d in data["decisions"]:
        if d["qparams"] == edited["qparams"]:
            d["qparams"] = {**d["qparams"], "scale": 2 * d["qparams"]["scale"]}
    file, out = tmp_path / "edited.json", tmp_path / "out"
    file.write_text(json.dumps(data))
    assert main(["lower", str(file), *model(home), "-o", str(out), "--quiet"]) == 0
    made = ingot.Casting.load(out).plan.qparams("relu")
    was = ingot.Casting.load(cast).plan.qparams("relu")
    assert made is not None
    assert was is not None
    assert made.scale == pytest.approx(2 * was.scale)  # type: ignore[operator]


def test_plans_of_two_targets_are_read_one_by_one(home: Path, capsys: Any) -> None:
    file = home / "plans.json"
    targets = ["--target", "xnnpack", "--target", "ethos-u55-128"]
    code = main(["plan", *model(home), *targets, "-o", str(file), "--quiet"])
    if code == 2:
        pytest.skip(capsys.readouterr().err)
    assert main(["why", str(file), "relu", "--target", "ethos-u55-128"]) == 0
    assert "relu" in capsys.readouterr().out
    assert main(["why", str(file), "relu"]) == 2
    assert "--target xnnpack or ethos-u55-128" in capsys.readouterr().err
    assert main(["why", str(file), "relu", "--target", "ethos-u55-64"]) == 2
    assert main(["diff", str(file), *targets]) == 0
    assert main(["diff", str(file)]) == 2
    assert main(["diff", str(file), str(file), "--target", "xnnpack"]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_folder_is_verified_and_localized_without_the_model(home: Path, cast: Path, capsys: Any) -> None:
    unseen = str(home / "unseen.npz")
    assert main(["verify", str(cast), "--data", unseen, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 10
    assert main(["localize", str(cast), "--calibrate", unseen]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["verify", str(cast)]) == 2
    assert "no data to verify on" in capsys.readouterr().err


def test_a_slim_folder_needs_the_model(home: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "slim"
    assert main(["cast", *model(home), "--target", "xnnpack", "-o", str(out), "--slim", "--quiet"]) == 0
    assert main(["verify", str(out), "--data", str(home / "data.npz")]) == 4
    assert "saved with evidence" in capsys.readouterr().err
    assert main(["verify", str(out), *model(home, "--data"), "--quiet"]) == 0


def test_dynamic_shapes(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shapes = ["--dynamic-shapes", "input.0=batch:2:16"]
    assert main(["cast", *model(home), *shapes, "--target", "xnnpack", "-o", str(out), "--quiet"]) == 0
    assert ingot.Casting.load(out).io.inputs[0].shape[1:] == (8,)
    assert not isinstance(ingot.Casting.load(out).io.inputs[0].shape[0], int)


REFUSED = {
    "--context": (["--context", "64"], "--context would be ignored"),
    "--text": (["--text", "a.txt"], "--text would be ignored"),
    "--mean": (["--mean", "0.5"], "mean and std are for a folder of images"),
    "--scenario": (["--scenario"], "--scenario is for vgf"),
    "a dimension": (["--dynamic-shapes", "input=3"], "no dynamic dimension"),
    "an input": (["--dynamic-shapes", "inpt.0=n"], "did you mean 'input'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_would_be_ignored_is_refused(home: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    options, said = REFUSED[name]
    assert main(["cast", *model(home), "--target", "xnnpack", "-o", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--calibrate", "d.npz"], ["--recipe", "r.toml"], ["--validation", "d.npz"], ["--scenario"], ["--mean", "0.5"]],
)
def test_a_language_model_has_no_use_for_them(tmp_path: Path, options: list[str], capsys: Any) -> None:
    assert main(["cast", "--hf", str(tmp_path), "--target", "xnnpack", "-o", str(tmp_path / "out"), *options]) == 2
    assert f"{options[0]} would be ignored" in capsys.readouterr().err


def test_a_budget_is_for_reduce(home: Path, capsys: Any) -> None:
    assert main(["localize", *model(home), "--target", "xnnpack", "--budget", "5"]) == 2
    assert "--budget would be ignored" in capsys.readouterr().err


def test_schema(capsys: Any) -> None:
    assert main(["schema"]) == 0
    assert "noise_vs_latency" in json.loads(capsys.readouterr().out)["properties"]
    assert main(["schema", "fleet"]) == 0
    assert "models" in json.loads(capsys.readouterr().out)["properties"]


def test_every_exit_code_is_told() -> None:
    """In --help and in the README."""
    readme = re.search(r"Exit codes: ([^`]*)", (Path(__file__).parents[2] / "README.md").read_text())
    assert readme is not None
    for code in ("0", "1", "2", "3", "4", "5", "130"):
        assert re.search(rf"\b{code} ", EXIT_CODES)
        assert re.search(rf"\b{code} ", readme[1])


@pytest.mark.smoke
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_is_no_wider_than_the_terminal(width: int) -> None:
    rows = [("a_value_with_a_long_name_" * 3, "aten.convolution.default", "41.5 dB"), ("x", "add", "exact")]
    lines = table(("value", "op", ">SQNR"), rows, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "exact" in lines[-1]
