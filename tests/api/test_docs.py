"""All code in the documents runs."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.cli import main
from ingot.config.recipe import Recipe, recipe_from
from ingot.config.tensor_specs import NAMED
from ingot.targets import registry
from ingot.targets.base import Target
from tests.support.requirements import need, need_scenario_runner
from tests.support.sharpen_backend import IMAGES, Sharpened, takes
from tests.support.sharpen_backend import run as run_sharpen

ROOT = Path(__file__).parents[2]


def python_blocks(path: Path) -> list[str]:
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", path.read_text(), re.S | re.M)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in blocks]


def test_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
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
    assert "1 delegate, 0 host ops" in said
    assert "rewritten: trigonometry-as-polynomials" in said
    assert main(["why", "out/", "conv2d"]) == 0
    assert "into one kernel" in capsys.readouterr().out
    Path("as-written.toml").write_text('disabled_rewrites = ["trigonometry-as-polynomials"]')
    assert main([*cast, "--recipe", "as-written.toml"]) == 0
    said = capsys.readouterr().out
    assert "2 delegates, 1 host op" in said
    assert "atan.default" in said
    assert "net.py:13" in said
    one_line_of_a_recipe([c.replace("xnnpack", "ethos-u55-128") for c in cast[:-1]], capsys)


def one_line_of_a_recipe(cast: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On an NPU: one delegate, two by a demand, one again by another."""
    need("ethos-u55-128")
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/ten-minutes.md").read_text(), re.S)
    Path("r.toml").write_text(toml)
    Path("one-line.toml").write_text(toml.replace('"float"', '"int16"'))
    assert main([*cast, "npu/"]) == 0
    assert "1 delegate, 0 host ops" in capsys.readouterr().out
    assert main([*cast, "split/", "--recipe", "r.toml"]) == 0
    said = capsys.readouterr().out
    assert "2 delegates" in said
    assert "it is planned in float, which EthosUBackend does not run" in said
    assert main(["why", "split/", "atan"]) == 0
    assert "requested by the recipe: op atan" in capsys.readouterr().out
    assert main([*cast, "whole/", "--recipe", "one-line.toml"]) == 0
    assert "1 delegate, 0 host ops" in capsys.readouterr().out
    assert main(["diff", "split/", "whole/"]) == 0
    assert "atan: float -> int16" in capsys.readouterr().out


