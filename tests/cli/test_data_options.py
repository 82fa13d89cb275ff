"""Data in the shell: validation, weights without calibration, thresholds of a saved cast, loaders that reuse memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.cli import main

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval(), (torch.zeros(2, 32),)

def picture():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), (torch.zeros(1, 3, 8, 8),)

def batches(seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 32, generator=g) for _ in range(6)]

def fresh():
    yield from ((x,) for x in batches(0))

def reusing():
    buffer = torch.empty(2, 32)
    for x in batches(0):
        yield (buffer.copy_(x),)
    buffer.fill_(torch.nan)

def built():
    return (*build(), reusing())  # a generator object: it can be read once
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data_options")
    (folder / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    np.savez(folder / "many.npz", input=rng.normal(size=(40, 32)).astype(np.float32))
    np.savez(folder / "few.npz", input=rng.normal(size=(8, 32)).astype(np.float32))
    np.save(folder / "pictures.npy", rng.normal(size=(6, 3, 8, 8)).astype(np.float32))
    return folder


def cast(home: Path, out: Path, *more: str, model: str = "build") -> int:
    return main(["cast", f"{home / 'net.py'}:{model}", "--target", "xnnpack", "-o", str(out), "--quiet", *more])


def judged(folder: Path) -> tuple[str, int]:
    check = ingot.Casting.load(folder).check
    assert check is not None
    return check.judged_on, check.batches


def test_which_data_a_cast_was_judged_on(home: Path, tmp_path: Path, capsys: Any) -> None:
    many, few = (["--calibrate", str(home / f)] for f in ("many.npz", "few.npz"))
    assert cast(home, tmp_path / "a", *many) == 0
    assert judged(tmp_path / "a") == ("held-out", 5)
    assert cast(home, tmp_path / "b", *few) == 0
    assert judged(tmp_path / "b") == ("calibration", 4)
    assert cast(home, tmp_path / "c", *few, "--validation", str(home / "many.npz")) == 0
    assert judged(tmp_path / "c") == ("validation", 20)
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "c"), "--data", many[1], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["judged_on"], told["batches"]) == ("given", 20)
    lower = ["lower", str(tmp_path / "c"), f"{home / 'net.py'}:build", *few, "-o", str(tmp_path / "d"), "--quiet"]
    assert main(lower) == 0
    assert judged(tmp_path / "d") == ("calibration", 4)
    assert main([*lower, "--validation", str(home / "many.npz")]) == 0
    assert judged(tmp_path / "d") == ("validation", 20)


@pytest.mark.parametrize("weights", ["8da4w", "8da8w"])
def test_weights_need_no_calibration_data(home: Path, tmp_path: Path, weights: str) -> None:
    assert cast(home, tmp_path / "out", "--weights", weights) == 0
    assert judged(tmp_path / "out") == ("example", 1)


def test_weights_take_validation_data(home: Path, tmp_path: Path, capsys: Any) -> None:
    more = ["--weights", "8da4w", "--validation", str(home / "few.npz")]
    assert cast(home, tmp_path / "out", *more) == 0
    assert judged(tmp_path / "out") == ("validation", 4)
    data = ["--data", str(home / "many.npz")]
    assert main(["verify", str(tmp_path / "out"), *data, "--quiet"]) == 0
    assert main(["verify", str(tmp_path / "out"), f"{home / 'net.py'}:build", *data]) == 2
    assert "verified with its folder alone" in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_a_saved_cast_is_verified_by_its_own_thresholds(home: Path, tmp_path: Path, named: bool, capsys: Any) -> None:
    """Also where the model is named and its plan replayed."""
    (tmp_path / "r.toml").write_text("min_sqnr_db = 15.0\nverify_batches = 2\n")
    data = ["--calibrate", str(home / "few.npz")]
    assert (
        cast(home, tmp_path / "out", *data, "--recipe", str(tmp_path / "r.toml"), "--slim" if named else "--report")
        == 0
    )
    records = tmp_path / "out" / "casting.json"
    kept = json.loads(records.read_text())
    assert kept["recipe"] == {"min_sqnr_db": 15.0, "verify_batches": 2}
    records.write_text(json.dumps({**kept, "recipe": {"min_sqnr_db": 150.0}}))
    model = [f"{home / 'net.py'}:build"] if named else []
    assert main(["verify", str(tmp_path / "out"), *model, "--data", data[1]]) == 3
    assert "threshold 150 dB" in capsys.readouterr().out


def test_a_function_that_reuses_its_memory(home: Path, tmp_path: Path, capsys: Any) -> None:
    """As calibration, as validation, in what build() returns, for localize."""
    made = {}
    for name in ("fresh", "reusing"):
        source = f"{home / 'net.py'}:{name}"
        assert cast(home, tmp_path / name, "--calibrate", source, "--validation", source) == 0
        made[name] = ingot.Casting.load(tmp_path / name)
    assert made["fresh"].pte == made["reusing"].pte
    assert made["fresh"].check == made["reusing"].check
    assert cast(home, tmp_path / "built", model="built") == 0
    assert ingot.Casting.load(tmp_path / "built").pte == made["fresh"].pte
    found = []
    for name in ("fresh", "reusing"):
        data = ["--calibrate", f"{home / 'net.py'}:{name}", "--target", "xnnpack"]
        assert main(["localize", f"{home / 'net.py'}:build", *data, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["values"])
    assert found[0] == found[1]


def test_mean_and_std_are_for_images_of_either_source(home: Path, tmp_path: Path, capsys: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        image.fromarray(np.full((8, 8, 3), 40 * i, dtype=np.uint8)).save(photos / f"{i}.png")
    arrays = ["--calibrate", str(home / "pictures.npy")]
    more = ["--mean", "0.5", "--std", "0.25"]
    keep = ["--on-mismatch", "keep"]
    assert cast(home, tmp_path / "out", *arrays, "--validation", str(photos), *more, *keep, model="picture") in (0, 3)
    assert judged(tmp_path / "out") == ("validation", 3)
    assert cast(home, tmp_path / "no", *arrays, *more, model="picture") == 2
    assert "for a folder of images" in capsys.readouterr().err
