"""A casting as a folder that runs without Ingot; and running such a folder here, compared with what is expected."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ingot.core.artefact import TensorInfo
from ingot.errors import ArtefactError, InputError
from ingot.quantize.io import quantize_inputs
from ingot.result.casting import Casting
from ingot.verify.check import run_quantized
from ingot.verify.metrics import measure

FAITHFUL_DB = 25.0  # as a recipe has it


@dataclass(frozen=True)
class Outcome:
    """How one output of a scenario compares with what was expected of it, over all batches."""

    name: str
    steps: float  # of its scale, the largest difference; of numbers where it is float
    sqnr_db: float
    passed: bool


def write(casting: Casting, folder: str | Path, batches: Iterable[Any] | None = None) -> Path:
    """scenario.json with its graphs, shaders, inputs and expected outputs, all paths relative; io.json for the app."""
    evidence = casting.evidence
    if not evidence.target.runner.writes_scenarios:
        why = "a scenario is made of .vgf files and shaders"
        raise ArtefactError(f"a program for {casting.target} is no scenario", why=why, hint="target='vgf'")
    chosen = [evidence.program.flatten(b) for b in batches] if batches else [evidence.program.example_inputs]
    given = [quantize_inputs(b, casting.io.inputs) for b in chosen]
    expected, place = run_quantized(evidence, chosen), Path(folder)
    try:
        with _aside(place) as temporary:
            evidence.target.runner.write_scenario(temporary, casting.pte, [_lying(b, casting.io.inputs) for b in given])
            _write_expected(temporary, expected, casting)
    except OSError as e:
        raise ArtefactError(f"could not write {place}", why=str(e), hint="choose another folder") from e
    return place / "scenario.json"


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder whose files appear in the one that is meant when all are there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        yield Path(name)
        for file in Path(name).iterdir():
            os.replace(file, folder / file.name)


def _lying(tensors: Sequence[torch.Tensor], infos: Sequence[TensorInfo]) -> list[np.ndarray]:
    """As they lie in memory."""
    return [_array(t, info) for t, info in zip(tensors, infos, strict=True)]


def _array(t: torch.Tensor, info: TensorInfo) -> np.ndarray:
    turned = t.permute(0, 2, 3, 1) if info.layout == "channels_last" else t
    return turned.detach().contiguous().numpy()


def _write_expected(folder: Path, outputs: Sequence[Sequence[torch.Tensor]], casting: Casting) -> None:
    for b, tensors in enumerate(outputs):
        for i, array in enumerate(_lying(quantize_inputs(tensors, casting.io.outputs), casting.io.outputs)):
            np.save(folder / f"expected_{b}_{i}.npy", array)
    (folder / "io.json").write_text(casting.io.to_json() + "\n")


# ---- running ----


def run(folder: str | Path, seconds: float = 300.0, keep: str | Path | None = None) -> list[Outcome]:
    """Execute the scenario on this machine and compare; `keep` gets the outputs."""
    from ingot.targets.arm.scenario_runner import run_scenario

    place = Path(folder)
    if not (place / "scenario.json").is_file():
        raise InputError(f"{place} holds no scenario.json", hint="casting.scenario(folder) writes one")
    made = run_scenario(place / "scenario.json", seconds)
    if keep is not None:
        _keep(Path(keep), made)
    return [_outcome(place, name, i, made) for i, name in enumerate(_names(place / "io.json"))]


def _names(file: Path) -> list[str]:
    try:
        return [str(info["name"]) for info in json.loads(file.read_text())["outputs"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"cannot read {file}", why=str(e), hint="casting.scenario(folder) writes it") from e


def _keep(folder: Path, made: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in made.items():
        np.save(folder / name, array)


def _outcome(folder: Path, name: str, i: int, made: dict[str, np.ndarray]) -> Outcome:
    names = sorted(n for n in made if n.startswith("output_") and n.endswith(f"_{i}.npy"))
    pairs = [(_load(folder / n.replace("output", "expected", 1)), made[n]) for n in names]
    wanted, got = (
        [torch.from_numpy(a.reshape(p[0].shape).astype(np.float32)) for p in pairs for a in p[k : k + 1]]
        for k in (0, 1)
    )
    steps = max((float((w - g).abs().max()) for w, g in zip(wanted, got, strict=True)), default=0.0)
    db = measure(wanted, got).sqnr_db
    return Outcome(name, steps, db, db >= FAITHFUL_DB)


def _load(file: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file)
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {file}", why=str(e), hint="casting.scenario(folder) writes it") from e
    return array
