"""Write a casting as a scenario folder that runs without Ingot; run such a folder and compare its outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.core.artefact import TensorInfo
from ingot.core.partial_files import partial_folder
from ingot.core.torch_modes import in_neutral_modes
from ingot.errors import ArtefactError, InputError
from ingot.quantize.integer_io import quantize_inputs
from ingot.verify.check import run_quantized
from ingot.verify.metrics import measure

MIN_FAITHFUL_DB = 25.0  # the default of the recipe

if TYPE_CHECKING:
    from ingot.result.casting import Casting


@dataclass(frozen=True)
class ScenarioOutputCheck:
    """One output of a scenario compared with the expected one, over all batches."""

    name: str
    steps: float  # the largest difference, in units of the scale; in real numbers where it is float
    sqnr_db: float
    passed: bool


@in_neutral_modes
def write_scenario_folder(casting: Casting, folder: str | Path, batches: Iterable[Any] | None = None) -> Path:
    """Write scenario.json, its graphs, shaders, inputs, expected outputs (all paths relative); and io.json."""
    evidence = casting.needed_evidence
    if not evidence.target.runner.writes_scenarios:
        why = "a scenario consists of .vgf files and shaders"
        raise ArtefactError(f"no scenario for target {casting.target}", why=why, hint="cast with target='vgf'")
    chosen = [evidence.program.flatten(b) for b in batches] if batches else [evidence.program.example_inputs]
    given = [quantize_inputs(b, casting.io.inputs) for b in chosen]
    expected, place = run_quantized(evidence, chosen), Path(folder)
    try:
        with _staged(place) as temporary:
            inputs = [_in_memory_order(b, casting.io.inputs) for b in given]
            evidence.target.runner.write_scenario(temporary, casting.pte, inputs)
            _write_expected(temporary, expected, casting)
    except OSError as e:
        raise ArtefactError(f"could not write {place}", why=str(e), hint="choose another folder") from e
    return place / "scenario.json"


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A temporary folder; its files are moved to `folder` when all are written."""
    folder.mkdir(parents=True, exist_ok=True)
    with partial_folder(folder, folder.parent) as temporary:
        yield temporary
        for file in temporary.iterdir():
            os.replace(file, folder / file.name)


def _in_memory_order(tensors: Sequence[torch.Tensor], infos: Sequence[TensorInfo]) -> list[np.ndarray]:
    """Arrays with the axes in memory order: NHWC for channels-last."""
    return [_array(t, info) for t, info in zip(tensors, infos, strict=True)]


def _array(t: torch.Tensor, info: TensorInfo) -> np.ndarray:
    permuted = t.permute(0, 2, 3, 1) if info.layout == "channels_last" else t
    return permuted.detach().contiguous().numpy()


def _write_expected(folder: Path, outputs: Sequence[Sequence[torch.Tensor]], casting: Casting) -> None:
    for b, tensors in enumerate(outputs):
        for i, array in enumerate(_in_memory_order(quantize_inputs(tensors, casting.io.outputs), casting.io.outputs)):
            np.save(folder / f"expected_{b}_{i}.npy", array)
    (folder / "io.json").write_text(casting.io.to_json() + "\n")


# ---- running ----


def run_scenario_folder(
    folder: str | Path, seconds: float = 300.0, keep: str | Path | None = None
) -> list[ScenarioOutputCheck]:
    """Execute the scenario on this machine and compare its outputs; they are saved in the folder `keep`."""
    from ingot.targets.arm.scenario_runner import execute_scenario

    place = Path(folder)
    if not (place / "scenario.json").is_file():
        raise InputError(f"no scenario.json in {place}", hint="casting.scenario(folder) writes one")
    made = execute_scenario(place / "scenario.json", seconds)
    if keep is not None:
        _save(Path(keep), made)
    return [_check_output(place, name, i, made) for i, name in enumerate(_names(place / "io.json"))]


def _names(file: Path) -> list[str]:
    try:
        return [str(info["name"]) for info in json.loads(file.read_text())["outputs"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"cannot read {file}", why=str(e), hint="casting.scenario(folder) writes it") from e


def _save(folder: Path, made: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in made.items():
        np.save(folder / name, array)


def _check_output(folder: Path, name: str, i: int, made: dict[str, np.ndarray]) -> ScenarioOutputCheck:
    names = sorted(n for n in made if n.startswith("output_") and n.endswith(f"_{i}.npy"))
    if not names:
        why, hint = f"the scenario-runner left no output_*_{i}.npy", "write the scenario again with casting.scenario"
        raise ArtefactError(f"the scenario gave nothing for output '{name}'", why=why, hint=hint)
    pairs = [(_load(folder / n.replace("output", "expected", 1)), made[n]) for n in names]
    wanted, got = (
        [torch.from_numpy(a.reshape(p[0].shape).astype(np.float32)) for p in pairs for a in p[k : k + 1]]
        for k in (0, 1)
    )
    steps = max((float((w - g).abs().max()) for w, g in zip(wanted, got, strict=True)), default=0.0)
    db = measure(wanted, got).sqnr_db
    return ScenarioOutputCheck(name, steps, db, db >= MIN_FAITHFUL_DB)


def _load(file: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file)
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {file}", why=str(e), hint="casting.scenario(folder) writes it") from e
    return array
