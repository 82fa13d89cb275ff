"""All code in the documents runs."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from ingot.cli import main
from ingot.recipe import Recipe, recipe_from
from ingot.scopes import NAMED

ROOT = Path(__file__).parent.parent


def python_blocks(path: Path) -> list[str]:
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", path.read_text(), re.S | re.M)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in blocks]


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in python_blocks(ROOT / "README.md"):
        exec(compile(code, "README.md", "exec"), names)
    assert {p.name for p in tmp_path.iterdir()} == {"model.pte", "report.html"}
    assert names["check"].passed


def test_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks(ROOT / "docs/ten-minutes.md")
    Path("net.py").write_text(code)
    cast = ["cast", "net.py:build", "--target", "xnnpack", "--calibrate", "net.py:batches", "-o", "out/"]
    assert main(cast) == 0
    said = capsys.readouterr().out
    assert "2 delegates, 1 host op" in said
    assert "erf.default" in said
    assert "net.py:13" in said
    assert main(["why", "out/", "conv2d"]) == 0
    assert "one kernel with" in capsys.readouterr().out
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/ten-minutes.md").read_text(), re.S)
    Path("r.toml").write_text(toml)
    assert main([*cast[:-1], "other/", "--recipe", "r.toml"]) == 0
    capsys.readouterr()
    assert main(["diff", "out/", "other/"]) == 0
    assert "linear: int8" in capsys.readouterr().out
    Path("better.py").write_text(code.replace("torch.erf", "torch.tanh"))
    assert main([c.replace("net.py", "better.py") for c in cast]) == 0
    assert "1 delegate, 0 host ops" in capsys.readouterr().out


def test_the_recipe_in_the_guide_names_every_key() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/recipes.md").read_text(), re.S)
    data = tomllib.loads(toml)
    assert recipe_from(data).scopes[3].output == NAMED["snorm8"]
    assert {f.name for f in dataclasses.fields(Recipe)} - data.keys() == {"options"}
