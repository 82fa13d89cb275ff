"""A fleet file is checked before the first cell: each mistake is told with its place and the nearest name."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.cli.parser import make_parser
from ingot.fleet.spec import Fleet, check_targets, fleet_from, fleet_schema, read_fleet

pytestmark = pytest.mark.smoke

GOOD = """
targets = ["xnnpack"]
[models.net]
model = "net.py:build"
[recipes]
default = {}
"""

WRONG = [
    ('target = ["xnnpack"]', "", r"unknown key 'target' in the fleet.*did you mean 'targets'"),
    ("", 'calibrat = "d.npz"', r"unknown key 'calibrat' in the fleet, in models\.net.*did you mean 'calibrate'"),
    ("", 'goal = { metric = "top1", dat = "d" }', r"unknown key 'dat' in the fleet, in models\.net\.goal.*'data'"),
    ("", "mean = 0.5", r"'models\.net\.mean' in the fleet is not valid.*list.*0\.5"),
    ("", 'recipes = ["defalt"]', r"models\.net asks for a recipe 'defalt'.*did you mean 'default'"),
    ('timeout = "long"', "", r"'timeout' in the fleet is not valid.*number.*long"),
    ("resources.xnnpack.cores = 2", "", r"unknown key 'cores' in the fleet, in resources\.xnnpack.*one of: cpus"),
]


@pytest.mark.parametrize(("at_the_top", "in_the_model", "said"), WRONG)
def test_a_mistake_is_told_with_its_place(at_the_top: str, in_the_model: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f"{at_the_top}\n{GOOD}".replace("[recipes]", f"{in_the_model}\n[recipes]"))
    with pytest.raises(ingot.InputError) as error:
        read_fleet(file)
    assert re.search(said, str(error.value), re.DOTALL), error.value


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"targets": ["xnnpack"], "models": {"net": {}}}, r"'models\.net\.model' in the fleet.*Field required"),
        ({"targets": ["xnnpack"]}, r"'models' in the fleet.*Field required"),
        ({"targets": [], "models": {"net": {"model": "net.py:build"}}}, "needs targets, models and recipes"),
        ({"targets": ["xnnpack"], "models": {}}, "needs targets, models and recipes"),
        ({"targets": ["xnnpack"], "models": {"a/b": {"model": "net.py:build"}}}, "'a/b' cannot name a folder"),
    ],
)
def test_what_a_fleet_needs(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ingot.InputError) as error:
        fleet_from(given)
    assert re.search(said, str(error.value), re.DOTALL), error.value


def test_a_misspelt_target_is_told_at_once() -> None:
    fleet = fleet_from(tomllib.loads(GOOD.replace("xnnpack", "xnpack")))
    with pytest.raises(ingot.TargetError, match=r"unknown target 'xnpack'[\s\S]*did you mean 'xnnpack'"):
        check_targets(fleet, {"xnnpack", "vgf"})
    own = {"targets": ["xnnpack"], "models": {"net": {"model": "m.py:f", "targets": ["vfg"]}}}
    with pytest.raises(ingot.TargetError, match="'vfg'"):
        check_targets(fleet_from(own), {"xnnpack", "vgf"})


def test_the_schema_of_a_fleet() -> None:
    schema = json.loads(fleet_schema())
    assert set(schema["properties"]) == set(Fleet.__dataclass_fields__)
    assert set(schema["required"]) == {"targets", "models"}
    assert schema["additionalProperties"] is False


def test_the_example_of_the_guide_is_a_fleet() -> None:
    guide = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    for block in re.findall(r"```toml\n(.*?)```", guide, re.DOTALL):
        fleet_from(tomllib.loads(block))


def test_the_guide_has_every_key() -> None:
    guide = (Path(__file__).parents[2] / "docs/fleet.md").read_text()
    kinds = (Fleet, *(k for k in json.loads(fleet_schema())["$defs"].values()))
    keys = {k for kind in kinds for k in (kind["properties"] if isinstance(kind, dict) else kind.__dataclass_fields__)}
    assert {k for k in keys if f"`{k}`" not in guide} == set()


ROOT = Path(__file__).parents[2]


def test_the_example_fleet_and_workflow() -> None:
    """The example names files that are there; every command of the workflow is one that the shell takes."""
    fleet = read_fleet(ROOT / "examples/fleet.toml")
    assert all((ROOT / "examples" / m.model.partition(":")[0]).is_file() for m in fleet.models.values())
    commands = re.findall(r"ingot ((?:sweep|compare) [^|;\n]*)", (ROOT / "examples/ci/fleet.yml").read_text())
    assert len(commands) == 2
    for command in commands:
        make_parser().parse_args(command.split())
