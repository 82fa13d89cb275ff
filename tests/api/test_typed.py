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


WRONG = """
import torch
import ingot

made: ingot.Casting = ingot.cast(torch.nn.ReLU(), (torch.ones(1),), target=["xnnpack"])
ingot.cast(torch.nn.ReLU(), (torch.ones(1),), target="xnnpack", on_mismatch="warn")
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a user's `mypy --strict` says of both scripts, in one run: reading torch takes most of it."""
    pytest.importorskip("mypy", reason="pip install 'ingot[dev]'")
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "wrong.py").write_text(WRONG)
    options = ("--strict", "--config-file", os.devnull, "--cache-dir", str(folder), "--follow-imports", "silent")
    return run("-m", "mypy", *options, str(SCRIPT), str(folder / "wrong.py")).stdout.splitlines()


def test_the_script_is_well_typed(mypy: list[str]) -> None:
    """Not by the settings of this project: by those of a user."""
    assert [line for line in mypy if SCRIPT.name in line] == []


def test_a_wrong_use_is_found(mypy: list[str]) -> None:
    wrong = "\n".join(line for line in mypy if "wrong.py" in line)
    assert "Incompatible types in assignment" in wrong
    assert "No overload variant" in wrong


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
