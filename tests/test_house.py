"""The rules of the house are checked, and the checks catch what breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ingot.core.versions import TESTED
from tools.check_names import TOP_FILES, cycles, problems

ROOT = Path(__file__).parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    options = ["--config", str(ROOT / ".importlinter"), "--no-cache"]
    env = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run([*command, *options], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_names_rooms_and_files() -> None:
    assert [*problems(), *cycles()] == []
    assert {p.name for p in (ROOT / "ingot").iterdir() if p.is_file()} == TOP_FILES


def test_layers() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


BACK_EDGES = {
    "a room that imports a later one, inside a function": ("core/fx.py", "ingot.plan.plan_data"),
    "a planner that knows a backend": ("plan/solve.py", "ingot.targets.xnnpack.target"),
    "a target that knows the planner": ("targets/xnnpack/kernels.py", "ingot.plan.plan_data"),
    "a report that knows torch": ("result/report/text.py", "torch"),
    "verification that casts": ("verify/check.py", "ingot.api"),
}


@pytest.mark.parametrize("name", BACK_EDGES)
def test_a_back_edge_is_found(name: str, tmp_path: Path) -> None:
    file, module = BACK_EDGES[name]
    shutil.copytree(ROOT / "ingot", tmp_path / "ingot", ignore=shutil.ignore_patterns("__pycache__", "*.spv"))
    with (tmp_path / "ingot" / file).open("a") as f:
        f.write(f"\n\ndef _added() -> None:\n    import {module}  # noqa: F401\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert module in done.stdout


def test_a_shared_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "ingot" / "plan").mkdir(parents=True)
    (tmp_path / "ingot" / "plan" / "__init__.py").write_text('"""Plans."""\n')
    (tmp_path / "ingot" / "plan" / "a.py").write_text("def widen(): ...\n")
    (tmp_path / "ingot" / "plan" / "b.py").write_text("class widen: ...\n")
    (tmp_path / "ingot" / "loose.py").write_text("")
    (tmp_path / "README.md").write_text("`plan/`")
    found = list(problems(tmp_path / "ingot"))
    assert any("'widen' is defined twice" in p for p in found)
    assert any("loose.py lies flat" in p for p in found)


def test_pins_are_spelled_alike() -> None:
    """In pyproject.toml and in the table that error messages and patches read."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = dict(d.split("==") for d in project["dependencies"] if "==" in d)
    assert pinned == {name: TESTED[name] for name in pinned}
    assert {"torch", "executorch", "torchao"} <= pinned.keys()
