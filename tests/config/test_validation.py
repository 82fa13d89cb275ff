"""What users write is validated alike in Python, in a dict and in TOML; editors get a JSON schema of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.config.recipe import RENAMED, Recipe, recipe_from
from ingot.config.schema import recipe_schema

pytestmark = pytest.mark.smoke

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"min_sqnr_db": "20"}, 'min_sqnr_db = "20"'),
    ({"verify_batches": 0}, "verify_batches = 0"),
    ({"verify_batches": 2.5}, "verify_batches = 2.5"),
    ({"quantize": 1}, "quantize = 1"),
    ({"extra_backends": "sampler"}, 'extra_backends = "sampler"'),
    ({"noise_vs_latency": -0.1}, "noise_vs_latency = -0.1"),
    ({"int4_sqnr_budget_db": 99.0}, "int4_sqnr_budget_db = 99.0"),
    ({"scopes": [{"op": "add", "precision": 8}]}, 'scopes = [{ op = "add", precision = 8 }]'),
    ({"inputs": [{"dtype": "int8", "scale": "1"}]}, 'inputs = [{ dtype = "int8", scale = "1" }]'),
]


@pytest.mark.parametrize(("given", "toml"), WRONG)
def test_the_same_is_refused_in_python_and_in_toml(given: dict[str, Any], toml: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(toml)
    said = []
    for make in (lambda: Recipe(**given), lambda: recipe_from(given), lambda: recipe_from(file)):
        with pytest.raises(ingot.InputError) as error:
            make()
        said.append(str(error.value))
    assert len(set(said)) == 1


def test_an_int_is_a_float() -> None:
    assert Recipe(min_sqnr_db=20) == recipe_from({"min_sqnr_db": 20.0})


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_keys_of_the_last_version_are_read_with_a_note(old: str, new: str) -> None:
    value: Any = {"beside": ["sampler"], "without_rules": ["elu"], "lend_inputs": True}.get(old, 0.5)
    with pytest.warns(FutureWarning, match=f"'{old}' is now '{new}'"):
        assert recipe_from({old: value}) == recipe_from({new: value})


def test_the_schema_knows_every_key_and_what_a_spec_may_be() -> None:
    schema = json.loads(recipe_schema())
    known = set(schema["properties"])
    assert {"range", "scopes", "inputs", "noise_vs_latency", "extra_backends"} <= known
    assert not RENAMED.keys() & known
    assert schema["additionalProperties"] is False
    assert "snorm8" in json.dumps(schema["properties"]["inputs"])
