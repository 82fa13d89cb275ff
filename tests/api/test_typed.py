"""The public API is typed: a user's script that uses every verb passes `mypy --strict`, and runs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

import ingot

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "typed" / "every_verb.py"
VERBS = ("cast", "capture", "record", "plan", "lower", "train", "verify", "localize", "reduce", "targets")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_the_script_is_well_typed(tmp_path: Path) -> None:
    """Not by the settings of this project: by those of a user."""
    pytest.importorskip("mypy", reason="pip install 'ingot[dev]'")
    options = ("--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path), "--follow-imports", "silent")
    done = run("-m", "mypy", *options, str(SCRIPT))
    assert done.returncode == 0, done.stdout


def test_a_wrong_use_is_found(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="pip install 'ingot[dev]'")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "import torch, ingot\n"
        "made: ingot.Casting = ingot.cast(torch.nn.ReLU(), (torch.ones(1),), target=['xnnpack'])\n"
        "ingot.cast(torch.nn.ReLU(), (torch.ones(1),), target='xnnpack', on_mismatch='warn')\n"
    )
    done = run("-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path), str(wrong))
    assert done.returncode == 1
    assert "Incompatible types in assignment" in done.stdout
    assert "No overload variant" in done.stdout


def test_the_script_runs() -> None:
    done = run("-W", "ignore", str(SCRIPT))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_no_any_in_public_signatures(verb: str) -> None:
    hints = typing.get_type_hints(getattr(ingot, verb))
    assert set(hints) == {*inspect.signature(getattr(ingot, verb)).parameters, "return"}
    assert not [name for name, hint in hints.items() if _has_any(hint)]


def _has_any(hint: Any) -> bool:
    return hint is Any or any(_has_any(a) for a in typing.get_args(hint) if not isinstance(a, str))


def test_whatever_the_api_returns_can_be_imported_from_ingot() -> None:
    """Public classes that appear in signatures and fields, followed from the verbs."""
    seen: set[type] = set()
    for verb in VERBS:
        for hint in typing.get_type_hints(getattr(ingot, verb)).values():
            _collect(hint, seen)
    ours = {k.__name__ for k in seen if k.__module__.startswith("ingot.")}
    missing = {n for n in ours - set(ingot.__all__) if n not in {"Reporter"}}  # a protocol: any progress bar will do
    assert not missing


def _collect(hint: Any, seen: set[type]) -> None:
    for part in typing.get_args(hint):
        _collect(part, seen)
    if isinstance(hint, type) and hint not in seen:
        seen.add(hint)