def run_blocks(name: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for code in python_blocks(ROOT / "docs" / name):
        exec(compile(code, name, "exec"), names)
    return names


def test_hardware_to_recipe() -> None:
    need("ethos-u55-128")
    names = run_blocks("hardware-to-recipe.md")
    assert names["casting"].io.inputs[0].dtype == "int8"
    assert [len(names[n].delegates) for n in ("casting", "wide", "mixed")] == [1, 1, 1]
    assert names["wide"].plan.qparams("conv2d_1").dtype == "int16"
    assert names["mixed"].plan.qparams("conv2d_1") is None


def test_troubleshooting() -> None:
    names = run_blocks("troubleshooting.md")
    assert names["finding"].kind == "none"


def test_adding_a_rewrite() -> None:
    """The rule that is shown is the one that is used."""
    shown = python_blocks(ROOT / "docs/adding-a-rewrite.md")[0]
    assert shown == (ROOT / "ingot/rewrite/elu.py").read_text()
    names = run_blocks("adding-a-rewrite.md")
    assert (len(names["casting"].delegates), len(names["split"].delegates)) == (1, 2)


def test_adding_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown of the example is in its files; the rest runs."""
    page, source = ROOT / "docs/adding-a-target.md", ROOT / "examples/ingot-tinynpu"
    blocks = python_blocks(page)
    shown = [re.fullmatch(r"# (\S+)\n(.*)", code, re.S) for code in blocks]
    for path, code in (found.groups() for found in shown if found):
        assert code in (source / path).read_text(), f"{path} has changed"
    (toml,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)
    assert (
        tomllib.loads(toml)["project"].items()
        <= tomllib.loads((source / "pyproject.toml").read_text())["project"].items()
    )
    monkeypatch.syspath_prepend(str(source / "src"))
    monkeypatch.setattr(registry, "_registered", {})
    names: dict[str, Any] = {}
    for code in (code for code, found in zip(blocks, shown, strict=True) if not found):
        exec(compile(code, page.name, "exec"), names)
    assert (len(names["casting"].delegates), names["casting"].host_ops) == (1, ())
    assert names["casting"].check.outputs[0].faithful_db > 100
    assert "TinyNPU has no kernel for sigmoid" in {op.reason for op in names["split"].host_ops}
    assert "linear" in names["refused"]
    parts = {f.name for f in dataclasses.fields(Target)} - {"name", "description"}
    assert set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.M)) == parts


def test_the_api_reference_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs/make_api.py"))["page"]()
    assert (ROOT / "docs/api.md").read_text() == page, "run: python docs/make_api.py"


def documents() -> list[Path]:
    single = ("README.md", "CONTRIBUTING.md", "bench/README.md", "examples/README.md")
    return [*(ROOT / name for name in single), *(ROOT / "docs").rglob("*.md")]


def test_links_between_documents_lead_somewhere() -> None:
    for path in documents():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_paths_in_documents_exist() -> None:
    for path in documents():
        named = re.findall(r"`((?:ingot|tests|docs|bench|examples)/[\w./-]+)`", path.read_text())
        assert [n for n in named if not (ROOT / n).exists()] == [], path.name


def test_lines_of_documents_fit() -> None:
    """Rows of tables cannot be broken."""
    for path in documents():
        lines = path.read_text().splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == [], path.name


def test_the_readme_lists_every_room_once() -> None:
    rooms = [p.name for p in (ROOT / "ingot").iterdir() if (p / "__init__.py").exists()]
    listed = re.findall(r"^\| `ingot/(\w+)/` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(rooms)


def test_graphics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the example's net, untrained and small, and the backend of tests/support/sharpen_backend.py."""
    need_scenario_runner()
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples/temporal.toml", tmp_path)
    example = runpy.run_path(str(ROOT / "examples/temporal.py"))
    picture = torch.rand(1, 3, 64, 64) * 2 - 1
    torch.manual_seed(0)
    net, batches = example["Temporal"]().eval(), [example["scene"](picture, 24, seed)[:3] for seed in range(4)]
    names = {"ingot": ingot, "net": net, "batches": batches, "example": batches[0]}
    scenario, own = python_blocks(ROOT / "docs/graphics.md")
    exec(compile(scenario, "graphics.md", "exec"), names)
    assert main(["run", "scenario"]) == 0
    assert re.search(r"tanh_1 +as expected", capsys.readouterr().out)
    names |= {"net": Sharpened(), "batches": IMAGES, "example": IMAGES[0], "run": run_sharpen}
    names["SharpenPartitioner"] = lambda: takes()("sharpen")
    own = own.replace("SharpenBackend", "TestBackend").replace("mylib", "ingot_test_backends")
    exec(compile(own, "graphics.md", "exec"), names)
    assert [d.backend for d in names["casting"].delegates] == ["VgfBackend", "TestBackend", "VgfBackend"]


def test_language_models(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = python_blocks(ROOT / "docs/language-models.md")
    exec(compile(code, "language-models.md", "exec"), {})
    assert "linear 4 32 " in capsys.readouterr().out


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks(ROOT / "docs/reports.md")
    exec(compile(code, "reports.md", "exec"), {})
    said = capsys.readouterr().out
    assert " dB (" in said
    assert "Convolution" in said
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_recipe_of_the_graphics_guide_is_the_examples() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/graphics.md").read_text(), re.S)
    shown, used = tomllib.loads(toml), tomllib.loads((ROOT / "examples/temporal.toml").read_text())
    assert shown == {k: v for k, v in used.items() if k != "extra_backends"}


def test_the_recipe_in_the_guide_names_every_key() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/recipes.md").read_text(), re.S)
    data = tomllib.loads(toml)
    assert recipe_from(data).scopes[3].output == NAMED["snorm8"]
    assert {f.name for f in dataclasses.fields(Recipe)} - data.keys() == {"options"}
